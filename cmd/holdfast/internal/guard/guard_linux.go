package guard

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main is to be called first of all in main. If this process was started as a
// guard it does a guard's work and does not return.
func Main() {
	if len(os.Args) < 4 || os.Args[0] != argv0 {
		return
	}
	spoken, number, _ := strings.Cut(os.Args[1], "/")
	fd, err := strconv.Atoi(number)
	if err != nil {
		return
	}
	if spoken != protocol {
		fmt.Fprintf(os.Stderr, "holdfast: the program that is to guard commands is of another version than the one beside it: install both anew\n")
		os.Exit(70)
	}
	// The command dies with the thread that starts it: this one.
	runtime.LockOSThread()
	unix.CloseOnExec(fd)
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	name := []byte(argv0 + "\x00")
	unix.Prctl(unix.PR_SET_NAME, uintptr(ptr(name)), 0, 0, 0)
	w := &watch{fd: fd, program: os.Getppid(), path: os.Args[3], args: os.Args[4:], proof: -1}
	if w.join, err = strconv.Atoi(os.Args[2]); err != nil {
		w.group = true
	}
	w.run()
	os.Exit(0)
}

// A watch is the guard at work. All of it belongs to one goroutine.
type watch struct {
	fd      int
	program int
	group   bool // the command has a process group of its own
	join    int  // else the group it shall be in: the program's
	path    string
	args    []string
	proof   int // the session's proof of life, to be inherited

	main      int // the command; 0 until it is started
	status    syscall.WaitStatus
	ended     bool // the command itself
	endedAt   int64
	childless bool

	deadline  int64
	killAfter time.Duration
	why       Why
	askedAt   int64 // everything was asked to end; 0: not yet
	killAt    int64
	left      int
	killed    bool
	alive     []int
}

// deaf are the signals that are meant for the command, or for the program, and
// reach the guard because it sits in the same group. They are caught, not
// ignored: what is ignored stays ignored in the command.
var deaf = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE, syscall.SIGALRM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGWINCH,
	syscall.SIGCONT, syscall.SIGVTALRM, syscall.SIGIO, syscall.SIGXCPU, syscall.SIGPWR,
}

func (w *watch) run() {
	for _, sig := range deaf {
		if !Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // never read: signals are dropped
		}
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	orders, proofs := make(chan order), make(chan int, 1)
	go receive(w.fd, orders, func(fd int) { proofs <- fd })
	timer := time.NewTimer(glance)
	for {
		select {
		case o, ok := <-orders:
			if !ok { // the program is gone
				w.kill(time.Hour)
				return
			}
			select {
			case w.proof = <-proofs:
			default:
			}
			w.obey(o)
		case <-children:
		case <-timer.C:
		}
		w.reap()
		if w.step(boottime()) {
			return
		}
		timer.Reset(w.pause(boottime()))
	}
}

// pause is how long nothing needs to be done.
func (w *watch) pause(now int64) time.Duration {
	if w.main == 0 {
		return time.Hour
	}
	next := w.deadline - int64(w.killAfter)
	switch {
	case w.askedAt != 0:
		next = w.killAt
	case w.ended:
		next = min(next, w.endedAt+int64(settle))
	}
	return max(0, min(glance, time.Duration(next-now)))
}

func (w *watch) obey(o order) {
	if o.Deadline != 0 {
		w.deadline, w.killAfter = o.Deadline, o.KillAfter
	}
	if o.Start && w.main == 0 {
		w.start(o.Env)
	}
	if o.Signal != 0 && w.main != 0 && !w.ended {
		// Not yet reaped, so these numbers are still the command's.
		if w.group {
			syscall.Kill(-w.main, o.Signal)
		} else {
			syscall.Kill(w.main, o.Signal)
		}
	}
	if o.Stop && w.main != 0 && w.askedAt == 0 {
		w.ask(boottime(), Told)
	}
}

