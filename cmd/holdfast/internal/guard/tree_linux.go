//go:build !portableguard

package guard

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process as /proc shows it. pid and started together identify one process for ever.
type process struct {
	pid, parent int
	state       byte
	started     uint64
	threads     int
	name        string
	hidden      bool // a child of this process that /proc does not show
}

// dead reports whether the process only waits to be reaped. A process whose first
// thread has ended has the state of a dead one, but lives while it has other threads.
func (p process) dead() bool { return p.state == 'X' || p.state == 'Z' && p.threads <= 1 }

func look(pid int) (process, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name in parentheses may hold anything; after the last parenthesis come state,
	// parent, …, threads as the eighteenth, and started as the twentieth.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	fields := bytes.Fields(text[end+1:])
	if open < 0 || end < open || len(fields) < 20 {
		return process{}, false
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	threads, _ := strconv.Atoi(string(fields[17]))
	started, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	return process{pid: pid, parent: parent, state: fields[0][0], started: started, threads: threads, name: string(text[open+1 : end])}, true
}

// below lists everything below this process, parents first, except what is in skip or
// below it. Of the processes that /proc hides it knows only this process's children.
func below(skip map[process]bool) (all []process) {
	threads := 0
	costly := func() bool { return threads > 10*many } // each is a file to read
	if pids, _ := kids(os.Getpid()); len(pids) < many {
		all = walk(skip, func(pid int) []process {
			children := near(pid)
			for _, p := range children {
				threads += p.threads
			}
			return children
		}, costly)
	}
	if len(all) == 0 || costly() {
		all = walk(skip, everywhere(never), never)
	}
	return all
}

// present returns the children that this process has.
func present() map[process]bool {
	all := make(map[process]bool)
	for _, p := range slices.Concat(near(os.Getpid()), everywhere(never)(os.Getpid())) {
		all[p.identity()] = true
	}
	return all
}

// many children take longer to visit one by one than it takes to read all of /proc.
const many = 50

// near returns the children of a process as the kernel knows them. It may miss some,
// and on some kernels it finds none.
func near(pid int) (children []process) {
	pids, _ := kids(pid)
	for _, n := range pids {
		if p := child(n); !p.hidden || pid == os.Getpid() {
			children = append(children, p)
		}
	}
	return children
}

// everywhere reads all of /proc, and returns a function that lists the children of a process.
func everywhere(enough func() bool) func(pid int) []process {
	children := make(map[int][]process)
	shown := make(map[int]bool)
	if dir, err := os.Open("/proc"); err == nil {
		defer dir.Close()
		names, _ := dir.Readdirnames(-1)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && !enough() {
				if p, ok := look(pid); ok {
					children[p.parent] = append(children[p.parent], p)
					shown[pid] = true
				}
			}
		}
	}
	self := os.Getpid()
	pids, _ := kids(self)
	for _, pid := range pids {
		if !shown[pid] {
			children[self] = append(children[self], child(pid))
		}
	}
	return func(pid int) []process { return children[pid] }
}

// never is for walks that do not end early.
func never() bool { return false }

// child returns a process that was listed as a child. A child of this process that cannot be
// seen is hidden: it does not disappear before this process reaps it.
func child(pid int) process {
	if p, ok := look(pid); ok {
		return p
	}
	return process{pid: pid, parent: os.Getpid(), state: '?', hidden: true}
}

// walk walks down from this process until enough reports true.
func walk(skip map[process]bool, children func(pid int) []process, enough func() bool) []process {
	self := os.Getpid()
	var all []process
	seen := map[int]bool{self: true}
	for next := []int{self}; len(next) > 0 && !enough(); next = next[1:] {
		for _, p := range children(next[0]) {
			if seen[p.pid] || skip[p.identity()] {
				continue
			}
			seen[p.pid] = true
			all = append(all, p)
			next = append(next, p.pid)
		}
	}
	return all
}

// identity is the part of a process that never changes.
func (p process) identity() process { return process{pid: p.pid, started: p.started} }

// signal sends sig to exactly this process: another that has its pid by now is left alone.
func (p process) signal(sig syscall.Signal) error {
	if p.parent == os.Getpid() { // a child keeps its number until this process reaps it
		return syscall.Kill(p.pid, sig)
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == unix.ENOSYS || err == unix.EPERM { // an old kernel, a sandbox
		if now, ok := look(p.pid); !ok || now.started != p.started {
			return unix.ESRCH
		}
		return syscall.Kill(p.pid, sig)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if now, ok := look(p.pid); !ok || now.started != p.started {
		return unix.ESRCH
	}
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if err == unix.ENOSYS || err == unix.EPERM {
		return syscall.Kill(p.pid, sig)
	}
	return err
}

// numbers are the numbers in a text.
func numbers(text []byte) (all []int) {
	for _, field := range bytes.Fields(text) {
		if n, err := strconv.Atoi(string(field)); err == nil {
			all = append(all, n)
		}
	}
	return all
}
