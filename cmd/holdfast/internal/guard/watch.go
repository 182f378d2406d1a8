//go:build unix

package guard

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A process that was started as a guard or as a listener does only that work. It begins before
// packages with later paths are initialized, among them those of databases, because the command
// waits for it.
func init() {
	listenIfSo()
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
	unix.CloseOnExec(fd)
	args := become(os.Args[1:])
	w := &watch{conn: newConn(fd), program: os.Getppid(), path: args[2], args: args[3:], proof: -1}
	if w.join, err = strconv.Atoi(args[1]); err != nil {
		w.group = true
	}
	w.box = newBox()
	w.run()
	w.box.remove()
	os.Exit(0)
}

// A watch is the guard at work. All of it belongs to one goroutine, which does what is due at a
// moment only after it has heard all that the program had said until then: a guard that stood
// still for a while acts on the present state, not on a past one.
type watch struct {
	conn    *conn
	program int
	group   bool // the command has a process group of its own
	join    int  // else the group that it joins: the program's
	path    string
	args    []string
	proof   int  // the session's proof of life, to be inherited
	box     *box // a control group for the command, or nil

	toStart   bool
	env       []string // with this added to its environment
	toStop    bool
	signals   []syscall.Signal // to be passed on
	passed    syscall.Signal   // the last that was passed on
	main      int              // the command; 0 until it is started
	status    syscall.WaitStatus
	ended     bool // the command itself
	endedAt   Instant
	childless bool // nothing of it is left
	goneAt    Instant

	deadline  Instant
	killAfter time.Duration
	why       Why
	askedAt   Instant // when everything was asked to end; 0: not yet
	askTook   time.Duration
	killAt    Instant
	left      int
	hunt      *hunt // set once everything is being killed
}

// deaf are the signals that are meant for the command, or for the program. They are caught, not
// ignored: what is ignored stays ignored in the command.
var deaf = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE, syscall.SIGALRM,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGWINCH,
	syscall.SIGCONT, syscall.SIGVTALRM, syscall.SIGIO, syscall.SIGXCPU,
}

func (w *watch) run() {
	for _, sig := range deaf {
		if !Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // never read: signals are dropped
		}
	}
	children := deaths()
	for {
		now := Now() // what is said until then is heard below
		if !w.hear() {
			break
		}
		if w.toStart && w.main == 0 && !w.start(now) {
			return
		}
		w.passOn()
		w.reap()
		if w.step(now) {
			return
		}
		sleep(w.pause(Now()), w.conn.fd, children)
		drain(children)
	}
	// The program is gone.
	for w.main != 0 && !w.pursue() {
		sleep(w.hunt.pause, children)
		drain(children)
	}
	w.back()
}

// hear obeys all that the program has said. It reports false when the program is
// gone.
func (w *watch) hear() bool {
	for {
		var o order
		file, err := w.conn.receive(&o)
		switch {
		case err == unix.EAGAIN:
			return true
		case err != nil:
			return false
		}
		if file >= 0 {
			w.proof = file
		}
		w.obey(o)
	}
}

func (w *watch) obey(o order) {
	if o.Deadline != 0 {
		w.deadline, w.killAfter = o.Deadline, o.KillAfter
	}
	if o.Start {
		w.toStart, w.env = true, o.Env
	}
	if o.Signal != 0 {
		w.signals = append(w.signals, o.Signal)
	}
	w.toStop = w.toStop || o.Stop
}

// passOn passes signals on to the command.
func (w *watch) passOn() {
	if w.main == 0 {
		return // they are for when it runs
	}
	for _, sig := range w.signals {
		w.passed = sig
		switch {
		case w.ended:
		case w.group: // not yet reaped, so these numbers are still the command's
			syscall.Kill(-w.main, sig)
		default:
			syscall.Kill(w.main, sig)
		}
	}
	w.signals = nil
}

// start runs the command as if it took the place of this process: same files, same environment
// and a little more, same dispositions of signals. It reports false if there is no command to
// run, no lease to run it under, or the program has said Stop.
func (w *watch) start(now Instant) bool {
	switch {
	case w.toStop:
		w.conn.send(Event{Ended: true, Why: Told}, nil)
		return false
	case !Startable(now, w.deadline, w.killAfter):
		w.conn.send(Event{Ended: true, Why: Deadline}, nil)
		return false
	}
	w.box.sweep()
	if !Startable(Now(), w.deadline, w.killAfter) {
		return true // run calls start again after hearing what was said in between
	}
	if w.proof >= 0 {
		// From here on host liveness takes the session for alive until the command has closed
		// this file, too.
		if fd, err := high(w.proof, true); err == nil {
			unix.Close(w.proof)
			w.proof = fd
		}
	}
	attr := &syscall.ProcAttr{
		Env:   append(os.Environ(), w.env...),
		Files: []uintptr{0, 1, 2},
		Sys:   attributes(w.join),
	}
	pid, err := w.box.start(w.path, w.args, attr)
	if err != nil {
		errno := syscall.EINVAL
		errors.As(err, &errno)
		w.conn.send(Event{Ended: true, Errno: errno}, nil)
		return false
	}
	w.main = pid
	w.conn.send(Event{Started: true, PID: pid, Box: w.box.where()}, nil)
	spare()
	return true
}
