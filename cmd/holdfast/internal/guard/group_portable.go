//go:build unix && (!linux || portableguard)

package guard

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits says what cannot be promised here.
func Limits() string {
	return "what leaves the command's process group (setsid, timeout, a daemon) is neither ended nor waited for; " +
		"if run and its guard are both killed the command runs on"
}

// Usable returns nil: there are always process groups.
func Usable() error { return nil }

// Now is this instant. The clock runs on while a Mac sleeps; that of FreeBSD may not, and
// then a guard whose program is stopped or gone does not count the sleep.
func Now() Instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("clock_gettime: " + err.Error())
	}
	return Instant(t.Nano())
}

func listenIfSo()                   {}
func become(args []string) []string { return args }
func spare()                        {}
func (g *Guard) inherit() error     { return nil }

// dismiss ends a guard that does not do its work.
func (g *Guard) dismiss() { syscall.Kill(g.pid, syscall.SIGKILL) }

// attributes are those of a command that has a process group of its own.
func attributes(int) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// A box is what a guard knows of its command's process group.
type box struct {
	program int     // the process group of the program
	looked  Instant // when ps was last asked
	others  int     // how many it showed
}

func newBox() *box {
	group, _ := unix.Getpgid(syscall.Getppid())
	return &box{program: group}
}

func openBox(string) *box       { return nil }
func (b *box) where() string    { return "" }
func (b *box) procs() []int     { return nil }
func (b *box) sweep()           {}
func (b *box) remove()          {}
func (h *hunt) empty()          {}
func present() map[process]bool { return nil }

func (b *box) start(path string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	return syscall.ForkExec(path, args, attr)
}

// A process as ps shows it.
type process struct {
	pid, group int
	state      byte
	name       string
}

func (p process) dead() bool                      { return p.state == 'Z' || p.state == 'X' }
func (p process) signal(sig syscall.Signal) error { return syscall.Kill(p.pid, sig) }

// ps lists processes; it returns none if it fails.
func ps(which ...string) (all []process) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "/bin/ps", append(which, "-o", "pid=", "-o", "pgid=", "-o", "stat=", "-o", "comm=")...).Output()
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		p := process{state: fields[2][0], name: filepath.Base(strings.Join(fields[3:], " "))}
		p.pid, _ = strconv.Atoi(fields[0])
		p.group, _ = strconv.Atoi(fields[1])
		all = append(all, p)
	}
	return all
}

func look(pid int) (process, bool) {
	all := ps("-p", strconv.Itoa(pid))
	if len(all) != 1 {
		return process{}, false
	}
	return all[0], true
}

// members returns the live processes of a group, if they are known. Dead processes that
// have not been reaped keep a group.
func members(group int) (live []process, known bool) {
	if vacant(group) {
		return nil, true
	}
	all := ps("-A")
	for _, p := range all {
		if p.group == group && !p.dead() {
			live = append(live, p)
		}
	}
	return live, len(all) > 0
}

// vacant reports whether a group no longer exists.
func vacant(group int) bool { return syscall.Kill(-group, 0) == syscall.ESRCH }

// alone reports whether nothing is left once the command has ended. It runs ps now and
// then, but not when there may be no time for it.
func (w *watch) alone() bool {
	if vacant(w.main) {
		return true
	}
	now := Now()
	if now < w.box.looked.Add(pollInterval/2) || now.Add(patience) > w.due() {
		return false
	}
	live, known := members(w.main)
	w.box.looked, w.box.others = Now(), len(live)
	return known && len(live) == 0
}

// askAll asks the command's group to end, and resumes stopped processes so that they can.
func (w *watch) askAll(func() bool) (n int) {
	syscall.Kill(-w.main, syscall.SIGTERM)
	syscall.Kill(-w.main, syscall.SIGCONT)
	return max(1, w.box.others)
}

func newHunt(command int, _ map[process]bool, _ *box, reap func(pid int, status syscall.WaitStatus)) *hunt {
	now := Now()
	h := &hunt{command: command, reap: reap, began: now, better: now}
	h.kill()
	return h
}

func (h *hunt) kill() {
	if h.command == 0 {
		return // nothing was started
	}
	switch syscall.Kill(-h.command, syscall.SIGKILL) {
	case nil:
		h.last = Now()
	case syscall.EPERM:
		h.refused = true
	}
}

// pass kills what is left of the group, and reports whether the group is gone.
func (h *hunt) pass() (gone bool) {
	h.pause = min(h.pause+time.Millisecond, 20*time.Millisecond)
	if h.stuck {
		h.pause = pollInterval
	}
	for {
		pid, status, err := wait(0)
		if err != nil || pid <= 0 {
			break
		}
		h.reap(pid, status)
	}
	if h.command == 0 || vacant(h.command) {
		return true
	}
	if Now().Sub(h.began) < pollInterval/4 {
		return false // they are ending, and need not be looked for
	}
	live, known := members(h.command)
	if known && len(live) == 0 {
		return true
	}
	h.seen = live
	h.kill()
	return false
}
