// Package guard ties the life of a command to a lease instead of to the life of
// the program that holds the lease.
//
// The program starts a guard, a small process of the same executable (or Program), and the
// guard starts the command. The guard is told each new end of the lease. It asks
// the command to end when the lease runs out, and kills it with everything it
// started before the lease is over; it does so at once when the program is gone,
// however it went. When the guard is gone, the program does the same. A program
// that stands still when its lease is over is made to go on.
//
//	holdfast run ── knows the lease; subreaper, ready to do the guard's work
//	   │  ▲   socket: the end of the lease, signals │ what became of the command
//	   ▼  │
//	guard ───────── knows the deadline; subreaper: whatever the command starts
//	   │            and leaves behind comes back to it
//	the command ─── and its descendants
package guard

import (
	"errors"
	"syscall"
	"time"
)

// A Why says what ended a command.
type Why int

const (
	Itself   Why = iota // it ended by itself, or of a signal that was not ours
	Deadline            // the lease ran out
	Told                // Stop was called
	NoGuard             // the guard was gone or did not answer; all was killed
)

// An Event is what Events yields: first Started (or Ended with an Err), at the
// end Ended, which is the last.
type Event struct {
	Started  bool          `json:",omitempty"` // the command runs
	Stopping bool          `json:",omitempty"` // it has been asked to end; Why says why
	Killing  bool          `json:",omitempty"` // not all have ended: they are killed
	Stopped  bool          `json:",omitempty"` // it stands still (job control)
	Ended    bool          `json:",omitempty"` // it and all it started are gone
	Why      Why           `json:",omitempty"`
	PID      int           `json:",omitempty"` // of the command
	Within   time.Duration `json:",omitempty"` // with Stopping: what is left until all is killed

	// The rest is said with Ended.
	Status syscall.WaitStatus `json:",omitempty"` // of the command
	Left   int                `json:",omitempty"` // processes it had left running, which were asked to end
	Killed bool               `json:",omitempty"` // not everything ended when asked: it was killed
	Late   bool               `json:",omitempty"` // the lease was over before the command was
	After  time.Duration      `json:",omitempty"` // from asking to the end
	Alive  []int              `json:",omitempty"` // processes that could not be killed
	Errno  syscall.Errno      `json:",omitempty"` // why the command could not be started
}

// Program is what guards are started from: this one, or a smaller one of the same
// version, whose main calls Main as well.
var Program = "/proc/self/exe"

// ErrUnsupported: this system has no means to end everything a command started.
var ErrUnsupported = errors.New("running a command under a lock needs Linux")

// An order is what the program tells its guard.
type order struct {
	Start     bool           `json:",omitempty"` // start the command
	Env       []string       `json:",omitempty"` // with this added to its environment
	Deadline  int64          `json:",omitempty"` // end of the lease in nanoseconds of CLOCK_BOOTTIME
	KillAfter time.Duration  `json:",omitempty"`
	Signal    syscall.Signal `json:",omitempty"` // pass it on to the command
	Stop      bool           `json:",omitempty"` // ask it to end, then kill it
}

const (
	// argv0 is how a process knows that it is a guard.
	argv0 = "holdfast-guard"

	// protocol is what a program and its guard speak: they may be two files.
	protocol = "1"
	// settle is how long what a command leaves running may take to end by
	// itself, as the `tee` of a script does.
	settle = 500 * time.Millisecond
	// glance is the longest time without a look at the clock: timers stand
	// still while the machine sleeps, the lease does not.
	glance = 200 * time.Millisecond
)

// reserve is what remains of the lease when everything is killed.
func reserve(killAfter time.Duration) time.Duration {
	return min(100*time.Millisecond, killAfter/4)
}
