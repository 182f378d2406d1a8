//go:build unix

package guard

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Guard is the program's side of a guard process.
type Guard struct {
	pid    int
	group  bool
	events chan Event
	skip   map[process]bool // children from before our time

	mu        sync.Mutex
	conn      *conn // nil once closed
	deadline  Instant
	killAfter time.Duration
	due       Instant // when the guard should have killed everything
	obey      Instant // until when it may do so if the order came too late
	command   int
	box       *box
	running   bool
	asked     Why     // why the guard has asked the command to end
	askedAt   Instant // and when; 0: it has not
	killing   bool    // the guard is killing
	stuck     bool    // and has reported what it cannot kill
	closed    bool
}

// Start starts a guard for a command that Run starts: path is what is executed, args begin
// with its name, env is its environment without what Run adds. If Joins is true and the
// program has a controlling terminal, the command will share its process group, so that
// Ctrl-C, Ctrl-Z and fg work as without us; else it gets a group of its own.
func Start(path string, args []string, env []string) (*Guard, error) {
	if err := Usable(); err != nil {
		return nil, err
	}
	g := &Guard{group: !Joins || !Terminal(), events: make(chan Event, 16)}
	if err := g.inherit(); err != nil {
		return nil, err
	}
	g.remember()
	ours, end, err := socketPair()
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs, err := high(end, true)
	unix.Close(end)
	if err != nil {
		unix.Close(ours)
		return nil, err
	}
	g.conn = newConn(ours)
	group := "group"
	if !g.group {
		group = fmt.Sprint(unix.Getpgrp())
	}
	attr := &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		// A group of its own: killing ours spares the guard.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	}
	argv := append([]string{argv0, fmt.Sprint(protocol, "/", theirs), group, path}, args...)
	g.pid, err = syscall.ForkExec(Program, argv, attr)
	if err == syscall.ENOENT { // not every system has /proc/self/exe
		var exe string
		if exe, err = os.Executable(); err == nil {
			g.pid, err = syscall.ForkExec(exe, argv, attr)
		}
	}
	unix.Close(theirs)
	if err != nil {
		unix.Close(ours)
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	go g.watch()
	return g, nil
}

// remember notes the children that an exec has left us with: they are not the command's.
func (g *Guard) remember() {
	for {
		pid, _, err := wait(0)
		if err != nil {
			return // no children, as almost always
		}
		if pid == 0 {
			break
		}
	}
	g.skip = present()
}

// Run starts the command under a lease that ends at until, if the guard still lives. The
// guard and the command inherit proof, if any, under a number that is in nobody's way.
func (g *Guard) Run(env []string, proof *os.File, until Instant, killAfter time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = true
	return g.tell(order{Start: true, Env: env, Deadline: until, KillAfter: killAfter}, proof)
}

// Extend sends the end of the lease as it is now: later after a heartbeat, earlier when
// its TTL was made smaller.
func (g *Guard) Extend(until Instant, killAfter time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running {
		g.tell(order{Deadline: until, KillAfter: killAfter}, nil)
	}
}

// Signal passes a signal on to the command.
func (g *Guard) Signal(sig syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.send(order{Signal: sig}, nil)
}

// Stop asks the command and all it started to end, and kills what is left
// killAfter later, or when the lease ends: at until, or at its previous end if that is earlier.
func (g *Guard) Stop(until Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tell(order{Stop: true, Deadline: min(g.deadline, until), KillAfter: g.killAfter}, nil)
}

// tell gives an order that has a deadline; g.mu is held.
func (g *Guard) tell(o order, proof *os.File) error {
	g.deadline, g.killAfter = o.Deadline, o.KillAfter
	now, r := Now(), reserve(o.KillAfter)
	if g.due = o.Deadline.Add(-r / 2); g.due < now.Add(r) {
		g.obey = now.Add(patience)
	}
	return g.send(o, proof)
}

// Close ends a guard that is not needed. A command that runs is killed.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.conn != nil {
		unix.Shutdown(g.conn.fd, unix.SHUT_RDWR)
	}
}

