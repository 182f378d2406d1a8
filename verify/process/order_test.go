//go:build linux

package process

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// listed are the pids that `holdfast list --json` shows as waiting, in order.
func (w *world) listed(name string) (pids []int) {
	w.t.Helper()
	p := w.holdfast("list", "--json", name)
	p.wantStatus(0)
	for line := range strings.Lines(p.stdout.String()) {
		var info struct {
			Waiters []struct {
				Owner struct{ PID int }
			}
		}
		must(w.t, json.Unmarshal([]byte(line), &info))
		for _, c := range info.Waiters {
			pids = append(pids, c.Owner.PID)
		}
	}
	return pids
}

// The first to come is the first to be served.
func TestOrder(t *testing.T) { onStores(t, order) }

func order(t *testing.T, fresh func(*testing.T) *world) {
	w := fresh(t)
	holder := w.runActor([]string{"x"}, "-stdin")
	w.after(0, 1)
	const n = 20
	var all []*process
	for i := range n {
		var p *process
		if i%2 == 0 {
			p = w.runActor([]string{"-q", "x"}, "-for", "1ms")
		} else {
			p = w.program("hold", "-for", "1ms")
		}
		all = append(all, p)
		w.queued("x", i+1)
		listed := w.listed("x")
		if len(listed) != i+1 || listed[i] != p.Process.Pid {
			t.Fatalf("waiting are %v, want %d as the last", listed, p.Process.Pid)
		}
	}
	late := machine(t)
	holder.end()
	holder.wantStatus(0)
	released := holder.ended
	for _, p := range all {
		p.wantStatus(0)
	}
	slow := late()
	spans := w.spans()
	if len(spans) != n+1 {
		t.Fatalf("%d holds, want %d", len(spans), n+1)
	}
	inTurn(t, spans)
	for i, p := range all {
		if i%2 == 1 && spans[i+1].PID != p.Process.Pid {
			t.Errorf("as number %d came process %d, want %d", i+1, spans[i+1].PID, p.Process.Pid)
		}
		if i%2 == 0 && i > 0 && spans[i+1].Begin < spans[i].Last {
			t.Errorf("number %d began too early", i+1)
		}
	}
	var gaps figures
	for i := range n {
		gaps = append(gaps, time.Duration(spans[i+1].Begin-spans[i].Last))
	}
	limit := 100 * time.Millisecond
	if w.onCassandra() {
		limit *= 10 // it is one of many on this machine
	}
	if gaps.at(0.5) > limit+slow {
		t.Errorf("from one hold to the next it took %v (slowness of the machine %v)", gaps, slow)
	}
	t.Logf("figure: %d processes that queued one after the other were served in that order within %v of the release; from one hold to the next: %v",
		n, time.Duration(spans[n].Begin-released).Round(time.Millisecond), gaps)
}

// leftovers are the records that hold something, by what they are.
func (w *world) leftovers() (left []string) {
	w.t.Helper()
	for _, space := range []driver.Space{driver.Names, driver.Sessions} {
		names, err := w.store.Keys(context.Background(), space, "", 1000)
		must(w.t, err)
		for _, name := range names {
			recs, err := w.store.Load(context.Background(), []driver.Key{{Space: space, Name: name}}, driver.Fresh)
			must(w.t, err)
			if len(recs[0].Value) > 0 {
				left = append(left, fmt.Sprintf("%v %s: %s", space, name, recs[0].Value))
			}
		}
	}
	return left
}

// sweep sweeps until nothing is left and returns how long that took.
func (w *world) sweep() time.Duration {
	w.t.Helper()
	c, err := holdfast.New(w.store.Store, &holdfast.Options{RuntimeDir: filepath.Join(w.runtime, "holdfast")})
	must(w.t, err)
	defer c.Close()
	began := life.Now()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, err := c.Sweep(w.t.Context())
		must(w.t, err)
		left := w.leftovers()
		if len(left) == 0 {
			took := time.Duration(life.Now() - began)
			w.bare()
			return took
		}
		if time.Now().After(end) {
			w.t.Errorf("left over after sweeps:\n%s", strings.Join(left, "\n"))
			return patience
		}
	}
}

// Waiters that are killed, interrupted or out of time leave nothing behind.
func TestWaitersLeave(t *testing.T) {
	t.Parallel()
	onStores(t, waitersLeave)
}

func waitersLeave(t *testing.T, fresh func(*testing.T) *world) {
	t.Parallel()
	w := fresh(t)
	ttl, _ := lease(time.Second)
	wait := 2
	if w.db == "" {
		ttl, wait = 2*ttl, 6 // others are at it, too
	}
	wait *= stretch * stretch // the last comes meanwhile
	slow := machine(t)
	holder := w.runActor([]string{"--ttl", ttl.String(), "x"}, "-stdin")
	token := w.after(0, 1).Token
	var killed []*process
	for i := range 4 {
		if i%2 == 0 {
			killed = append(killed, w.runActor([]string{"-q", "--ttl", ttl.String(), "x"}))
		} else {
			killed = append(killed, w.program("hold", "-ttl", ttl.String()))
		}
		w.queued("x", i+1)
	}
	interrupted := w.runActor([]string{"-q", "--ttl", ttl.String(), "x"})
	w.queued("x", 5)
	late := w.runActor([]string{"--ttl", ttl.String(), "-w", fmt.Sprint(wait), "x"})
	w.queued("x", 6)
	last := w.program("hold", "-ttl", ttl.String(), "-for", "1ms")
	w.queued("x", 7)

	for _, p := range killed {
		p.signal(syscall.SIGKILL)
	}
	interrupted.signal(syscall.SIGINT)
	interrupted.wantStatus(130)
	late.wantStatus(1)
	if !strings.Contains(late.stderr.String(), "gave up") {
		t.Errorf("who gave up says %q", late.stderr.String())
	}
	holder.end()
	holder.wantStatus(0)
	next := w.after(token, 1)
	took := time.Duration(next.Begin - holder.ended)
	last.wantStatus(0)
	if took > time.Second+spare(slow()) {
		t.Errorf("the next held the lock %v after the release", took)
	}
	if info := w.show("x"); len(info.Holders)+len(info.Waiters) != 0 {
		t.Errorf("left: %+v", info)
	}
	swept := w.sweep()
	proofs, err := os.ReadDir(filepath.Join(w.runtime, "holdfast"))
	must(t, err)
	if len(proofs) != 0 {
		t.Errorf("proofs of life are left: %v", proofs)
	}
	if n := len(w.spans()); n != 2 {
		t.Errorf("%d commands have run, want 2", n)
	}
	t.Logf("figure: behind 4 killed, 1 interrupted, 1 out of time the next held the lock %v after the release; nothing was left after %v of sweeping (TTL %v)",
		took.Round(100*time.Microsecond), swept.Round(time.Millisecond), ttl)
}
