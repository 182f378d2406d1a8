// Package guard ties the life of a command to a lease instead of to the life of
// the program that holds the lease. What follows is true of Linux; for other systems see below.
//
// The program starts a guard, a small process of the same executable (or Program), and the
// guard starts the command. The guard gets each new end of the lease. It asks the command to end
// when the lease runs out, and kills it with everything it started before the lease is over. If the
// program is gone, for whatever reason, the guard kills everything at once. If the guard is gone,
// the program does the same. A program that is stopped when its lease is over is resumed.
//
//	holdfast run ── knows the lease; subreaper, ready to do the guard's work
//	   │  ▲   socket: the end of the lease, signals │ what became of the command
//	   ▼  │
//	hf-guard ────── knows the deadline; subreaper: whatever the command starts
//	   │            and leaves behind comes back to it
//	the command ─── and its descendants
//
// # From the trust window to the guard
//
// The guard's deadline is always the end of the client's trust window. These are all the ways in
// which the window changes, and the test of each:
//
//	start   refused from reserve before the end on: nothing is run        TestStartTooLate, process.TestStartAfterTheLease
//	extend  each heartbeat that was answered                              TestExtend
//	lower   before the heartbeat that carries the smaller TTL is sent     TestLower, process.TestLoweredWindow
//	loss    the window has ended at this moment: killed at once           TestStopAtTheEnd, process.TestDeclaredDeadByMistake
//	break   the window as it is now; later heartbeats do not extend it    command.TestBrokenNotExtended, TestStop
//	stop    a stopped program extends nothing                             TestProgramStopped, process.TestStoppedRunAlone
//	resume  nothing due at a moment is done before all said until then    TestGuardResumed, TestProgramResumed
//
// # Not seen does not mean gone
//
// All is over when the kernel says that no children are left (ECHILD), and only then (children from
// before, and the listener for keys, are left out with the help of /proc). A process that /proc
// does not show, that may not be killed, or that hangs in the kernel counts as alive. It is
// reported (Event.Alive), and the guard tries to kill it for as long as it is there. Where /proc
// belongs to another pid namespace nothing is run: the numbers there are those of other processes.
//
// # On other systems
//
// On other Unix systems (files *_portable.go) the guard relies on the command's process group,
// which is its own even at a terminal: TERM and KILL go to the group, and all is over when the
// group is empty, or ps shows only dead processes in it. What leaves the group (setsid, timeout, a
// daemon) is not found. The program and the guard notice each other's end by the socket between
// them. A command runs on if the guard is killed after starting it and before reporting that. There
// is no proof of life to inherit: the TTL decides. With -tags portableguard Linux has this guard,
// too, for tests.
//
// # Both gone
//
// Nothing in the kernel ends a process tree when two unrelated processes die. So the guard is hard
// to hit by accident: it has another name, has none of the command's arguments in its command line,
// and is the least likely victim when memory runs out. Where a control group may be made the
// command gets one of its own: then processes of other users can be killed too, and the next
// program in the same group ends what a dead pair has left. If the machine stood still for the
// whole lease, both wake up too late (Event.Stood).
//
// # Rejected
//
//   - Killing only the process group, on Linux: a daemon leaves it.
//   - procctl(PROC_REAP_ACQUIRE), the subreaper of FreeBSD: it would find what leaves the group,
//     but needs somebody who can test it there.
//   - Watching the lock from a thread of the program: no thread of a stopped process runs.
//   - PR_SET_PDEATHSIG alone: it reaches only the direct child. It is set in addition.
//   - A third process that watches the two: whatever finds two processes of one program
//     finds three, and each command would cost one more.
//   - A pid namespace for each command, which would close the case of both gone: the
//     command would be pid 1 with its signal rules, would see other pids than those in its
//     pid files, could signal no daemon outside, and would need privileges. Users who want it write
//     unshare --kill-child in front.
//   - Making host liveness wait for the control group: where none can be made, a killed container
//     would cost its successor a TTL.
package guard

import (
	"errors"
	"syscall"
	"time"
)

