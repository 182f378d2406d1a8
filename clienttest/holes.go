package clienttest

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// RunHoles tests over a store that clients close the holes of other locks that docs/holes.md
// lists: calls that are late, lost, slow or repeated, clocks that are wrong, processes that die
// between two steps. A subtest is named after its holes, such as "G3 S4 heartbeat of the dead",
// so that -run finds those of a hole. It runs inside testing/synctest bubbles, for stores in
// memory only; open is as for Run. A case in which rows vanish or come back needs a
// faultstore.Restorer, and one in which ages are bent a store with a clock; else it is skipped.
func RunHoles(t *testing.T, open func(t *testing.T) driver.Store) {
	for _, group := range [][]holeCase{takeoverHoles, answerHoles, tokenHoles, clockHoles, workHoles, readerHoles, processHoles, heartbeatHoles} {
		for _, c := range group {
			t.Run(c.holes+" "+c.name, func(t *testing.T) {
				t.Parallel()
				for _, run := range c.runs {
					inBubble(t, open, 24*time.Hour, clientCase{c.name, c.rule, run, c.need})
				}
			})
		}
	}
}

// A holeCase checks the rule that closes a hole.
type holeCase struct {
	name  string
	holes string // as docs/holes.md calls them
	rule  string
	runs  []func(h *clients)      // each with a store of its own
	need  func(driver.Store) bool // nil: every store
}

func once(run func(h *clients)) []func(*clients) { return []func(*clients){run} }

// each returns the runs of a case, one with each value.
func each[V any](run func(h *clients, v V), values ...V) (runs []func(*clients)) {
	for _, v := range values {
		runs = append(runs, func(h *clients) {
			defer func() {
				if h.Failed() {
					h.Logf("with %v", v)
				}
			}()
			run(h, v)
		})
	}
	return runs
}

func restores(s driver.Store) bool { _, ok := s.(faultstore.Restorer); return ok }

// restore puts a record back as it was.
func (h *clients) restore(k driver.Key, r driver.Record) { h.store.(faultstore.Restorer).Restore(k, r) }

// beat is how often a holder beats.
const beat = holdfast.DefaultTTL / 3

// join is a client and its way to the store, which notifies it of nothing.
func (h *clients) join() (*holdfast.Client, *wire.Wire) { return h.joinAs(&holdfast.Options{}) }

func (h *clients) joinAs(o *holdfast.Options) (*holdfast.Client, *wire.Wire) {
	h.Helper()
	way := wire.New(h.handle())
	c := h.open(way, o)
	h.Cleanup(func() { c.Close() })
	return c, way
}

// take makes a client take "a", within some time.
func (h *clients) take(c *holdfast.Client, within time.Duration, opts ...holdfast.Option) *holdfast.Lock {
	h.Helper()
	return h.granted(h.ask(c, "a", opts...), within)
}

// share makes a client take "a" together with others.
func (h *clients) share(c *holdfast.Client) *holdfast.Lock {
	h.Helper()
	return h.take(c, time.Minute, holdfast.Shared())
}

// refused makes a client try to take "a", which is held.
func (h *clients) refused(c *holdfast.Client) {
	h.Helper()
	_, err := c.TryAcquire(h.ctx, "a")
	h.is("a try to take what another holds", err, holdfast.ErrHeld)
}

// holds fails unless a lock is held, and the store shows it so.
func (h *clients) holds(l *holdfast.Lock) {
	h.Helper()
	if info := h.show(l.Name()); l.Err() != nil || len(info.Holders) != 1 || info.Holders[0].Token != l.Token() {
		h.Fatalf("token %d has to hold %q: its holder has %v, and in the store are %+v", l.Token(), l.Name(), l.Err(), info.Holders)
	}
}

// lost fails unless a lock has been lost.
func (h *clients) lost(l *holdfast.Lock) {
	h.Helper()
	h.is("Err of a lock that was lost", l.Err(), holdfast.ErrLost)
}

// fenced fails unless the fence of the store refuses a lock's token.
func (h *clients) fenced(l *holdfast.Lock) {
	h.Helper()
	_, err := h.record("a").Fence("a", l.Token(), 0)
	h.is("the fence of the store for an old token", err, holdfast.ErrLost)
}

// session is the key of the session of the first holder of "a".
func (h *clients) session() driver.Key {
	h.Helper()
	return driver.Sessions.Key(h.show("a").Holders[0].Owner.Session)
}

// sweep removes everything that is no longer needed, and returns how many rows went.
func (h *clients) sweep() (rows int) {
	h.Helper()
	for range 6 {
		if _, err := h.look().Sweep(h.ctx); err != nil {
			h.Fatal(err)
		}
		time.Sleep(holdfast.DefaultTTL)
	}
	return h.sweepRows()
}

// sweepRows removes the rows that hold nothing.
func (h *clients) sweepRows() (rows int) {
	h.Helper()
	rows, err := h.store.Sweep(h.ctx, 0)
	if err != nil {
		h.Fatal(err)
	}
	return rows
}

// write writes to a record that nobody else has written to since.
func (h *clients) write(k driver.Key, old int64, value []byte) {
	h.Helper()
	if out, err := h.store.CompareAndSwap(h.ctx, []driver.Write{{Key: k, Old: old, Value: value}}); err != nil || !out[0].Won {
		h.Fatalf("a write to %s %q: %+v, error %v", k.Space, k.Name, out, err)
	}
}

// try makes a client take a name that is free, or whose holder is known to be dead.
func (h *clients) try(c *holdfast.Client, name string) *holdfast.Lock {
	h.Helper()
	l, err := c.TryAcquire(h.ctx, name)
	if err != nil {
		h.Fatal(err)
	}
	return l
}

const always = math.MaxInt

// keep keeps back the next n writes of a kind. Their outcome is ambiguous to the client that sent
// them.
func keep(w *wire.Wire, kind func(driver.Write) bool, n int) *late {
	l := &late{}
	w.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !kind(writes[0]) || len(l.writes) == n {
			return send()
		}
		l.writes = append(l.writes, writes...)
		return nil, faultstore.ErrFault
	})
	return l
}

// follows is the kind of a claim on a lock that is not free.
func follows(w driver.Write) bool { return wire.IsClaim(w) && w.Old != driver.IfEmpty }

// before calls do before each write of a kind goes on.
func before(w *wire.Wire, kind func(driver.Write) bool, do func()) {
	w.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
		if kind(writes[0]) {
			do()
		}
		return send()
	})
}

// A late is a set of writes that are still on their way.
type late struct {
	mu     sync.Mutex
	writes []driver.Write
}

// arrive makes late writes arrive, and reports whether one of them wins.
func (l *late) arrive(h *clients) (won bool) {
	h.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.writes) == 0 {
		h.Fatal("nothing was kept back")
	}
	for _, w := range l.writes {
		out, err := h.store.CompareAndSwap(h.ctx, []driver.Write{w})
		if err != nil {
			h.Fatal(err)
		}
		won = won || out[0].Won
	}
	return won
}

// lose makes late writes arrive, none of which may win.
func (l *late) lose(h *clients) {
	h.Helper()
	if l.arrive(h) {
		h.Fatalf("a late write has won: %+v", l.writes)
	}
}

// endOf tells when the context of a lock ends.
func endOf(l *holdfast.Lock) <-chan time.Time {
	ended := make(chan time.Time, 1)
	context.AfterFunc(l.Context(), func() { ended <- time.Now() })
	return ended
}
