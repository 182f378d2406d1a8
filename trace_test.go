package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
)

// A notebook is a trace that writes down the events that it gets, by the names of its functions.
type notebook struct {
	mu   sync.Mutex
	told map[string][]told
}

type told struct {
	ctx context.Context
	holdfast.Event
}

// trace has every function of a trace set.
func (n *notebook) trace() *holdfast.Trace {
	n.told = make(map[string][]told)
	t := new(holdfast.Trace)
	v := reflect.ValueOf(t).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		v.Field(i).Set(reflect.ValueOf(func(ctx context.Context, e holdfast.Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.told[name] = append(n.told[name], told{ctx, e})
		}))
	}
	return t
}

// last is the last event of a kind, and forgets all of that kind.
func (n *notebook) last(t *testing.T, name string) told {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.told[name]
	if len(all) == 0 {
		t.Errorf("%s was not told", name)
		return told{ctx: context.Background()}
	}
	delete(n.told, name)
	return all[len(all)-1]
}

// count is how many events of a kind have come since the last one was asked for.
func (n *notebook) count(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.told[name])
}

type mark struct{}

// Every event reaches the trace, with what belongs to it and the context of the call that brought it about.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.WithValue(t.Context(), mark{}, "ours")
		store := memory.New()
		var book notebook
		c := newClient(t, store, &holdfast.Options{TTL: 3 * time.Second, Trace: book.trace()})
		other := newClient(t, store, &holdfast.Options{TTL: 3 * time.Second})
		defer other.Close()
		ours := func(name string, e told) {
			t.Helper()
			if e.ctx.Value(mark{}) != "ours" {
				t.Errorf("%s was told with another context", name)
			}
		}

		l, err := c.Acquire(ctx, "a", holdfast.Shared(), holdfast.Reason("rent"))
		if err != nil {
			t.Fatal(err)
		}
		e := book.last(t, "Acquired")
		if ours("Acquired", e); e.Name != "a" || e.Token != l.Token() || e.Slots != 0 || e.Reason != "rent" || e.Detached {
			t.Errorf("Acquired: %+v", e.Event)
		}
		if e = book.last(t, "StoreCall"); e.Operation != "compare and swap" || e.Rows == 0 || e.Won != e.Rows || e.Err != nil {
			t.Errorf("StoreCall: %+v", e.Event)
		}
		time.Sleep(1500 * time.Millisecond)
		if e = book.last(t, "Heartbeat"); e.Err != nil || time.Until(e.Until) < time.Second || e.TTL != 3*time.Second || len(e.Session) != 32 {
			t.Errorf("Heartbeat: %+v", e.Event)
		}
		l.Release(t.Context())
		if e = book.last(t, "Released"); e.Token != l.Token() || e.Held != 1500*time.Millisecond || e.Err != nil {
			t.Errorf("Released: %+v", e.Event)
		}
		ours("Released", e)

		held, err := other.Acquire(ctx, "b")
		if err != nil {
			t.Fatal(err)
		}
		c.TryAcquire(ctx, "b")
		if e = book.last(t, "Refused"); e.Name != "b" || !errors.Is(e.Err, holdfast.ErrHeld) {
			t.Errorf("Refused: %+v", e.Event)
		}
		ours("Refused", e)
		c.Acquire(ctx, "b", holdfast.MaxWait(time.Second))
		ours("Queued", book.last(t, "Queued"))
		if e = book.last(t, "GaveUp"); e.Name != "b" || e.Waited < time.Second || !errors.Is(e.Err, holdfast.ErrHeld) {
			t.Errorf("GaveUp: %+v", e.Event)
		}
		ours("GaveUp", e)
		c.AcquireAll(ctx, []string{"a", "b"}, holdfast.MaxWait(0))
		if e = book.last(t, "Refused"); e.Name != "b" || !errors.Is(e.Err, holdfast.ErrHeld) {
			t.Errorf("Refused, of a set: %+v", e.Event)
		}

		book.last(t, "Acquired") // of "a", which the set gave back
		book.last(t, "Released")
		set, err := c.AcquireAll(ctx, []string{"g", "h"})
		if err != nil {
			t.Fatal(err)
		}
		if n := book.count("Acquired"); n != 2 {
			t.Errorf("of a set of two %d locks were told", n)
		}
		set.Release(t.Context())
		if n := book.count("Released"); n != 2 {
			t.Errorf("of a set of two the release of %d locks was told", n)
		}
		book.last(t, "Acquired")
		book.last(t, "Released")
		go func() {
			<-held.Context().Done()
			held.Release(t.Context())
		}()
		if err := c.Break(ctx, "b", held.Token(), "stuck"); err != nil {
			t.Fatal(err)
		}
		if e = book.last(t, "Broken"); e.Name != "b" || e.Token != held.Token() || e.Session == "" || e.Reason != "stuck" {
			t.Errorf("Broken: %+v", e.Event)
		}
		ours("Broken", e)

		claim, err := c.AcquireFor(ctx, "d", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if e = book.last(t, "Acquired"); e.Token != claim.Token || !e.Detached {
			t.Errorf("Acquired, detached: %+v", e.Event)
		}
		if e = book.last(t, "Released"); e.Token != claim.Token || !e.Detached {
			t.Errorf("Released, detached: %+v", e.Event)
		}
		if e = book.last(t, "SessionEnded"); e.Session != claim.Owner.Session || e.Reason != "" {
			t.Errorf("SessionEnded, left alone: %+v", e.Event)
		}
		if err := c.ReleaseToken(ctx, "d", claim.Token); err != nil {
			t.Fatal(err)
		}
		if e = book.last(t, "Returned"); e.Token != claim.Token || !e.Detached {
			t.Errorf("Returned: %+v", e.Event)
		}

		// Another dies, and its lock is taken over.
		cut := &wire.Cut{Store: store}
		dead := newClient(t, cut, &holdfast.Options{TTL: 3 * time.Second, RuntimeDir: t.TempDir()})
		if _, err := dead.Acquire(ctx, "e"); err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		if l, err = c.Acquire(ctx, "e"); err != nil {
			t.Fatal(err)
		}
		if e = book.last(t, "Suspected"); e.Session == "" || e.Name != "e" {
			t.Errorf("Suspected: %+v", e.Event)
		}
		if e = book.last(t, "DeclaredDead"); e.Session == "" || e.Name != "e" || e.Reason == "" {
			t.Errorf("DeclaredDead: %+v", e.Event)
		}

		if err := other.Break(ctx, "e", l.Token(), "test"); err != nil {
			t.Fatal(err)
		}
		e = book.last(t, "Lost")
		var lost *holdfast.LostError
		if ours("Lost", e); e.Token != l.Token() || e.Reason == "" || !errors.As(e.Err, &lost) || lost.Token != l.Token() {
			t.Errorf("Lost: %+v", e.Event)
		}
		rec := driver.Record{}
		_, err = rec.Fence("e", l.Token(), 0)
		if got := l.FenceFailed(ctx, err); got != err {
			t.Errorf("FenceFailed returned %v", got)
		}
		if e = book.last(t, "FenceRefused"); e.Token != l.Token() || !errors.Is(e.Err, holdfast.ErrLost) {
			t.Errorf("FenceRefused: %+v", e.Event)
		}
		if err := c.SetStoreTTL(ctx, 2*time.Second); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if _, err = other.Acquire(ctx, "f"); err != nil {
			t.Fatal(err)
		}
		if n := book.count("Released"); n > 1 {
			t.Errorf("Close released %d locks, and one at most was held", n)
		}
	})
}