// A Why says what ended a command.
type Why int

const (
	Itself   Why = iota // it ended by itself, or by a signal that was not ours
	Deadline            // the lease ran out
	Told                // Stop was called
	NoGuard             // the guard was gone or stood still; all was killed
)

// An Event is what Events yields. The first is Started, or Ended without a PID if nothing was run
// (Errno or Why says why). The last is always Ended.
type Event struct {
	Started  bool          `json:",omitempty"` // the command runs
	Stopping bool          `json:",omitempty"` // it has been asked to end; Why says why
	Killing  bool          `json:",omitempty"` // not all have ended: the rest is killed
	Stopped  bool          `json:",omitempty"` // it is stopped (job control)
	Alive    []Survivor    `json:",omitempty"` // processes that could not be killed; sent again when they change
	Ended    bool          `json:",omitempty"` // it and all it started are gone
	Why      Why           `json:",omitempty"`
	PID      int           `json:",omitempty"` // of the command; 0: it was not started
	Within   time.Duration `json:",omitempty"` // with Stopping: time left until all is killed
	Box      string        `json:",omitempty"` // with Started: its control group, if it has one of its own

	// The rest is set with Ended.
	Status syscall.WaitStatus `json:",omitempty"` // of the command
	Left   int                `json:",omitempty"` // processes that it had left running, which were asked to end
	Killed bool               `json:",omitempty"` // not everything ended when asked: the rest was killed
	Late   time.Duration      `json:",omitempty"` // how long the last of it ran after the lease was over
	Stood  bool               `json:",omitempty"` // because this machine, or the process that was to kill it, stood still
	After  time.Duration      `json:",omitempty"` // from asking to the end
	Errno  syscall.Errno      `json:",omitempty"` // why the command could not be started
}

// A Survivor is a process that could not be killed.
type Survivor struct {
	PID   int    `json:",omitempty"` // 0: there is one that /proc does not show
	Name  string `json:",omitempty"` // "": not known
	State string `json:",omitempty"` // as ps shows it; D: hangs in the kernel; Z: dead, and a debugger has not seen it yet
}

// An Instant is a moment of a clock that runs while the machine sleeps, and that
// the program and its guard share.
type Instant int64

// Add is the instant d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub is the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Program is the executable that guards are started from: this one, or a smaller one of the
// same version that imports this package.
var Program = "/proc/self/exe"

// ErrUnsupported: this system has no means to end what a command started.
var ErrUnsupported = errors.New("running a command under a lock needs Linux, macOS or FreeBSD")

// An order is what the program tells its guard.
type order struct {
	Start     bool           `json:",omitempty"` // start the command
	Env       []string       `json:",omitempty"` // with this added to its environment
	Deadline  Instant        `json:",omitempty"` // end of the lease
	KillAfter time.Duration  `json:",omitempty"`
	Signal    syscall.Signal `json:",omitempty"` // pass it on to the command
	Stop      bool           `json:",omitempty"` // ask it to end, then kill it
}

const (
	// argv0 is how a process knows that it is a guard, and what ps shows. It does not contain the
	// program's name: killing everything that is called holdfast spares the guards, and they end
	// what they guard.
	argv0 = "hf-guard"

	// protocol is the version that a program and its guard speak: they may be two files.
	protocol = "2"
	// settle is how long what a command leaves running may take to end by
	// itself, as the `tee` of a script does.
	settle = 500 * time.Millisecond
	// pollInterval is the longest time without a look at the clock: timers stand
	// still while the machine sleeps, the lease does not.
	pollInterval = 200 * time.Millisecond
	// patience is how long a process that cannot be killed may last before it is reported.
	patience = time.Second
)

// reserve is what remains of the lease when everything is killed.
func reserve(killAfter time.Duration) time.Duration {
	return min(100*time.Millisecond, killAfter/4)
}

// Startable reports whether a command may still be started at t under a lease that ends at until.
func Startable(t, until Instant, killAfter time.Duration) bool {
	return t < until.Add(-reserve(killAfter))
}
