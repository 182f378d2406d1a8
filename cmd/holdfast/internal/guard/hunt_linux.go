package guard

import (
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A hunt kills everything below this process, pass by pass, until nothing is left:
// as a subreaper it inherits whatever loses its parent, so that nothing gets away.
type hunt struct {
	skip map[process]bool // children from before the command's time
	box  *box
	reap func(pid int, status syscall.WaitStatus)

	began Instant
	last  Instant // when the last was killed; 0: none was
	pause time.Duration

	emptied bool             // all in the box was killed
	seen    []process        // in the last pass
	refused bool             // some may not be killed by this user
	killed  map[process]bool // they do nothing more, though it takes time to clear them away
	fewest  int              // processes that were there in a pass
	better  Instant          // when fewer were there than ever before
	told    []Survivor
	stuck   bool // some could not be killed
}

func newHunt(skip map[process]bool, b *box, reap func(pid int, status syscall.WaitStatus)) *hunt {
	now := Now()
	return &hunt{skip: skip, box: b, reap: reap, began: now, better: now, fewest: 1 << 30, killed: make(map[process]bool)}
}

// pass kills all that are there, and reports whether nothing is left.
func (h *hunt) pass() (gone bool) {
	h.pause = min(h.pause+time.Millisecond, 20*time.Millisecond) // for the kernel to do what it was told
	if h.stuck {
		h.pause = glance
	}
	if pids, _ := kids(os.Getpid()); len(pids) >= many {
		h.empty()
	}
	all := below(h.skip)
	// First all stand still, so that nothing is started in place of what is killed.
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
	for _, p := range still { // they stand still, so their numbers are still their own
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

// gone clears away what has ended, and reports whether no child is left. That no
// process was seen does not say so: some may be hidden.
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
	// Children are left, and those of before the command's time may be all. None was seen
	// beside them: that says something only of a /proc that is still there and shows all.
	pids, known := kids(os.Getpid())
	if !known {
		return Usable() == nil && !Hides()
	}
	return !slices.ContainsFunc(pids, func(pid int) bool {
		p, ok := look(pid)
		return !ok || !h.skip[p.identity()]
	})
}

// survivors are the processes that cannot be killed, and whether that is news.
// What was killed has some time to go before it counts as one of them.
func (h *hunt) survivors() (alive []Survivor, news bool) {
	wait := patience
	if !h.refused && len(h.seen) > 0 {
		wait *= 5 // the kernel takes its time
	}
	if Now().Sub(h.better) < wait {
		return nil, false
	}
	for _, p := range h.seen {
		if !p.dead() {
			alive = append(alive, Survivor{p.pid, p.name, string(p.state)})
		}
	}
	if len(alive) == 0 { // a debugger may keep what is dead
		for _, p := range h.seen {
			alive = append(alive, Survivor{p.pid, p.name, string(p.state)})
		}
	}
	if len(alive) == 0 {
		for _, pid := range h.box.procs() {
			alive = append(alive, Survivor{PID: pid})
		}
	}
	if len(alive) == 0 {
		alive = []Survivor{{}}
	}
	alive = alive[:min(len(alive), 100)] // a message has room for so many
	same := slices.EqualFunc(alive, h.told, func(a, b Survivor) bool { return a.PID == b.PID })
	h.told, h.stuck = alive, true
	return alive, !same
}

// struck reports whether something had to be killed.
func (h *hunt) struck() bool { return h != nil && h.last != 0 }

// late is for how long after the end of the lease the last process may have run,
// and whether that is because nobody was there to kill it in time. What was killed
// runs no more; of what could not be killed only its end is known. Less than grace
// does not count: the lease ends a margin, which is more, before anybody else may begin.
func (h *hunt) late(gone, deadline Instant, grace time.Duration) (late time.Duration, stood bool) {
	last := gone
	if h != nil && h.struck() && !h.stuck {
		last = h.last
	}
	if late = last.Sub(deadline); late <= grace {
		return 0, false
	}
	return late, h == nil || h.began > deadline
}

// ask asks everything below this process to end, and wakes what stands still so
// that it can, until that is enough. It returns how many live processes there were.
func ask(skip map[process]bool, enough func() bool) (n int) {
	var all []process
	for _, p := range walk(skip, everywhere(enough), enough) {
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

// kids are the numbers of a process's children as the kernel knows them, also of
// those that /proc hides; not every kernel tells them.
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
