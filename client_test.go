package holdfast_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
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

func newClient(t *testing.T, store driver.Store, opts *holdfast.Options) *holdfast.Client {
	t.Helper()
	o := holdfast.Options{RuntimeDir: "/dev/null"}
	if opts != nil {
		o = *opts
		if o.RuntimeDir == "" {
			o.RuntimeDir = "/dev/null"
		}
	}
	c, err := holdfast.New(store, &o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAcquireRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(), nil)
		defer c.Close()
		var last int64
		for range 10 {
			l, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if l.Token() <= last {
				t.Fatalf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
			if _, err := c.TryAcquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrHeld) {
				t.Fatalf("second acquire: %v", err)
			} else {
				t.Log(err)
			}
			ctx := l.Context()
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(context.Cause(ctx), holdfast.ErrReleased) {
				t.Fatalf("cause %v", context.Cause(ctx))
			}
		}
	})
}

func TestManyGoroutinesManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var in atomic.Int32
		var last atomic.Int64
		var wg sync.WaitGroup
		for p := range 5 {
			c := newClient(t, store, nil)
			t.Cleanup(func() { c.Close() })
			for g := range 8 {
				wg.Go(func() {
					for i := range 20 {
						l, err := c.Acquire(t.Context(), "a")
						if err != nil {
							t.Errorf("client %d goroutine %d: %v", p, g, err)
							return
						}
						if n := in.Add(1); n != 1 {
							t.Errorf("%d inside", n)
						}
						if old := last.Swap(l.Token()); old >= l.Token() {
							t.Errorf("token %d after %d", l.Token(), old)
						}
						if i%3 == 0 {
							time.Sleep(time.Millisecond)
						}
						in.Add(-1)
						if err := l.Release(t.Context()); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

func TestFIFOAcrossClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		holder := newClient(t, store, nil)
		defer holder.Close()
		l, err := holder.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 20 {
			c := newClient(t, store, nil)
			t.Cleanup(func() { c.Close() })
			wg.Go(func() {
				l, err := c.Acquire(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		began := time.Now()
		l.Release(t.Context())
		wg.Wait()
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("20 hand-offs took %v", took)
		}
		for i, n := range order {
			if i != n {
				t.Fatalf("served in order %v", order)
			}
		}
	})
}

func TestSharedAndSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newClient(t, store, nil), newClient(t, store, nil)
		defer a.Close()
		defer b.Close()
		r1, err := a.Acquire(t.Context(), "a", holdfast.Shared())
		if err != nil {
			t.Fatal(err)
		}
		r2, err := b.Acquire(t.Context(), "a", holdfast.Shared())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 10)
		go func() {
			w, err := b.Acquire(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			got <- "writer"
			w.Release(t.Context())
		}()
		synctest.Wait()
		go func() {
			r, err := a.Acquire(t.Context(), "a", holdfast.Shared())
			if err != nil {
				t.Error(err)
			}
			got <- "reader"
			r.Release(t.Context())
		}()
		synctest.Wait()
		r1.Release(t.Context())
		r2.Release(t.Context())
		if first, second := <-got, <-got; first != "writer" || second != "reader" {
			t.Fatalf("%s before %s", first, second)
		}
		var locks []*holdfast.Lock
		for i := range 3 {
			l, err := a.TryAcquire(t.Context(), "s", holdfast.Slots(3))
			if err != nil {
				t.Fatalf("slot %d: %v", i, err)
			}
			locks = append(locks, l)
		}
		if _, err := b.TryAcquire(t.Context(), "s", holdfast.Slots(3)); !errors.Is(err, holdfast.ErrHeld) {
			t.Fatalf("fourth slot: %v", err)
		}
		for _, l := range locks {
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestDeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		cut := &wire.Cut{Store: store}
		a, b := newClient(t, cut, nil), newClient(t, store, nil)
		defer b.Close()
		defer a.Close()
		l, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		began := time.Now()
		go func() {
			<-l.Context().Done()
			if !errors.Is(l.Err(), holdfast.ErrLost) {
				t.Errorf("lost with %v", l.Err())
			}
			t.Logf("after %v: %v", time.Since(began), l.Err())
		}()
		l2, err := b.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if l.Err() == nil {
			t.Error("two holders")
		}
		took := time.Since(began)
		t.Logf("taken over after %v", took)
		if took > 17*time.Second {
			t.Errorf("took %v", took)
		}
		if l2.Token() <= l.Token() {
			t.Errorf("token %d after %d", l2.Token(), l.Token())
		}
		l2.Release(t.Context())
	})
}

func TestSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var in [5]atomic.Int32
		var wg sync.WaitGroup
		for p := range 4 {
			c := newClient(t, store, nil)
			t.Cleanup(func() { c.Close() })
			wg.Go(func() {
				for i := range 20 {
					a, b := (p+i)%5, (p*3+i*2)%5
					locks, err := c.AcquireAll(t.Context(), []string{fmt.Sprint(b), fmt.Sprint(a)})
					if err != nil {
						t.Error(err)
						return
					}
					for _, n := range []int{a, b} {
						if a != b && in[n].Add(1) != 1 {
							t.Errorf("two inside %d", n)
						}
					}
					time.Sleep(5 * time.Millisecond)
					for _, n := range []int{a, b} {
						if a != b {
							in[n].Add(-1)
						}
					}
					if err := locks.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// A set has one context, which ends with the last of its locks.
func TestSetContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(), nil)
		defer c.Close()
		set, err := c.AcquireAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		locks, ctx := set.Locks(), set.Context()
		if err := locks[0].Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ctx.Err() != nil || locks[1].Err() != nil {
			t.Errorf("with one of two released the context is %v and the other lock %v", ctx.Err(), locks[1].Err())
		}
		if err := set.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(context.Cause(ctx), holdfast.ErrReleased) {
			t.Errorf("with both released the context's cause is %v", context.Cause(ctx))
		}
	})
}

// An election has one seat, whatever options it is given.
func TestElectionHasOneSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(), nil)
		defer c.Close()
		for name, opt := range map[string]holdfast.Option{"Shared": holdfast.Shared(), "Slots": holdfast.Slots(2)} {
			err := c.Election("seat", opt).Run(t.Context(), func(context.Context, *holdfast.Lock) error {
				t.Errorf("%s: it leads", name)
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), "one seat") {
				t.Errorf("%s: %v", name, err)
			}
		}
		led := false
		err := c.Election("seat", holdfast.Slots(1)).Run(t.Context(), func(context.Context, *holdfast.Lock) error {
			led = true
			return nil
		})
		if err != nil || !led {
			t.Errorf("with one slot: led %v, %v", led, err)
		}
	})
}

