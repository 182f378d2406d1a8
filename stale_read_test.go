package holdfast_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A staleReading store tells of nothing, has no clock, and has a look that is
// cheap. It counts looks of both kinds, and writes.
type staleReading struct {
	driver.Store
	staleReads, loads atomic.Int64 // stale reads by space
	deaf              atomic.Bool  // loads fail
	cut               atomic.Bool  // everything fails

	mu     sync.Mutex
	shown  func(k driver.Key, newest driver.Record) driver.Record // by a stale read; nil: the newest
	writes map[driver.Key]int
}

var errFails = errors.New("the store fails")

func staleReadsOf(s driver.Store) *staleReading {
	return &staleReading{Store: s, writes: make(map[driver.Key]int)}
}

func (s *staleReading) Traits() driver.Traits { return driver.Traits{StaleReads: true} }

func (s *staleReading) staleRead(ctx context.Context, keys []driver.Key) ([]driver.Record, error) {
	spaces := make(map[driver.Space]bool) // a statement each, in Cassandra
	for _, k := range keys {
		spaces[k.Space] = true
	}
	s.staleReads.Add(int64(len(spaces)))
	if s.cut.Load() {
		return nil, errFails
	}
	recs, err := s.Store.Load(ctx, keys, driver.Fresh)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range recs {
		if s.shown != nil {
			recs[i] = s.shown(keys[i], recs[i])
		}
		recs[i].Age = -1
	}
	return recs, err
}

func (s *staleReading) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if how == driver.Stale {
		return s.staleRead(ctx, keys)
	}
	s.loads.Add(1)
	if s.deaf.Load() || s.cut.Load() {
		return nil, errFails
	}
	recs, err := s.Store.Load(ctx, keys, how)
	for i := range recs {
		recs[i].Age = -1
	}
	return recs, err
}

func (s *staleReading) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.mu.Lock()
	for _, w := range writes {
		s.writes[w.Key]++
	}
	s.mu.Unlock()
	if s.cut.Load() {
		return nil, errFails
	}
	outs, err := s.Store.CompareAndSwap(ctx, writes)
	for i := range outs {
		outs[i].Record.Age = -1
	}
	return outs, err
}

// show has stale reads show something else from now on.
func (s *staleReading) show(shown func(k driver.Key, newest driver.Record) driver.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = shown
}

// written tells of which keys writes were sent, how often.
func (s *staleReading) written() map[driver.Key]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.writes)
}

// lockA is where the tests' lock is.
var lockA = driver.Key{Space: driver.Names, Name: "a"}

