//go:build linux

package process

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// nobody is a user without rights.
const nobody = 65534

// ofNobody is a world that belongs to a user without rights, whose programs run as
// that user.
func ofNobody(t *testing.T) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can start programs of another user, so what a user may not kill is not tested")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("SKIPPED: there is no setpriv, so what a user may not kill is not tested")
	}
	w := newWorld(t)
	must(t, os.Chmod(filepath.Dir(w.dir), 0o711))
	w.host("b")
	w.hand()
	w.wrap = []string{setpriv, fmt.Sprintf("--reuid=%d", nobody), fmt.Sprintf("--regid=%d", nobody), "--clear-groups", "--"}
	return w
}

// hand gives all files of a world to nobody.
func (w *world) hand() {
	must(w.t, filepath.WalkDir(w.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	}))
}

// setUID is an actor that becomes root, whoever starts it, as sudo does.
func (w *world) setUID(flags ...string) []string {
	w.t.Helper()
	var stat syscall.Statfs_t
	must(w.t, syscall.Statfs(w.dir, &stat))
	if stat.Flags&syscall.MS_NOSUID != 0 {
		w.t.Skip("SKIPPED: the temporary directory is mounted nosuid, so what a user may not kill is not tested")
	}
	path := filepath.Join(w.dir, "sudo-actor")
	text, err := os.ReadFile(actorPath)
	must(w.t, err)
	if _, err := os.Stat(path); err != nil {
		must(w.t, os.WriteFile(path, text, 0o755))
		must(w.t, os.Chmod(path, 0o4755|fs.ModeSetuid))
	}
	return append([]string{path, "-lives", w.lives, "-alone", w.dir, "-root"}, flags...)
}

// inBackground is a shell that starts a command in the background, and ends when it
// has said so.
func inBackground(argv ...string) []string {
	script := `setsid "$@" -say begun >said & until grep -q begun said; do sleep 0.01; done 2>/dev/null`
	return append([]string{"sh", "-c", script, "sh"}, argv...)
}

// What a user may not kill keeps the lock until it ends: a child in the background
// that runs as another user, also if /proc does not show it.
func TestUnkillable(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		name := "seen"
		if hidden {
			name = "hidden"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := ofNobody(t)
			says := "(sudo-actor)"
			if hidden {
				w.hide()
				says = "(which /proc does not show)"
			}
			child := w.setUID("-shut", "-for", "6s")
			first := w.holdfast(append([]string{"run", "--ttl", "2", "x", "--"}, inBackground(child...)...)...)
			span := w.after(0, 1)
			next := w.runActor([]string{"-q", "--ttl", "2", "x"}, "-for", "1ms", "-alone", w.dir)
			w.queued("x", 1)
			first.wantStatus(0)
			next.wantStatus(0)
			inTurn(t, w.spans())
			want := fmt.Sprintf(`holdfast: sh: pid %d %s cannot be killed, and still runs; "x" stays held until it has ended`, span.PID, says)
			if text := first.stderr.String(); !strings.Contains(text, want) {
				t.Errorf("it says %q, which lacks %q", text, want)
			}
			t.Logf("figure: %s: a child in the background that could not be killed: the next held the lock %v after its end",
				name, time.Duration(w.after(span.Token, 1).Begin-w.lastOf(span.Token)).Round(time.Millisecond))
		})
	}
}

// hide has /proc not show the programs of a world what other users run.
func (w *world) hide() {
	w.t.Helper()
	script := `mount -t proc -o hidepid=2 proc /proc && exec "$@"`
	wrap := append([]string{"unshare", "-m", "sh", "-c", script, "sh"}, w.wrap...)
	out, err := exec.Command(wrap[0], append(wrap[1:], "sh", "-c", "! test -e /proc/1/stat")...).CombinedOutput()
	if err != nil {
		w.t.Skipf("SKIPPED: /proc cannot be mounted with hidepid here, so processes that it hides are not tested: %v: %s", err, out)
	}
	w.wrap = wrap
}

