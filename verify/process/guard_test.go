//go:build linux

package process

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// family is a command that ignores requests to end, has a child in another
// session and an orphan; all of them leave their lives.
func (w *world) family(flags ...string) *process {
	return w.runActor(slices.Concat([]string{"-q"}, flags, []string{"x"}), "-alone", w.dir, "-deaf", "-brood")
}

const members = 3

// An attack is what happens to `holdfast run` or its guard.
type attack struct {
	name   string
	strike func(t *testing.T, p *process)
	after  func(p *process) // when the next holds the lock
	status int              // of `holdfast run` then
	atOnce bool             // the lock is free at once, also for another host
	soon   bool             // for the same host
	wakes  bool             // run goes on when the command is dead, and gives the lock back
}

var attacks = []attack{
	{
		name:   "run killed",
		strike: func(t *testing.T, p *process) { p.signal(syscall.SIGKILL) },
		status: 137, soon: true,
	}, {
		name:   "run stopped",
		strike: func(t *testing.T, p *process) { p.signal(syscall.SIGSTOP) },
		after:  func(p *process) { p.signal(syscall.SIGCONT) },
		status: 75, wakes: true,
	}, {
		name:   "guard killed",
		strike: func(t *testing.T, p *process) { syscall.Kill(guardOf(t, p), syscall.SIGKILL) },
		status: 75, soon: true, atOnce: true,
	}, {
		name: "guard stopped, run killed, guard continued",
		strike: func(t *testing.T, p *process) {
			guard := guardOf(t, p)
			syscall.Kill(guard, syscall.SIGSTOP)
			p.signal(syscall.SIGKILL)
			await(t, "run is dead", func() bool { return state(p.Process.Pid) == 'Z' || state(p.Process.Pid) == 0 })
			syscall.Kill(guard, syscall.SIGCONT)
		},
		status: 137, soon: true,
	},
}

// Whatever becomes of `holdfast run` or of its guard: at no moment are two
// commands of a name alive, with all they started.
func TestNeverTwoCommands(t *testing.T) {
	t.Parallel()
	for store, fresh := range onFiles {
		for i, a := range attacks {
			if store == "dir" && i > 0 && !*full {
				continue // the guard does not know of stores; all of them in the full size
			}
			for _, hosts := range []string{"a", "ab"} {
				where := "same host"
				if len(hosts) > 1 {
					where = "another host"
				}
				t.Run(store+"/"+a.name+"/"+where, func(t *testing.T) {
					t.Parallel()
					neverTwo(t, fresh(t), a, hosts, where)
				})
			}
		}
	}
}

func neverTwo(t *testing.T, w *world, a attack, hosts, where string) {
	var all []*world
	for _, h := range hosts {
		all = append(all, w.host(string(h)))
	}
	ttl, text := lease(2 * time.Second)
	late := machine(t)
	holder := all[0].family("--ttl", text)
	token := w.after(0, members).Token
	var took, beats, outlived figures
	for i := range number(3, 20) {
		next := all[(i+1)%len(all)].family("--ttl", text)
		w.queued("x", 1)
		session := w.show("x").Holders[0].Owner.Session
		struck, beat := life.Now(), w.lastBeat(session)
		a.strike(t, holder)
		span := w.after(token, members)
		took = append(took, time.Duration(span.Begin-struck))
		beats = append(beats, time.Duration(span.Begin-beat))
		outlived = append(outlived, time.Duration(w.lastOf(token)-struck))
		if a.after != nil {
			a.after(holder)
		}
		holder.wantStatus(a.status)
		if text := holder.stderr.String(); a.status == 75 && !strings.Contains(text, `lost "x"`) {
			t.Errorf("the end of the lock is told as %q", text)
		}
		holder, token = next, span.Token
	}
	holder.signal(syscall.SIGKILL)
	<-holder.done
	slow := late()
	inTurn(t, w.spans())
	if least := slices.Min(beats); !a.atOnce && !a.wakes && !(a.soon && where == "same host") && least < ttl {
		t.Errorf("the next command came %v after the last heartbeat, before the TTL of %v", least, ttl)
	}
	switch {
	case a.atOnce || a.soon && where == "same host":
		if took.at(1) > 300*time.Millisecond+slow {
			t.Errorf("the next command came only after %v (slowness of the machine %v)", took, slow)
		}
	case a.wakes:
		if took.at(1) > ttl-margin(ttl)+300*time.Millisecond+slow {
			t.Errorf("the next command came only after %v, though the window ends after %v (slowness of the machine %v)", took, ttl-margin(ttl), slow)
		}
	case took.at(1) > ttl+time.Second+300*time.Millisecond+slow:
		t.Errorf("the next command came only after %v; TTL %v", took, ttl)
	}
	t.Logf("figure: %s, %s: never two commands (%d processes); they outlived the attack by %v; the next after %v (TTL %v)",
		a.name, where, len(w.spans()), outlived, took, ttl)
}

// lastOf is the last moment at which anything of a hold lived.
func (w *world) lastOf(token int64) (last int64) {
	for _, s := range w.spans() {
		if s.Token == token {
			last = max(last, s.Last)
		}
	}
	return last
}

// A command whose `run` is stopped is dead before the lease can go to another,
// also when nobody waits.
func TestStoppedRunAlone(t *testing.T) {
	t.Parallel()
	for store, fresh := range onFiles {
		for _, ttl := range []time.Duration{time.Second, 2 * time.Second} {
			t.Run(fmt.Sprintf("%s/%v", store, ttl), func(t *testing.T) {
				t.Parallel()
				stoppedAlone(t, fresh(t), ttl)
			})
		}
	}
}

func stoppedAlone(t *testing.T, w *world, ttl time.Duration) {
	ttl, text := lease(ttl)
	var left, over figures
	late := machine(t)
	for range number(2, 10) {
		before := w.newest()
		p := w.family("--ttl", text)
		token := w.after(before, members).Token
		session := w.show("x").Holders[0].Owner.Session
		p.signal(syscall.SIGSTOP)
		await(t, "it stands still", func() bool { return state(p.Process.Pid) == 'T' })
		beat := w.lastBeat(session)
		end := beat + int64(ttl)
		for life.Now() < end+int64(ttl)/2 {
			time.Sleep(5 * time.Millisecond)
		}
		last := w.lastOf(token)
		left = append(left, time.Duration(end-last))
		over = append(over, time.Duration(last-(end-int64(margin(ttl)))))
		p.signal(syscall.SIGCONT)
		p.wantStatus(75)
	}
	slow := late()
	if most := slices.Max(over); most > min(spare(slow), margin(ttl)/2) {
		t.Errorf("the command lived on for %v after the window had closed (slowness of the machine %v)", most, slow)
	}
	t.Logf("figure: run stopped, TTL %v: the command and all it started were dead %v to %v before the TTL was over", ttl,
		slices.Min(left).Round(time.Millisecond), slices.Max(left).Round(time.Millisecond))
}

// newest is the token of the newest hold until now.
func (w *world) newest() (last int64) {
	w.t.Helper()
	for _, s := range w.spans() {
		last = max(last, s.Token)
	}
	return last
}