// What is acquired less what has ended is what is held: at no moment negative, and nothing in the
// end, with sets, losses, requests that give up in the moment of the grant, and Close.
func TestTraceAsGauge(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			var held, acquired atomic.Int64
			down := func(context.Context, holdfast.Event) {
				if held.Add(-1) < 0 {
					t.Errorf("seed %d: the gauge is negative", seed)
				}
			}
			trace := &holdfast.Trace{
				Acquired: func(context.Context, holdfast.Event) { acquired.Add(1); held.Add(1) },
				Released: down, Lost: down,
			}
			var all sync.WaitGroup
			for i := range uint64(3) {
				c := newClient(t, store, &holdfast.Options{TTL: time.Second, Trace: trace})
				for g := range uint64(3) {
					r := rand.New(rand.NewPCG(seed, i*3+g))
					all.Go(func() {
						for range 30 {
							name := []string{"a", "b", "c"}[r.IntN(3)]
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(20))*time.Millisecond)
							rest := func() { time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond) }
							switch r.IntN(6) {
							case 5:
								if claim, err := c.AcquireFor(ctx, name, time.Second); err == nil && r.IntN(4) > 0 {
									c.ReleaseToken(t.Context(), name, claim.Token) // else it ends by itself
								}
							case 4:
								if l, err := c.TryAcquire(t.Context(), name, holdfast.Slots(1+r.IntN(2))); err == nil {
									rest()
									l.Release(t.Context())
								}
							case 0:
								if s, err := c.AcquireAll(ctx, []string{"a", "c", "b"}[r.IntN(2):]); err == nil {
									rest()
									s.Release(t.Context())
								}
							case 1:
								if info, err := c.Show(t.Context(), name); err == nil && len(info.Holders) > 0 {
									c.BreakNow(t.Context(), name, info.Holders[0].Token, "test")
								}
							default:
								if l, err := c.Acquire(ctx, name); err == nil {
									rest()
									l.Release(t.Context())
								}
							}
							cancel()
						}
					})
				}
				time.AfterFunc(time.Duration(rand.New(rand.NewPCG(seed, i)).IntN(300))*time.Millisecond, func() { c.Close() })
				defer c.Close()
			}
			all.Wait()
			synctest.Wait()
			if n := held.Load(); n != 0 {
				t.Errorf("seed %d: nothing is held, and the gauge says %d", seed, n)
			}
			if acquired.Load() == 0 {
				t.Errorf("seed %d: nothing was acquired", seed)
			}
		})
	}
}