// A lock that is broken stays held for as long as the window lasts, though what
// cannot be killed goes on after that; and the loss is told as it was.
func TestUnkillableBroken(t *testing.T) {
	t.Parallel()
	w := ofNobody(t)
	first := w.holdfast(append([]string{"run", "--ttl", "6", "x", "--"}, w.setUID("-for", "20s")...)...)
	span := w.after(0, 1)
	next := w.runActor([]string{"-q", "--ttl", "6", "x"}, "-for", "1ms")
	w.queued("x", 1)
	claim := w.show("x").Holders[0]
	beat := w.lastBeat(claim.Owner.Session)
	w.holdfast("break", "--yes", "--reason", "a test", "--token", fmt.Sprint(claim.Token), "x")
	after := w.after(span.Token, 1)
	first.wantStatus(75)
	next.wantStatus(0)
	const ttl = 6 * time.Second
	if window := time.Duration(after.Begin - beat); window < ttl-margin(ttl)-200*time.Millisecond { // it was sent a little before
		t.Errorf("the next held the lock %v after the last heartbeat that was seen, before the window of %v had ended", window, ttl-margin(ttl))
	}
	text := first.stderr.String()
	for _, want := range []string{
		fmt.Sprintf("pid %d (sudo-actor) could not be killed and may run on beside the next holder", span.PID),
		"broken by", "a test",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it says %q, which lacks %q", text, want)
		}
	}
	if strings.Contains(text, "stood still") {
		t.Errorf("nothing stood still, and it says %q", text)
	}
	must(t, syscall.Kill(span.PID, syscall.SIGKILL))
}

// A second signal gives up on what cannot be killed. Then nothing is given back: the
// lock ends when its lease does, not before.
func TestUnkillableGivenUp(t *testing.T) {
	t.Parallel()
	w := ofNobody(t)
	first := w.holdfast(append([]string{"run", "--ttl", "4", "x", "--"}, inBackground(w.setUID("-for", "30s")...)...)...)
	span := w.after(0, 1)
	said := func(what string) {
		t.Helper()
		await(t, "it says "+what, func() bool { return strings.Contains(first.said(), what) })
	}
	said("cannot be killed")
	next := w.runActor([]string{"-q", "--ttl", "4", "x"}, "-for", "1ms")
	w.queued("x", 1)
	session := w.show("x").Holders[0].Owner.Session
	first.signal(syscall.SIGTERM)
	said("a second signal gives up")
	beat := w.lastBeat(session)
	first.signal(syscall.SIGTERM)
	first.wantStatus(128 + int(syscall.SIGTERM))
	said(fmt.Sprintf(`gave up on pid %d (sudo-actor), which may still run; "x" stays held until its lease ends by itself, in 4s at most`, span.PID))
	after := w.after(span.Token, 1)
	next.wantStatus(0)
	if waited := time.Duration(after.Begin - beat); waited < 4*time.Second {
		t.Errorf("the next held the lock %v after the last heartbeat, before the TTL of 4s", waited)
	}
	must(t, syscall.Kill(span.PID, syscall.SIGKILL))
}

// Where a control group can be had, what runs as another user is killed with the rest.
func TestControlGroup(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		t.Run(fmt.Sprint("hidden=", hidden), func(t *testing.T) {
			t.Parallel()
			w := ofNobody(t)
			if hidden {
				w.hide()
			}
			w.delegate()
			first := w.holdfast(append([]string{"run", "--ttl", "4", "x", "--"}, inBackground(w.setUID("-shut", "-for", "100s")...)...)...)
			span := w.after(0, 1)
			first.wantStatus(0)
			ended := life.Now()
			if state(span.PID) != 0 {
				t.Errorf("run has ended and pid %d lives", span.PID)
			}
			if text := first.stderr.String(); strings.Contains(text, "cannot be killed") {
				t.Errorf("it says %q", text)
			}
			t.Logf("figure: a child of another user was dead %v before run ended", time.Duration(ended-w.lastOf(span.Token)).Round(time.Millisecond))
		})
	}
}