func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		ctx, cancel := context.WithCancel(t.Context())
		var leading atomic.Int32
		terms := make(chan int64, 100)
		var wg sync.WaitGroup
		for range 3 {
			c := newClient(t, store, nil)
			t.Cleanup(func() { c.Close() })
			e := c.Election("seat")
			wg.Go(func() {
				err := e.Run(ctx, func(ctx context.Context, l *holdfast.Lock) error {
					if leading.Add(1) != 1 {
						t.Error("two leaders")
					}
					terms <- l.Token()
					time.AfterFunc(time.Second, func() { e.Resign(context.Background()) })
					<-ctx.Done()
					leading.Add(-1)
					return nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("run: %v", err)
				}
			})
		}
		var last int64
		for range 10 {
			term := <-terms
			if term <= last {
				t.Errorf("term %d after %d", term, last)
			}
			last = term
		}
		cancel()
		wg.Wait()
	})
}

// Where the store has no clock, who asks once, in a process that has seen nothing
// before, learns at once that a live holder holds; it watches one who seems to be
// dead for a TTL, no longer than until a heartbeat comes, and then has the lock.
func TestTryWithoutClock(t *testing.T) {
	const ttl = holdfast.DefaultTTL
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		join := func() (*holdfast.Client, *wire.Wire) { // nobody else declares the dead
			way := wire.New(store)
			way.SetAged(func(time.Duration) time.Duration { return -1 })
			return newClient(t, way, nil), way
		}
		try := func() (l *holdfast.Lock, took time.Duration) {
			t.Helper()
			c, _ := join()
			began := time.Now()
			l, err := c.TryAcquire(t.Context(), "a")
			took = time.Since(began)
			if err != nil && !errors.Is(err, holdfast.ErrHeld) {
				t.Fatal(err)
			}
			c.Close()
			return l, took
		}
		a, way := join()
		held, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * ttl)
		if l, took := try(); l != nil || took > time.Second {
			t.Errorf("a live holder: got %v after %v", l, took)
		}
		way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			for i, w := range writes {
				if wire.IsBeat(w) {
					at := regexp.MustCompile(`"at":[0-9]+`)
					writes[i].Value = at.ReplaceAll(w.Value, []byte(`"at":1`)) // its clock is wrong
				}
			}
			return send()
		})
		time.Sleep(2 * ttl)
		if l, took := try(); l != nil || took > ttl/2 {
			t.Errorf("a live holder whose clock is wrong: got %v after %v", l, took)
		}
		way.SetMeet(nil)
		time.Sleep(ttl)
		way.Off.Store(true) // it is dead
		if l, took := try(); l != nil || took > time.Second {
			t.Errorf("a holder that has just died: got %v after %v", l, took)
		}
		time.Sleep(2 * ttl)
		if l, took := try(); l == nil || took < ttl || took > ttl+time.Second {
			t.Errorf("a holder that is dead: got %v after %v", l, took)
		}
		if !errors.Is(held.Err(), holdfast.ErrLost) {
			t.Errorf("the dead one's lock: %v", held.Err())
		}
		a.Close()
	})
}

