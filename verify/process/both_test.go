//go:build linux

package process

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// An operator who kills or stops all that is called holdfast, or has the command in its command
// line, does not meet the guard: it ends what it guards.
func TestKillByName(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("pkill"); err != nil {
		t.Skip("SKIPPED: there is no pkill, so its patterns are not tried")
	}
	for _, sig := range []string{"KILL", "STOP"} {
		for i, pattern := range [][]string{{"holdfast"}, {"-x", "holdfast"}, {"-f", "holdfast"}, {"-f", "actor"}} {
			t.Run(sig+strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				first := w.runActor([]string{"-q", "--ttl", twoSeconds(), "x"}, "-alone", w.dir, "-deaf", "-brood", "-shut")
				token := w.after(0, members).Token
				next := w.runActor([]string{"-q", "--ttl", twoSeconds(), "x"}, "-for", "1ms", "-alone", w.dir)
				w.queued("x", 1)
				guard := children(first.Process.Pid)[0] // the only one while the guard lives
				// Of our own processes only: the session of the first is not that of the next.
				session := strconv.Itoa(first.Process.Pid)
				out, err := exec.Command("pkill", slices.Concat([]string{"-" + sig, "-e", "-s", session}, pattern)...).CombinedOutput()
				if err != nil || strings.Contains(string(out), fmt.Sprintf("(pid %d)", guard)) {
					t.Errorf("the guard is process %d; pkill: %v: %s", guard, err, out)
				}
				next.wantStatus(0)
				inTurn(t, w.spans())
				first.signal(syscall.SIGCONT)
				first.status()
				w.after(token, 1)
			})
		}
	}
}

// bothKilled kills a run and its guard at the same moment.
func bothKilled(t *testing.T, p *process) {
	t.Helper()
	guard := guardOf(t, p)
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		must(t, syscall.Kill(guard, sig))
		p.signal(sig)
	}
}

// When run and guard are both killed, what they have left behind in their control
// group is dead before the next command of that group begins.
func TestBothKilledInControlGroup(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"root", "nobody"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := ofNobody(t)
			if how == "root" {
				w.wrap = nil
			}
			w.delegate()
			orphan := w.actor("-alone", w.dir, "-deaf", "-shut")
			first := w.holdfast(append([]string{"run", "-q", "--ttl", twoSeconds(), "x", "--", "sh", "-c", `setsid "$@" & wait`, "sh"}, orphan...)...)
			span := w.after(0, 1)
			next := w.runActor([]string{"-q", "--ttl", twoSeconds(), "x"}, "-for", "1ms", "-alone", w.dir)
			w.queued("x", 1)
			bothKilled(t, first)
			struck := life.Now()
			next.wantStatus(0)
			inTurn(t, w.spans())
			t.Logf("figure: run and guard killed at once, %s: the orphan was dead %v later, the next command began %v later", how,
				time.Duration(w.lastOf(span.Token)-struck).Round(time.Millisecond), time.Duration(w.after(span.Token, 1).Begin-struck).Round(time.Millisecond))
		})
	}
}

// What docs/command.md and help advise where that matters: a command in a pid namespace of its
// own dies with its guard, all of it, whoever else is gone.
func TestBothKilledWithNamespace(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	w := newWorld(t)
	for range number(3, 20) {
		command := append([]string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}, w.actor("-alone", w.dir, "-deaf", "-shut", "-brood")...)
		before := w.newest()
		first := w.holdfast(append([]string{"run", "-q", "--ttl", twoSeconds(), "x", "--"}, command...)...)
		span := w.after(before, members).Token
		next := w.runActor([]string{"-q", "--ttl", twoSeconds(), "x"}, "-for", "1ms", "-alone", w.dir)
		w.queued("x", 1)
		bothKilled(t, first)
		struck := life.Now()
		next.wantStatus(0)
		if over := time.Duration(w.lastOf(span) - struck); over > 100*time.Millisecond {
			t.Errorf("the command lived on for %v", over)
		}
	}
	inTurn(t, w.spans())
}