// A trace may use the client: no mutex is held.
func TestTraceHoldsNoMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *holdfast.Client
		var asked atomic.Int64
		ask := func(ctx context.Context, e holdfast.Event) {
			if e.Name != "" {
				c.Show(t.Context(), e.Name)
				asked.Add(1)
			}
		}
		store := memory.New()
		c = newClient(t, store, &holdfast.Options{Trace: &holdfast.Trace{
			Queued: ask, Acquired: ask, Refused: ask, GaveUp: ask, Released: ask, Lost: ask, Broken: ask, Suspected: ask, DeclaredDead: ask,
			Heartbeat: func(ctx context.Context, e holdfast.Event) { c.StoreTTL(t.Context()) },
		}})
		other := newClient(t, store, nil)
		defer other.Close()
		for range 3 {
			l, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			go c.Acquire(t.Context(), "a", holdfast.MaxWait(time.Minute))
			c.TryAcquire(t.Context(), "a")
			time.Sleep(10 * time.Second)
			if err := other.BreakNow(t.Context(), "a", l.Token(), "test"); err != nil {
				t.Fatal(err)
			}
			<-l.Context().Done()
			l.Release(t.Context())
			time.Sleep(2 * time.Minute)
			c.Break(t.Context(), "a", first(t, c, "a"), "test")
		}
		c.Close()
		if asked.Load() < 9 {
			t.Errorf("asked %d times", asked.Load())
		}
	})
}

// first is the token of a name's first holder, or 0.
func first(t *testing.T, c *holdfast.Client, name string) int64 {
	info, err := c.Show(t.Context(), name)
	if err != nil || len(info.Holders) == 0 {
		return 0
	}
	return info.Holders[0].Token
}

// Two traces are both told, of everything, the first one first.
func TestTracesTogether(t *testing.T) {
	v := reflect.TypeFor[holdfast.Trace]()
	for i := range v.NumField() {
		name := v.Field(i).Name
		var order []int
		one := func(n int) *holdfast.Trace {
			t := new(holdfast.Trace)
			reflect.ValueOf(t).Elem().Field(i).Set(reflect.ValueOf(func(context.Context, holdfast.Event) { order = append(order, n) }))
			return t
		}
		call := func(t *holdfast.Trace) {
			reflect.ValueOf(t).Elem().Field(i).Call([]reflect.Value{reflect.ValueOf(context.Background()), reflect.ValueOf(holdfast.Event{})})
		}
		var none *holdfast.Trace
		call(one(1).And(one(2)))
		call(none.And(one(3)))
		call(one(4).And(none))
		call(one(5).And(new(holdfast.Trace)))
		call(new(holdfast.Trace).And(one(6)))
		if !reflect.DeepEqual(order, []int{1, 2, 3, 4, 5, 6}) {
			t.Errorf("%s: told %v", name, order)
		}
	}
	if none := (*holdfast.Trace)(nil).And(nil); none != nil {
		t.Error("two that are nil are not nil")
	}
}

// BenchmarkTrace is what a trace costs that is there and has no function: nothing that could be
// measured.
func BenchmarkTrace(b *testing.B) {
	for name, trace := range map[string]*holdfast.Trace{"none": nil, "without functions": new(holdfast.Trace)} {
		b.Run(name, func(b *testing.B) {
			c, err := holdfast.New(memory.New(), &holdfast.Options{RuntimeDir: "/dev/null", Trace: trace})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			b.ReportAllocs()
			for range b.N {
				l, err := c.Acquire(b.Context(), "a")
				if err != nil {
					b.Fatal(err)
				}
				l.Release(b.Context())
			}
		})
	}
}