// Where the store's clock tells that a holder has been silent for its TTL, a process that asks
// once marks it and watches it for half a TTL, until a heartbeat comes, and takes over in the
// same call.
func TestTryFindsTheDeadAtOnce(t *testing.T) {
	const ttl = holdfast.DefaultTTL
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		try := func(ctx context.Context, opts ...holdfast.Option) (l *holdfast.Lock, took time.Duration, err error) {
			t.Helper()
			c := newClient(t, store, nil)
			began := time.Now()
			l, err = c.TryAcquire(ctx, "a", opts...)
			took = time.Since(began)
			if err != nil && !errors.Is(err, holdfast.ErrHeld) {
				t.Fatal(err)
			}
			c.Close()
			return l, took, err
		}
		holder := func(opts ...holdfast.Option) *wire.Wire {
			t.Helper()
			way := wire.New(store)
			c := newClient(t, way, nil)
			t.Cleanup(func() { c.Close() })
			if _, err := c.Acquire(t.Context(), "a", opts...); err != nil {
				t.Fatal(err)
			}
			return way
		}
		way := holder(holdfast.Reason("backup"))
		time.Sleep(time.Second)
		l, took, err := try(t.Context())
		if l != nil || took > time.Second || !strings.Contains(err.Error(), " (last heartbeat 1s ago, TTL 15s): backup") {
			t.Errorf("a live holder: got %v after %v, %v", l, took, err)
		}

		way.Off.Store(true) // its store is away
		time.Sleep(ttl - 2*time.Second)
		if l, took, _ := try(t.Context()); l != nil || took > time.Second {
			t.Errorf("a holder that is silent for less than its TTL: got %v after %v", l, took)
		}
		time.Sleep(2 * time.Second)
		go func() { time.Sleep(2 * time.Second); way.Off.Store(false) }() // back, with a new session
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if l, took, err := try(ctx); l != nil || took != time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a second to ask: got %v after %v, %v", l, took, err)
		}
		if l, took, err := try(t.Context()); l == nil || took > ttl/2+ttl/8 {
			t.Errorf("a dead holder: got %v after %v, %v", l, took, err)
		}

		store = memory.New() // slots: the one that is dead is taken over, beside the one that lives
		dead := holder(holdfast.Slots(2))
		dead.Off.Store(true)
		time.Sleep(ttl)
		holder(holdfast.Slots(2))
		if l, took, _ := try(t.Context(), holdfast.Slots(2)); l == nil || took > ttl/2+ttl/8 {
			t.Errorf("one of two slots is a dead one's: got %v after %v", l, took)
		}
		if l, took, _ := try(t.Context()); l != nil || took > time.Second {
			t.Errorf("exclusive, beside a live one: got %v after %v", l, took)
		}
	})
}

