//go:build !portableguard

package guard

import (
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func newHunt(command int, skip map[process]bool, b *box, reap func(pid int, status syscall.WaitStatus)) *hunt {
	now := Now()
	return &hunt{command: command, skip: skip, box: b, reap: reap, began: now, better: now, fewest: 1 << 30, killed: make(map[process]bool)}
}

// pass kills all processes that are there, and reports whether none is left.
func (h *hunt) pass() (gone bool) {
	h.pause = min(h.pause+time.Millisecond, 20*time.Millisecond) // for the kernel to end them
	if h.stuck {
		h.pause = pollInterval
	}
	if pids, _ := kids(os.Getpid()); len(pids) >= many {
		h.empty()
	}
	all := below(h.skip)
	// All are stopped first, so that nothing is started in place of what is killed.
	var still []process
	h.refused = false
	for _, p := range all {
		if p.dead() || h.killed[p.identity()] {
			continue
		}
		switch p.signal(syscall.SIGSTOP) {
		case nil:
			still = append(still, p)
		case unix.EPERM:
			h.refused = true
		}
	}
	for _, p := range still { // they are stopped, so their numbers are still their own
		if syscall.Kill(p.pid, syscall.SIGKILL) == nil {
			h.killed[p.identity()], h.last = true, Now()
		}
	}
	h.seen = all
	if h.gone() {
		return true
	}
	if h.refused || len(all) == 0 {
		h.empty()
	}
	if len(still) > 0 || len(all) < h.fewest {
		h.fewest, h.better = min(h.fewest, len(all)), Now()
	}
	return false
}

// empty kills what is in the box, once: nothing is started in it after that.
func (h *hunt) empty() {
	if !h.emptied && h.box.kill() {
		h.emptied, h.last = true, Now()
	}
}

// gone reaps what has ended, and reports whether no child is left. Having seen no process
// does not prove that: some may be hidden.
func (h *hunt) gone() bool {
	for {
		pid, status, err := wait(0)
		if err == unix.ECHILD {
			return true
		}
		if pid <= 0 {
			break
		}
		delete(h.killed, process{pid: pid}) // if it was hidden: another may get its number now
		h.reap(pid, status)
	}
	if len(h.skip) == 0 || len(h.seen) > 0 {
		return false
	}
	// Child processes are left, possibly only some that were there before the command. No
	// other was seen, which is proof only if /proc is still there and shows all processes.
	pids, known := kids(os.Getpid())
	if !known {
		return Usable() == nil && !Hides()
	}
	return !slices.ContainsFunc(pids, func(pid int) bool {
		p, ok := look(pid)
		return !ok || !h.skip[p.identity()]
	})
}

// askAll asks everything below this process to end, until enough reports true, and resumes stopped
// processes so that they can. It returns how many live processes there were.
func (w *watch) askAll(enough func() bool) (n int) {
	var all []process
	for _, p := range walk(nil, everywhere(enough), enough) {
		if !p.dead() {
			all = append(all, p)
		}
	}
	for _, p := range all {
		if enough() {
			break
		}
		p.signal(syscall.SIGTERM)
	}
	for _, p := range all {
		if p.state == 'T' {
			p.signal(syscall.SIGCONT)
		}
	}
	return len(all)
}

// kids returns the numbers of a process's children as the kernel knows them, including those that
// /proc hides. Not every kernel shows them.
func kids(pid int) (pids []int, known bool) {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil, false
	}
	for _, task := range tasks {
		text, err := os.ReadFile(dir + "/" + task.Name() + "/children")
		if err == nil {
			known = true
		}
		pids = append(pids, numbers(text)...)
	}
	return pids, known
}
