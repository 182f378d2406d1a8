//go:build unix

package guard

import (
	"slices"
	"syscall"
	"time"
)

// A hunt kills everything that a command has started, pass by pass, until nothing is left.
// On Linux this process, as a subreaper, inherits whatever loses its parent, so that nothing
// gets away; elsewhere it kills the command's process group.
type hunt struct {
	command int              // also the number of its group, if it has its own
	skip    map[process]bool // children from before the command's time
	box     *box
	reap    func(pid int, status syscall.WaitStatus)

	began Instant
	last  Instant // when the last was killed; 0: none was
	pause time.Duration

	emptied bool             // all in the box was killed
	seen    []process        // in the last pass
	refused bool             // some may not be killed by this user
	killed  map[process]bool // they do nothing more, but take time to disappear
	fewest  int              // the fewest processes that a pass has seen
	better  Instant          // when fewer were seen than ever before
	told    []Survivor
	stuck   bool // some could not be killed
}

// survivors returns the processes that cannot be killed, and whether that is news. A killed
// process has some time to disappear before it counts as one of them.
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
	alive = alive[:min(len(alive), 100)] // a message has no room for more
	same := slices.EqualFunc(alive, h.told, func(a, b Survivor) bool { return a.PID == b.PID })
	h.told, h.stuck = alive, true
	return alive, !same
}

// struck reports whether something had to be killed.
func (h *hunt) struck() bool { return h != nil && h.last != 0 }

// late returns how long after the end of the lease the last process may have run, and
// whether that is because nothing was there to kill it in time. A killed process runs no
// more; of one that could not be killed only its end is known. Less than grace does not
// count: the lease ends a margin, which is more, before anybody else may begin.
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

// wait reaps a child that has ended, or is stopped if flags say so. pid is 0 if there is
// none yet.
func wait(flags int) (pid int, status syscall.WaitStatus, err error) {
	for {
		pid, err = syscall.Wait4(-1, &status, syscall.WNOHANG|flags, nil)
		if err != syscall.EINTR {
			return pid, status, err
		}
	}
}