// Where the store's clock tells that a holder has been silent for its TTL and it lives, a process
// that asks once is refused as soon as its heartbeat comes.
func TestTryWaitsForAHeartbeat(t *testing.T) {
	const ttl = holdfast.DefaultTTL
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		way := wire.New(store)
		way.SetAged(func(age time.Duration) time.Duration { return age + 2*ttl })
		holder := newClient(t, store, nil)
		defer holder.Close()
		if _, err := holder.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		c := newClient(t, way, nil) // to it the store's clock has leapt
		defer c.Close()
		began := time.Now()
		_, err := c.TryAcquire(t.Context(), "a")
		if took := time.Since(began); !errors.Is(err, holdfast.ErrHeld) || took == 0 || took > ttl/3+ttl/8 {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A smaller TTL is reported, with the end of the shorter window, before the heartbeat
// that carries it is sent: also if that heartbeat is never answered.
func TestShortenedBeforeBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := memory.New()
		var until time.Time
		store := &beatWatch{Store: bus, beat: func(ttl time.Duration) error {
			if ttl != 2*time.Second {
				return nil
			}
			if until.IsZero() {
				t.Error("a heartbeat with TTL 2s was sent before Shortened was called")
			}
			return errors.New("no answer")
		}}
		c := newClient(t, store, &holdfast.Options{Trace: &holdfast.Trace{Shortened: func(_ context.Context, e holdfast.Event) {
			if left := time.Until(e.Until); e.TTL != 2*time.Second || left > e.TTL-holdfast.Margin(e.TTL) {
				t.Errorf("Shortened says that TTL %v leaves %v", e.TTL, left)
			}
			until = e.Until
		}}})
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetStoreTTL(t.Context(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		<-l.Context().Done()
		if late := time.Since(until); late > 10*time.Millisecond {
			t.Errorf("the lock was lost %v after the end that Shortened gave", late)
		}
	})
}

// One heartbeat that is not answered, and carries a smaller TTL, costs no lock: it is cut
// off in time for another.
func TestShortenedTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := false
		store := &beatWatch{Store: memory.New(), beat: func(ttl time.Duration) error {
			if ttl != 2*time.Second || hung {
				return nil
			}
			hung = true
			return errHangs
		}}
		c := newClient(t, store, nil)
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetStoreTTL(t.Context(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * holdfast.DefaultTTL)
		if err := l.Err(); err != nil || !hung {
			t.Errorf("a heartbeat hung: %v; the lock: %v", hung, err)
		}
	})
}

var errHangs = errors.New("no answer before the context ends")

// A window that gets shorter is that of the TTL in the record, which has milliseconds.
func TestWindowOfRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trusted, ttl time.Duration
		store := &beatWatch{Store: memory.New(), beat: func(of time.Duration) error {
			ttl = of
			return nil
		}}
		c := newClient(t, store, &holdfast.Options{Trace: &holdfast.Trace{Shortened: func(_ context.Context, e holdfast.Event) {
			trusted = time.Until(e.Until)
		}}})
		defer c.Close()
		if _, err := c.AcquireFor(t.Context(), "a", 3870758901); err != nil {
			t.Fatal(err)
		}
		if want := ttl - holdfast.Margin(ttl); trusted == 0 || trusted > want {
			t.Errorf("a heartbeat with TTL %v is trusted for %v, want at most %v", ttl, trusted, want)
		}
	})
}

// A beatWatch calls beat with the TTL of each heartbeat before it is sent; an error stands
// for an answer that does not come.
type beatWatch struct {
	driver.Store
	beat func(ttl time.Duration) error
}

func (s *beatWatch) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for _, w := range writes {
		var rec struct {
			TTL int64 `json:"ttl"`
		}
		if w.Key.Space == driver.Sessions && json.Unmarshal(w.Value, &rec) == nil {
			if err := s.beat(time.Duration(rec.TTL) * time.Millisecond); err != nil {
				if err == errHangs {
					<-ctx.Done()
				}
				return nil, err
			}
		}
	}
	return s.Store.CompareAndSwap(ctx, writes)
}