// Commands of one control group do not harm each other: one that is guarded is not
// taken for what a dead guard has left.
func TestControlGroupTogether(t *testing.T) {
	t.Parallel()
	w := ofNobody(t)
	w.delegate()
	first := w.runActor([]string{"a"}, "-stdin")
	span := w.after(0, 1)
	w.holdfast("run", "b", "--", "true").wantStatus(0)
	began := life.Now()
	await(t, "the first lives on", func() bool { return w.lastOf(span.Token) > began })
	// One whose guard is gone ends, since run does the guard's work, and another does not.
	second := w.runActor([]string{"b"}, "-stdin")
	w.after(span.Token, 1)
	must(t, syscall.Kill(guardOf(t, second), syscall.SIGKILL))
	second.wantStatus(75)
	began = life.Now()
	await(t, "the first lives on", func() bool { return w.lastOf(span.Token) > began })
	first.end()
	first.wantStatus(0)
}

// delegate has the programs of a world run in a control group that their user may divide.
func (w *world) delegate() {
	w.t.Helper()
	root := ""
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(dir + "/cgroup.procs"); err == nil {
			root = dir
		}
	}
	path := filepath.Join(root, filepath.Base(filepath.Dir(w.dir)))
	if err := os.Mkdir(path, 0o755); root == "" || err != nil {
		w.t.Skipf("SKIPPED: no control group can be made here, so what one is good for is not tested: %v", err)
	}
	w.t.Cleanup(func() {
		left, _ := filepath.Glob(path + "/*/cgroup.procs")
		for _, file := range left {
			w.t.Errorf("a control group is left over: %s", file)
			os.Remove(filepath.Dir(file))
		}
		// The kernel keeps a group for as long as a process of it is on its way out.
		await(w.t, "the group of the test goes", func() bool { return os.Remove(path) == nil })
	})
	if _, err := os.Stat(path + "/cgroup.kill"); err != nil {
		w.t.Skip("SKIPPED: this kernel cannot kill a control group, so that is not tested")
	}
	for _, file := range []string{"", "/cgroup.procs", "/cgroup.subtree_control"} {
		must(w.t, os.Chown(path+file, nobody, nobody))
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil { // as systemd does for Delegate=yes
		must(w.t, syscall.Setxattr(path, "user.delegate", []byte("1"), 0))
	}
	w.wrap = append([]string{"sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, path}, w.wrap...)
}

// In a pid namespace whose /proc is that of another nothing is run: the guard would
// look for processes by numbers that are not theirs.
func TestForeignProc(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	w := newWorld(t)
	w.wrap = []string{"unshare", "-p", "-f", "--"}
	for _, args := range [][]string{{"run", "x"}, {"elect", "x"}, {"state", "write", "x"}} {
		p := w.holdfast(append(args, "--", "touch", "ran")...)
		p.wantStatus(70)
		if text := p.stderr.String(); !strings.Contains(text, "/proc is missing, or is that of another pid namespace") ||
			!strings.Contains(text, "unshare --mount-proc") || !strings.Contains(text, "nothing was run") {
			t.Errorf("%v says %q", args, text)
		}
	}
	if _, err := os.Stat(filepath.Join(w.dir, "ran")); err == nil {
		t.Error("the command was run")
	}
	p := w.holdfast("doctor")
	p.wantStatus(1)
	if text := p.stdout.String(); !strings.Contains(text, "FAIL  run") {
		t.Errorf("doctor says %q", text)
	}
	w.wrap = []string{"unshare", "-p", "-f", "--mount-proc", "--"}
	w.runActor([]string{"x"}, "-for", "1ms").wantStatus(0)
}