// stands returns what a key holds.
func (s *staleReading) stands(t *testing.T, k driver.Key) driver.Record {
	t.Helper()
	recs, err := s.Store.Load(t.Context(), []driver.Key{k}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	return recs[0]
}

// A queueOfTwo is a holder of "a", and one who waits behind it and polls by stale reads.
type queueOfTwo struct {
	holder, waiter *staleReading
	a, b           *holdfast.Client
	lock           *holdfast.Lock
	got            chan *holdfast.Lock
}

func newQueueOfTwo(t *testing.T) *queueOfTwo {
	t.Helper()
	inner := memory.New()
	q := &queueOfTwo{holder: staleReadsOf(inner), waiter: staleReadsOf(inner)}
	q.a, q.b = newClient(t, q.holder, nil), newClient(t, q.waiter, nil)
	var err error
	if q.lock, err = q.a.Acquire(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	q.got = queue(t, q.b)
	time.Sleep(2 * time.Second)
	return q
}

// session is where the holder's heartbeats are.
func (q *queueOfTwo) session(t *testing.T) driver.Key {
	t.Helper()
	info, err := q.a.Show(t.Context(), "a")
	if err != nil || len(info.Holders) == 0 {
		t.Fatal(info, err)
	}
	return driver.Key{Space: driver.Sessions, Name: info.Holders[0].Owner.Session}
}

// rewrite changes the record of the lock, as no client does.
func (q *queueOfTwo) rewrite(t *testing.T, change func(rec map[string]any)) {
	t.Helper()
	before := q.holder.stands(t, lockA)
	var rec map[string]any
	if err := json.Unmarshal(before.Value, &rec); err != nil {
		t.Fatal(err)
	}
	change(rec)
	value, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	outs, err := q.holder.CompareAndSwap(t.Context(), []driver.Write{{Key: lockA, Old: before.Version, Value: value}})
	if err != nil || !outs[0].Won {
		t.Fatal(outs, err)
	}
}

// has fails unless the one who waits has the lock within some time.
func (q *queueOfTwo) has(t *testing.T, within time.Duration) {
	t.Helper()
	select {
	case l := <-q.got:
		if l == nil || l.Err() != nil {
			t.Fatalf("who waited has no good lock: %v", l)
		}
	case <-time.After(within):
		t.Fatalf("who waits has nothing after %v", within)
	}
}

// A process that waits long makes a stale read about once a second, and seldom loads, whether a
// hundred wait for one name or for a hundred.
func TestStaleReadsOfWaiters(t *testing.T) {
	const waiters, span = 100, 1000 * time.Second // long enough for chance to even out
	for _, names := range []int{1, waiters} {
		synctest.Test(t, func(t *testing.T) {
			inner := memory.New()
			a := newClient(t, staleReadsOf(inner), nil)
			defer a.Close()
			seen := staleReadsOf(inner)
			b := newClient(t, seen, nil)
			defer b.Close()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan bool)
			for i := range waiters {
				name := fmt.Sprint(i % names)
				if i < names {
					if _, err := a.Acquire(ctx, name); err != nil {
						t.Fatal(err)
					}
				}
				go func() {
					b.Acquire(ctx, name)
					done <- true
				}()
			}
			time.Sleep(10 * time.Second)
			staleReads, loads := seen.staleReads.Load(), seen.loads.Load()
			time.Sleep(span)
			if n := seen.staleReads.Load() - staleReads; n > int64(span/time.Second) {
				t.Errorf("%d stale reads of %d names in %v, want at most one a second", n, names, span)
			}
			if n := seen.loads.Load() - loads; n > int64(span/(10*time.Second)) {
				t.Errorf("%d loads of %d names in %v, want at most one in ten seconds", n, names, span)
			}
			cancel()
			for range waiters {
				<-done
			}
		})
	}
}

// A grant that a stale read shows is believed: it needs no load.
func TestGrantInAStaleRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOfTwo(t)
		defer q.a.Close()
		defer q.b.Close()
		q.waiter.deaf.Store(true)
		if err := q.lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		q.has(t, time.Second)
	})
}

// What a stale read shows of a lock that we have, and others have changed, is what
// the release starts from: no write is lost.
func TestReleaseReadsStaleFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOfTwo(t)
		defer q.a.Close()
		defer q.b.Close()
		if err := q.lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		l := <-q.got
		third := newClient(t, staleReadsOf(q.holder.Store), nil)
		defer third.Close()
		next := queue(t, third)
		time.Sleep(time.Second)
		writes := q.waiter.written()[lockA]
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := q.waiter.written()[lockA] - writes; n != 1 {
			t.Errorf("%d writes to give a lock back for which another has come, want 1", n)
		}
		<-next
	})
}

// A client that comes anew to a lock that others have looks before it writes.
func TestNewcomerReadsStaleFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		first := newClient(t, staleReadsOf(inner), nil)
		defer first.Close()
		held, err := first.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		s := staleReadsOf(inner)
		next := newClient(t, s, nil)
		defer next.Close()
		got := queue(t, next)
		time.Sleep(time.Second)
		if n := s.written()[lockA]; n != 1 {
			t.Errorf("%d writes to queue, want 1", n)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-got
	})
}

