package holdfast_test

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A distant store takes as long as a database, and counts what it is asked. It tells of nothing.
type distant struct {
	driver.Store
	awaits bool

	mu                       sync.Mutex
	loads, sessions, awaited int // calls that read names, sessions, or await a write
	lost, historyLost        int // writes
}

func (s *distant) Traits() driver.Traits { return driver.Traits{Awaits: s.awaits} }

func (s *distant) count(n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
}

func (s *distant) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	has := func(space driver.Space) bool {
		return slices.ContainsFunc(keys, func(k driver.Key) bool { return k.Space == space })
	}
	if has(driver.Names) {
		s.count(&s.loads)
	}
	if has(driver.Sessions) {
		s.count(&s.sessions)
	}
	time.Sleep(300 * time.Microsecond)
	recs, err := s.Store.Load(ctx, keys, how)
	time.Sleep(300 * time.Microsecond)
	return recs, err
}

func (s *distant) Await(ctx context.Context, key driver.Key, version int64, every, limit time.Duration) (driver.Record, error) {
	s.count(&s.awaited)
	time.Sleep(300 * time.Microsecond)
	for end := time.Now().Add(limit); ; time.Sleep(every) {
		recs, err := s.Store.Load(ctx, []driver.Key{key}, driver.Fresh)
		if err != nil || recs[0].Version != version || !time.Now().Before(end) {
			time.Sleep(300 * time.Microsecond)
			return recs[0], err
		}
	}
}

func (s *distant) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	time.Sleep(300 * time.Microsecond)
	outs, err := s.Store.CompareAndSwap(ctx, writes)
	if err == nil && !outs[0].Won {
		switch writes[0].Key.Space {
		case driver.Names:
			s.count(&s.lost)
		case driver.Histories:
			s.count(&s.historyLost)
		}
	}
	time.Sleep(1300 * time.Microsecond)
	return outs, err
}

// A crowd is what clients that want one lock all the time have asked of a store for each time that
// they had it, and how late they got it on average.
type crowd struct {
	holds                                       int
	loads, sessions, awaited, lost, historyLost float64
	late                                        time.Duration
}

// watchCrowd has n clients hold a lock by turns for 10 to 30 ms, for ten seconds.
func watchCrowd(t *testing.T, n int, awaits bool) (seen crowd) {
	synctest.Test(t, func(t *testing.T) {
		s := &distant{Store: memory.New(), awaits: awaits}
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var free time.Time
		var late time.Duration
		var wg sync.WaitGroup
		for range n {
			c := newClient(t, s, &holdfast.Options{RuntimeDir: os.DevNull})
			defer c.Close()
			wg.Go(func() {
				for {
					l, err := c.Acquire(ctx, "a")
					if err != nil {
						return
					}
					mu.Lock()
					seen.holds++
					late += time.Since(free)
					mu.Unlock()
					time.Sleep(10*time.Millisecond + rand.N(20*time.Millisecond))
					mu.Lock()
					free = time.Now()
					mu.Unlock()
					l.Release(ctx)
				}
			})
		}
		time.Sleep(10 * time.Second)
		s.mu.Lock()
		mu.Lock()
		seen.holds, late, s.loads, s.sessions, s.awaited, s.lost, s.historyLost = 0, 0, 0, 0, 0, 0, 0
		mu.Unlock()
		s.mu.Unlock()
		time.Sleep(10 * time.Second)
		s.mu.Lock()
		mu.Lock()
		each := func(n int) float64 { return float64(n) / float64(seen.holds) }
		seen.loads, seen.sessions, seen.awaited = each(s.loads), each(s.sessions), each(s.awaited)
		seen.lost, seen.historyLost = each(s.lost), each(s.historyLost)
		seen.late = late / time.Duration(seen.holds)
		mu.Unlock()
		s.mu.Unlock()
		cancel()
		wg.Wait()
	})
	t.Logf("%d clients: %+v", n, seen)
	return seen
}

// Where the store can await a write, who is next in line has it do so instead of polling.
func TestCrowdAwaits(t *testing.T) {
	two, eight := watchCrowd(t, 2, true), watchCrowd(t, 8, true)
	if two.loads > 1.2 || two.awaited > 1.2 || eight.loads > 8 || eight.awaited > 1.6 || max(two.late, eight.late) > 2500*time.Microsecond {
		t.Errorf("two clients: %+v; eight: %+v", two, eight)
	}
	if polls := watchCrowd(t, 2, false); polls.awaited != 0 || polls.loads < 3 {
		t.Errorf("two clients of a store that cannot await: %+v", polls)
	}
}

// Where nothing tells a holder who has got in line, it looks once, so that its release wins.
func TestHolderLooksOnce(t *testing.T) {
	if two := watchCrowd(t, 2, false); two.lost > 0.1 {
		t.Errorf("two clients: %+v", two)
	}
}

// Whose history of a name loses to those of others writes it less often.
func TestCrowdWritesHistorySeldom(t *testing.T) {
	if many := watchCrowd(t, 16, false); many.historyLost > 0.1 {
		t.Errorf("16 clients: %+v", many)
	}
}

// A store that says that it can await, and cannot, is polled.
func TestAwaitsInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := struct{ driver.Store }{&distant{Store: memory.New(), awaits: true}}
		a, b := newClient(t, s, nil), newClient(t, s, nil)
		defer a.Close()
		defer b.Close()
		l, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(100*time.Millisecond, func() { l.Release(t.Context()) })
		if _, err := b.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	})
}
