//go:build linux

package process

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// A deed is something that a process may die of at each of its calls.
type deed struct {
	what string
	// others are those who have to be there: they are started before, and
	// settled is what they do when the process is dead or done.
	others func(t *testing.T, w *world) (during, settled func())
}

func nothing() {}

var deeds = []deed{
	{"acquire", nil},
	{"renew", nil},
	{"release", nil},
	{"queue", func(t *testing.T, w *world) (during, settled func()) {
		_, text := lease(time.Second)
		holder := w.host("victim").program("hold", "-ttl", text)
		w.after(0, 1)
		return func() { holder.end(); holder.wantStatus(0) }, nothing
	}},
	{"hand on", func(t *testing.T, w *world) (during, settled func()) {
		var waiter *process
		_, text := lease(time.Second)
		return func() { waiter = w.host("judge").program("hold", "-ttl", text, "-for", "1ms") },
			func() { waiter.wantStatus(0) }
	}},
	{"declare dead", func(t *testing.T, w *world) (during, settled func()) {
		_, text := lease(time.Second)
		dead := w.host("victim").program("hold", "-ttl", text)
		w.after(0, 1)
		dead.signal(syscall.SIGKILL)
		<-dead.done
		return nothing, nothing
	}},
	{"break", breakOne},
	{"break now", breakOne},
}

func breakOne(t *testing.T, w *world) (during, settled func()) {
	_, text := lease(time.Second)
	holder := w.host("judge").program("hold", "-ttl", text)
	w.after(0, 1)
	return nothing, func() { holder.end(); holder.wantStatus(0) }
}

// A point is a moment before or after the n-th call of a kind.
type point struct {
	kind  string
	n     int
	after bool
}

// points are those in some calls; of reads, which may be polls, the first ones.
func points(calls []string) (all []point) {
	seen := make(map[string]int)
	for _, kind := range calls {
		seen[kind]++
		if n := seen[kind]; strings.HasPrefix(kind, "write") || n <= 3 {
			all = append(all, point{kind, n, false}, point{kind, n, true})
		}
	}
	return all
}

// act has a process do the deed and die at the point, if it gets there. It
// returns when it was dead, or which calls it made.
func (d deed) act(t *testing.T, w *world, at point) (dead int64, calls []string) {
	t.Helper()
	during, settled := nothing, nothing
	if d.others != nil {
		during, settled = d.others(t, w)
	}
	_, text := lease(time.Second)
	p := w.host("victim").program("crash", "-ttl", text, "-do", d.what,
		"-kind", at.kind, fmt.Sprintf("-at=%d", at.n), fmt.Sprintf("-after=%v", at.after))
	switch d.what {
	case "queue":
		await(t, "the process waits, or is dead", func() bool { return p.isDone() || len(w.show("x").Waiters) > 0 })
	case "hand on":
		await(t, "the process holds, or is dead", func() bool { return p.isDone() || len(w.show("x").Holders) > 0 })
	}
	during()
	status := p.status()
	settled()
	switch status {
	case 137:
		return p.ended, nil
	case 0:
		must(t, json.Unmarshal(p.stdout.Bytes(), &calls))
		return 0, calls
	}
	t.Fatalf("it ended with status %d: %s", status, p.stderr.String())
	return 0, nil
}

func (p *process) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// A process that is killed before or after any one of its calls to the store
// leaves nothing that blocks: the lock is obtained within a TTL by who waits, and
// within two by who asks again and again; nothing is left over after sweeps. In the
// normal size of each call one side is tried on SQLite, the other on a directory: what
// becomes of a process between its calls is up to the client, not to the store.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	if *full {
		onStores(t, crashPoints)
		return
	}
	for store, fresh := range onFiles {
		t.Run(store, func(t *testing.T) {
			crashAt(t, fresh, func(i int) bool { return (i/2+i)%2 == 0 == (store == "sqlite") })
		})
	}
}

// crashPoints are all of them.
func crashPoints(t *testing.T, fresh func(*testing.T) *world) {
	crashAt(t, fresh, func(int) bool { return true })
}

// crashAt are those that one store has to try.
func crashAt(t *testing.T, fresh func(*testing.T) *world, try func(i int) bool) {
	t.Parallel()
	var mu sync.Mutex
	waited, tried := make(map[string]figures), make(map[string]figures)
	missed := make(map[string]int)
	t.Run("each", func(t *testing.T) {
		for _, d := range deeds {
			t.Run(d.what, func(t *testing.T) {
				t.Parallel()
				_, calls := d.act(t, fresh(t), point{})
				t.Logf("figure: %s takes %d calls: %v", d.what, len(calls), calls)
				for i, at := range points(calls) {
					for _, waits := range []bool{true, false} {
						if !try(i) || !*full && waits != (i/2%2 == 0) {
							continue
						}
						t.Run(fmt.Sprintf("%s %d after=%v waits=%v", at.kind, at.n, at.after, waits), func(t *testing.T) {
							t.Parallel()
							took, ok := d.crash(t, fresh(t), at, waits)
							mu.Lock()
							defer mu.Unlock()
							switch {
							case !ok:
								missed[d.what]++
							case waits:
								waited[d.what] = append(waited[d.what], took)
							default:
								tried[d.what] = append(tried[d.what], took)
							}
						})
					}
				}
			})
		}
	})
	for _, d := range deeds {
		t.Logf("figure: killed at each call of %s: obtained by who waits after: %v; by run -n again and again after: %v; calls not reached %d (TTL %v)",
			d.what, waited[d.what], tried[d.what], missed[d.what], time.Duration(stretch)*time.Second)
	}
}

// crash has a process die of one call and judges what it has left; ok is false
// if it did not come to that call.
func (d deed) crash(t *testing.T, w *world, at point, waits bool) (took time.Duration, ok bool) {
	ttl, text := lease(time.Second)
	dead, _ := d.act(t, w, at)
	if dead == 0 {
		return 0, false
	}
	judge := w.host("judge")
	late := machine(t)
	if waits {
		known := len(w.spans())
		p := judge.program("hold", "-ttl", text, "-for", "1ms")
		p.wantStatus(0)
		spans := w.spans()
		if len(spans) != known+1 {
			t.Fatalf("%d holds, want %d", len(spans), known+1)
		}
		took = time.Duration(slices.MaxFunc(spans, func(a, b life.Span) int { return int(a.Token - b.Token) }).Begin - dead)
	} else {
		for {
			p := judge.holdfast("run", "-n", "--ttl", text, "x", "--", "true")
			status := p.status()
			took = time.Duration(p.ended - dead)
			if status == 0 {
				break
			}
			if status != 1 {
				t.Fatalf("run -n ended with %d: %s", status, p.stderr.String())
			}
			if took > 20*ttl {
				t.Fatalf("run -n does not obtain the lock %v after the death: %s", took, p.stderr.String())
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	slow := late()
	limit := ttl + 500*time.Millisecond + slow
	if !waits {
		limit += ttl
	}
	if took > limit {
		t.Errorf("the lock was obtained only %v after the death; TTL %v (slowness of the machine %v)", took, ttl, slow)
	}
	if d.what != "break now" { // which does not wait for the holder
		inTurn(t, w.spans())
	}
	w.sweep()
	return took, true
}