// Nothing is done about a session that only stale reads have shown.
func TestSessionIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOfTwo(t)
		defer q.a.Close()
		defer q.b.Close()
		session := q.session(t)
		q.holder.cut.Store(true)
		time.Sleep(5 * time.Second) // its last beat is not older than half a TTL
		q.waiter.deaf.Store(true)
		time.Sleep(9 * time.Second)
		if n := q.waiter.written()[session]; n > 0 {
			t.Errorf("%d writes to a session that only stale reads have shown", n)
		}
		q.waiter.deaf.Store(false)
		q.has(t, time.Minute)
	})
}

// A death is found though stale reads show older beats again, and may never show
// the last one.
func TestOldStaleReads(t *testing.T) {
	for _, never := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueueOfTwo(t)
			defer q.a.Close()
			defer q.b.Close()
			session := q.session(t)
			before := q.holder.stands(t, session)
			time.Sleep(20 * time.Second)
			q.holder.cut.Store(true)
			n := 0
			q.waiter.show(func(k driver.Key, newest driver.Record) driver.Record {
				if n++; k == session && (never || n%2 == 0) {
					return before
				}
				return newest
			})
			staleReads := q.waiter.staleReads.Load()
			q.has(t, 40*time.Second)
			if n := q.waiter.staleReads.Load() - staleReads; n > 100 {
				t.Errorf("%d stale reads until a death is found", n)
			}
		})
	}
}

// A grant of which no stale read tells, since its writer has not completed it, is
// found by a load.
func TestGrantThatNoStaleReadShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOfTwo(t)
		defer q.a.Close()
		defer q.b.Close()
		before := q.holder.stands(t, lockA)
		q.waiter.show(func(k driver.Key, newest driver.Record) driver.Record {
			if k == lockA {
				return before
			}
			return newest
		})
		if err := q.lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		q.has(t, 20*time.Second)
	})
}

// A waiter that is not in the queue any more, as a stale read has it, looks well before it
// asks again.
func TestGoneFromTheQueueIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOfTwo(t)
		defer q.a.Close()
		defer q.b.Close()
		q.waiter.deaf.Store(true)
		writes := q.waiter.written()[lockA]
		q.rewrite(t, func(rec map[string]any) { delete(rec, "waiters") })
		time.Sleep(10 * time.Second) // two heartbeats
		if n := q.waiter.written()[lockA] - writes; n > 0 {
			t.Errorf("%d writes on a stale read", n)
		}
		q.waiter.deaf.Store(false)
		time.Sleep(10 * time.Second)
		if err := q.lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		q.has(t, 20*time.Second)
	})
}

// A claim that nobody wants any more, and that a crash of the store has brought
// back ahead of one that waits, is given up.
func TestBroughtBackIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueueOfTwo(t)
		defer q.a.Close()
		defer q.b.Close()
		q.rewrite(t, func(rec map[string]any) {
			ours := rec["waiters"].([]any)[0].(map[string]any)
			back := maps.Clone(ours)
			back["nr"] = 99
			rec["waiters"] = []any{back, ours}
		})
		time.Sleep(5 * time.Second)
		if err := q.lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		q.has(t, 5*time.Second)
	})
}

// What was given back without waiting for the disk is given back again when a
// crash has undone that, though stale reads show what was before the crash.
func TestUndoneReleaseIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		s := staleReadsOf(inner)
		c := newClient(t, s, nil)
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		held := s.stands(t, lockA)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		free := s.stands(t, lockA)
		inner.Restore(lockA, held)
		s.show(func(k driver.Key, newest driver.Record) driver.Record {
			if k == lockA {
				return free
			}
			return newest
		})
		time.Sleep(15 * time.Second) // three heartbeats
		if r := s.stands(t, lockA); len(r.Value) > 0 {
			t.Errorf("the lock is still held: %s", r.Value)
		}
	})
}
