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
	fd        int // -1 once closed
	deadline  int64
	killAfter time.Duration
	command   int
	running   bool
	killing   bool // it is the guard that kills
	closed    bool
}

// Start starts a guard for a command, which Run starts: path is what is
// executed, args begin with its name, env is its environment but for what Run
// adds. If the program has a controlling terminal the command will share its
// process group, so that Ctrl-C, Ctrl-Z and fg work as without us; else it gets
// a group of its own.
func Start(path string, args []string, env []string) (*Guard, error) {
	g := &Guard{group: !Terminal(), events: make(chan Event, 16)}
	// If the guard dies its children come to us.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	g.remember()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	g.fd = pair[0]
	unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, maxMessage)
	theirs, err := high(pair[1], true)
	unix.Close(pair[1])
	if err != nil {
		unix.Close(g.fd)
		return nil, err
	}
	group := "group"
	if !g.group {
		group = fmt.Sprint(unix.Getpgrp())
	}
	attr := &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		// A group of its own: who kills ours does not kill the guard.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	}
	argv := append([]string{argv0, fmt.Sprint(protocol, "/", theirs), group, path}, args...)
	g.pid, err = syscall.ForkExec(Program, argv, attr)
	if err == syscall.ENOENT {
		var exe string
		if exe, err = os.Executable(); err == nil {
			g.pid, err = syscall.ForkExec(exe, argv, attr)
		}
	}
	unix.Close(theirs)
	if err != nil {
		unix.Close(g.fd)
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	messages := make(chan Event)
	go receive(g.fd, messages, func(fd int) { unix.Close(fd) })
	go g.watch(messages)
	return g, nil
}

// remember notes the children that an exec has left us with: they are not the command's.
func (g *Guard) remember() {
	for {
		pid, _, err := wait(0)
		if err != nil {
			return // no children: as good as always
		}
		if pid == 0 {
			break
		}
	}
	g.skip = make(map[process]bool)
	self := os.Getpid()
	for _, p := range descendants(nil) {
		if p.parent == self {
			g.skip[p.identity()] = true
		}
	}
}

// Run starts the command under a lease until then, if the guard still lives.
// proof, if any, is inherited by the guard and the command, under a number that
// is in nobody's way.
func (g *Guard) Run(env []string, proof *os.File, until time.Time, killAfter time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deadline, g.killAfter, g.running = boottime()+int64(time.Until(until)), killAfter, true
	return g.send(order{Start: true, Env: env, Deadline: g.deadline, KillAfter: killAfter}, proof)
}

// Extend tells of a new end of the lease.
func (g *Guard) Extend(until time.Time, killAfter time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running {
		g.deadline, g.killAfter = boottime()+int64(time.Until(until)), killAfter
		g.send(order{Deadline: g.deadline, KillAfter: killAfter}, nil)
	}
}

// Signal passes a signal on to the command.
func (g *Guard) Signal(sig syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.send(order{Signal: sig}, nil)
}

// Stop asks the command and all it started to end, and kills what is left
// killAfter later, or when the lease ends.
func (g *Guard) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.send(order{Stop: true}, nil)
}

// Close sends a guard away that was not needed. A command that runs is killed.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.fd >= 0 {
		unix.Shutdown(g.fd, unix.SHUT_RDWR)
	}
}

// Events yields what happens; it is closed after Ended.
func (g *Guard) Events() <-chan Event { return g.events }

// Standing reports whether the command stands still at this moment.
func (g *Guard) Standing() bool {
	g.mu.Lock()
	pid := g.command
	g.mu.Unlock()
	p, ok := look(pid)
	return ok && p.state == 'T'
}

func (g *Guard) send(o order, file *os.File) error {
	if g.fd < 0 {
		return os.ErrClosed
	}
	return send(g.fd, o, file)
}

// watch hands on what the guard says, and does the guard's work when there is
// no guard any more, or when the lease ends and it has not done its work.
func (g *Guard) watch(messages <-chan Event) {
	defer close(g.events)
	defer func() {
		for range messages {
		}
		g.mu.Lock()
		unix.Close(g.fd)
		g.fd = -1
		g.mu.Unlock()
	}()
	timer := time.NewTimer(glance)
	defer timer.Stop()
	for {
		select {
		case e, ok := <-messages:
			if !ok {
				g.takeOver()
				return
			}
			g.mu.Lock()
			if e.Started {
				g.command = e.PID
			}
			g.killing = g.killing || e.Killing
			g.mu.Unlock()
			g.events <- e
			if e.Ended {
				g.Close()
				return
			}
		case <-timer.C:
			left := g.left()
			if left <= 0 && g.done() {
				left = glance // what it has said is on its way
			}
			if left <= 0 {
				g.takeOver()
				g.Close()
				return
			}
			timer.Reset(min(left, glance))
		}
	}
}

// left is the time until the guard should have killed everything.
func (g *Guard) left() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.running {
		return glance
	}
	left := time.Duration(g.deadline - boottime())
	if g.killing {
		return left + time.Second // it is at work
	}
	return left - reserve(g.killAfter)/2
}

// done reports whether the guard has ended, as it does when it has done its work.
func (g *Guard) done() bool {
	p, ok := look(g.pid)
	return !ok || p.dead()
}

// takeOver kills everything in the guard's place.
func (g *Guard) takeOver() {
	g.mu.Lock()
	command, closed := g.command, g.closed
	late := g.deadline + int64(reserve(g.killAfter)) // as in report
	g.mu.Unlock()
	if closed && command == 0 {
		return // it goes by itself
	}
	e := Event{Ended: true, Why: NoGuard, PID: command}
	e.Alive = killAll(g.skip, time.Second, func(pid int, status syscall.WaitStatus) {
		if pid == command {
			e.Status, e.Killed = status, true
		}
	})
	e.Late = boottime() > late
	g.events <- e
}
