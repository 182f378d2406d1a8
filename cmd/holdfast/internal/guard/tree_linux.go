package guard

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A process as /proc shows it. pid and started together are one process for ever.
type process struct {
	pid, parent int
	state       byte
	started     uint64
}

// dead reports whether the process only waits to be reaped.
func (p process) dead() bool { return p.state == 'Z' || p.state == 'X' }

func look(pid int) (process, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	// The name in parentheses may hold anything; what follows the last one is
	// state, parent, …, and started as the twentieth.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return process{}, false
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	started, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	return process{pid, parent, fields[0][0], started}, true
}

// descendants lists everything below this process, parents first, but not what
// is in skip nor below it.
func descendants(skip map[process]bool) []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	children := make(map[int][]process)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := look(pid); ok {
				children[p.parent] = append(children[p.parent], p)
			}
		}
	}
	return below(skip, func(pid int) []process { return children[pid] })
}

// near is descendants as their parents know them, which does not read all of
// /proc. It may miss some, and knows nothing on some kernels.
func near(skip map[process]bool) []process {
	return below(skip, func(pid int) (children []process) {
		tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		if err != nil {
			return nil
		}
		for _, task := range tasks {
			text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + task.Name() + "/children")
			for _, field := range bytes.Fields(text) {
				child, _ := strconv.Atoi(string(field))
				if p, ok := look(child); ok {
					children = append(children, p)
				}
			}
		}
		return children
	})
}

// below walks down from this process.
func below(skip map[process]bool, children func(pid int) []process) []process {
	self := os.Getpid()
	var all []process
	seen := map[int]bool{self: true}
	for next := []int{self}; len(next) > 0; next = next[1:] {
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

// signal sends sig to exactly this process: a pid that has meanwhile gone to
// another is left alone.
func (p process) signal(sig syscall.Signal) error {
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

// ask asks everything below this process to end, and wakes what stands still so
// that it can. It returns how many live processes there were.
func ask(skip map[process]bool) (n int) {
	all := descendants(skip)
	for _, p := range all {
		if !p.dead() {
			n++
			p.signal(syscall.SIGTERM)
		}
	}
	for _, p := range all {
		if p.state == 'T' {
			p.signal(syscall.SIGCONT)
		}
	}
	return n
}

// killAll kills everything below this process, again and again until nothing
// is left: as a subreaper it inherits whatever loses its parent, so that nothing
// gets away. reap is called for each child that ended. What is still there after
// patience, because it may not be killed or hangs in the kernel, is returned.
func killAll(skip map[process]bool, patience time.Duration, reap func(pid int, status syscall.WaitStatus)) (alive []int) {
	start, pause := boottime(), time.Duration(0)
	for {
		// First all stand still, so that nothing is started in place of what
		// is killed.
		all := near(skip)
		if len(all) == 0 {
			all = descendants(skip)
		}
		for i, p := range all {
			if p.signal(syscall.SIGSTOP) != nil {
				all[i].pid = 0
			}
		}
		for _, p := range all {
			if p.pid != 0 { // it stands still, so its number is still its own
				syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
		for {
			pid, status, err := wait(0)
			if err == unix.ECHILD {
				return nil
			}
			if pid <= 0 {
				break
			}
			reap(pid, status)
		}
		if len(all) == 0 && len(skip) > 0 {
			return nil // what is left is not the command's
		}
		if boottime()-start > int64(patience) {
			for _, p := range descendants(skip) {
				if !p.dead() {
					alive = append(alive, p.pid)
				}
			}
			return alive
		}
		time.Sleep(pause) // for the kernel to do what it was told
		pause = min(pause+time.Millisecond, 20*time.Millisecond)
	}
}

// wait reaps a child that has ended, or is stopped if flags say so; pid 0: there
// is none yet.
func wait(flags int) (pid int, status syscall.WaitStatus, err error) {
	for {
		pid, err = syscall.Wait4(-1, &status, syscall.WNOHANG|flags, nil)
		if err != syscall.EINTR {
			return pid, status, err
		}
	}
}

// boottime is the clock that both processes mean: it runs while the machine sleeps.
func boottime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("clock_gettime: " + err.Error())
	}
	return t.Nano()
}