// Events yields what happens; it is closed after Ended.
func (g *Guard) Events() <-chan Event { return g.events }

// Standing reports whether the command is stopped at this moment.
func (g *Guard) Standing() bool {
	g.mu.Lock()
	pid := g.command
	g.mu.Unlock()
	return standing(pid)
}

func standing(pid int) bool {
	p, ok := look(pid)
	return ok && p.state == 'T'
}

// idle reports whether the guard does nothing at this moment, because it is stopped or held by
// a debugger. A guard that a debugger only looks at may be taken for idle; then this process
// does the same work, no earlier than it is due.
func (g *Guard) idle() bool {
	p, ok := look(g.pid)
	return ok && (p.state == 'T' || p.state == 't')
}

func (g *Guard) send(o order, file *os.File) error {
	if g.conn == nil {
		return os.ErrClosed
	}
	return g.conn.send(o, file)
}

// watch passes on what the guard says. It does the guard's work when the guard is gone, or when
// the lease ends and the guard has not done its work. It reads the clock before it hears all
// that the guard has said, because this process may have stood still in between.
func (g *Guard) watch() {
	defer close(g.events)
	conn := g.conn
	defer func() {
		g.mu.Lock()
		unix.Close(conn.fd)
		g.conn = nil
		g.mu.Unlock()
	}()
	for {
		left := g.left()
		over, gone := g.hear(conn)
		if over {
			return
		}
		if gone || left <= 0 {
			g.takeOver(gone)
			return
		}
		sleep(min(g.left(), pollInterval), conn.fd)
	}
}

// hear passes on all that the guard has said. over: that was the last event; gone: the guard is
// gone.
func (g *Guard) hear(conn *conn) (over, gone bool) {
	for {
		var e Event
		file, err := conn.receive(&e)
		if file >= 0 {
			unix.Close(file)
		}
		switch {
		case err == unix.EAGAIN:
			return false, false
		case err != nil:
			return false, true
		}
		g.mu.Lock()
		if e.Started {
			g.command = e.PID
			if e.Box != "" {
				g.box = openBox(e.Box)
			}
		}
		if e.Stopping {
			g.asked, g.askedAt = e.Why, Now()
		}
		g.killing = g.killing || e.Killing
		g.stuck = g.stuck || e.Alive != nil
		g.mu.Unlock()
		g.events <- e
		if e.Ended {
			return true, false
		}
	}
}

// left is the time until the guard should have killed everything.
func (g *Guard) left() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := Now()
	switch {
	case !g.running, g.stuck && !g.idle():
		return pollInterval
	case now < g.due:
		return g.due.Sub(now)
	case (g.killing || now < g.obey) && !g.idle():
		return pollInterval / 10 // it is at work
	}
	return 0
}

// takeOver kills everything in the guard's place. gone: the guard is gone.
func (g *Guard) takeOver(gone bool) {
	g.mu.Lock()
	command, closed, asked, askedAt := g.command, g.closed, g.asked, g.askedAt
	g.mu.Unlock()
	if closed && command == 0 {
		return // the guard ends by itself
	}
	e := Event{Ended: true, Why: NoGuard, PID: command}
	h := newHunt(command, g.skip, g.box, func(pid int, status syscall.WaitStatus) {
		if pid == command {
			e.Status = status
		}
	})
	h.empty()
	if !gone && askedAt != 0 && !g.idle() { // it works, and only waits for a processor
		e.Why = asked
	}
	g.dismiss()
	for !h.pass() {
		if alive, news := h.survivors(); news {
			g.events <- Event{Alive: alive}
		}
		time.Sleep(h.pause)
	}
	g.box.remove()
	g.mu.Lock()
	e.Late, e.Stood = h.late(Now(), g.deadline, reserve(g.killAfter))
	g.mu.Unlock()
	if e.Killed = h.struck(); e.Why != NoGuard {
		e.After = Now().Sub(askedAt)
	}
	g.events <- e
}