// start runs the command in place of this process as far as it can tell: same
// files, same environment and a little more, same dispositions of signals.
func (w *watch) start(env []string) {
	if w.proof >= 0 {
		// From here on the kernel takes the session for alive until the
		// command has closed this, too.
		if _, err := high(w.proof, true); err == nil {
			unix.Close(w.proof)
		}
	}
	attr := &syscall.ProcAttr{
		Env:   append(os.Environ(), env...),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pgid: w.join, Pdeathsig: syscall.SIGKILL},
	}
	pid, err := syscall.ForkExec(w.path, w.args, attr)
	if err != nil {
		errno := syscall.EINVAL
		errors.As(err, &errno)
		send(w.fd, Event{Ended: true, Errno: errno}, nil)
		os.Exit(0)
	}
	w.main = pid
	send(w.fd, Event{Started: true, PID: pid}, nil)
}

// reap notes what became of the command and clears away its orphans.
func (w *watch) reap() {
	for w.main != 0 {
		pid, status, err := wait(syscall.WUNTRACED)
		if err == syscall.ECHILD {
			w.childless = true
			return
		}
		if pid <= 0 {
			return
		}
		w.note(pid, status)
	}
}

func (w *watch) note(pid int, status syscall.WaitStatus) {
	switch {
	case pid != w.main:
	case status.Stopped():
		send(w.fd, Event{Stopped: true, PID: pid}, nil)
	default:
		w.status, w.ended, w.endedAt = status, true, boottime()
	}
}

// step does what is due, and reports whether all is over.
func (w *watch) step(now int64) bool {
	if w.main == 0 {
		return false
	}
	if !w.ended && w.askedAt == 0 && now >= w.deadline-int64(w.killAfter) {
		w.ask(now, Deadline)
	}
	if w.ended && !w.childless && w.askedAt == 0 &&
		(now >= w.endedAt+int64(settle) || now >= w.deadline-int64(w.killAfter)) {
		w.askedAt = now
		w.killAt = w.limit(now)
		w.left = ask(nil)
	}
	if !(w.ended && w.childless) {
		if now < w.deadline-int64(reserve(w.killAfter)) && (w.askedAt == 0 || now < w.killAt) {
			return false
		}
		if w.why == Itself && !w.ended {
			w.why = Deadline
		}
		send(w.fd, Event{Killing: true}, nil)
		w.kill(time.Second)
	}
	w.report()
	return true
}

// ask begins the end of a command that did not end by itself.
func (w *watch) ask(now int64, why Why) {
	if w.ended {
		return
	}
	w.why, w.askedAt = why, now
	w.killAt = w.limit(now)
	send(w.fd, Event{Stopping: true, Why: why, Within: time.Duration(w.killAt - now)}, nil)
	ask(nil)
}

// limit is when whoever is asked now is killed.
func (w *watch) limit(now int64) int64 {
	return min(now+int64(w.killAfter), w.deadline-int64(reserve(w.killAfter)))
}

// kill ends everything at once.
func (w *watch) kill(patience time.Duration) {
	if w.main == 0 {
		return
	}
	if w.group && !w.ended {
		syscall.Kill(-w.main, syscall.SIGKILL) // most of it in one call
	}
	w.alive = killAll(nil, patience, func(pid int, status syscall.WaitStatus) {
		w.killed = true
		w.note(pid, status)
	})
}

func (w *watch) report() {
	now := boottime()
	e := Event{Ended: true, Why: w.why, PID: w.main, Status: w.status, Left: w.left, Killed: w.killed, Alive: w.alive}
	if w.askedAt != 0 {
		e.After = time.Duration(now - w.askedAt)
	}
	// What was killed in time may take the kernel a moment to clear away; the
	// lease ends a margin before anybody else may begin.
	e.Late = w.endedAt > w.deadline || !w.ended || now > w.deadline+int64(reserve(w.killAfter))
	send(w.fd, e, nil)
	if w.why == Deadline {
		w.wake()
	}
	if len(w.alive) > 0 {
		w.kill(time.Hour) // for as long as they hang there is somebody to kill them
	}
}

// wake has a program go on that stands still though its lease is over: it may have
// been stopped in the middle of a write, which keeps others from their locks.
func (w *watch) wake() {
	if os.Getppid() != w.program { // it is gone
		return
	}
	if p, ok := look(w.program); ok && p.state == 'T' {
		p.signal(syscall.SIGCONT)
	}
}
