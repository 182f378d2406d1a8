package holdfast_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A counted store counts calls, and tells of nothing.
type counted struct {
	driver.Store
	loads, swaps atomic.Int64
}

func (s *counted) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	s.loads.Add(1)
	return s.Store.Load(ctx, keys, how)
}

func (s *counted) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if writes[0].Key.Space == driver.Names {
		s.swaps.Add(1)
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

func (s *counted) reset() { s.loads.Store(0); s.swaps.Store(0) }

// A telling store also tells, at a price, and counts who listens.
type telling struct {
	*counted
	listening atomic.Int64
}

func (s *telling) Traits() driver.Traits { return driver.Traits{CostlyWatch: true} }

func (s *telling) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	s.listening.Add(1)
	defer s.listening.Add(-1)
	return s.Store.(driver.Watcher).Watch(ctx, who, changed)
}

// queue has clients queue for "a" one after the other, and returns what tells
// when the n-th has it.
func queue(t *testing.T, clients ...*holdfast.Client) (got chan *holdfast.Lock) {
	t.Helper()
	got = make(chan *holdfast.Lock, len(clients))
	for _, c := range clients {
		go func() {
			l, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		time.Sleep(time.Millisecond)
		synctest.Wait()
	}
	return got
}

// Where nothing tells, who is next looks often at first, and ever less often
// the longer it has waited: a wait is prolonged by a part of it, and long waits
// cost little.
func TestPolling(t *testing.T) {
	for _, test := range []struct {
		held, late time.Duration
		loads      int64
	}{
		{20 * time.Millisecond, 5 * time.Millisecond, 12},
		{200 * time.Millisecond, 50 * time.Millisecond, 40},
		{5 * time.Second, time.Second, 70},
		{10 * time.Minute, 2500 * time.Millisecond, 500},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			a := newClient(t, store, nil)
			defer a.Close()
			seen := &counted{Store: store}
			b := newClient(t, struct{ driver.Store }{seen}, nil)
			defer b.Close()
			l, err := a.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			got := queue(t, b)
			seen.reset()
			time.Sleep(test.held)
			if n := seen.loads.Load(); n > test.loads {
				t.Errorf("%d looks in %v, want at most %d", n, test.held, test.loads)
			}
			released := time.Now()
			l.Release(t.Context())
			<-got
			if late := time.Since(released); late > test.late {
				t.Errorf("held for %v: the next has it %v after the release, want %v at most", test.held, late, test.late)
			}
		})
	}
}

// A thousand names share their looks.
func TestPollingTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a := newClient(t, store, nil)
		defer a.Close()
		seen := &counted{Store: store}
		b := newClient(t, struct{ driver.Store }{seen}, nil)
		defer b.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		for i := range 1000 {
			name := string(rune('a'+i%26)) + time.Duration(i).String()
			if _, err := a.Acquire(ctx, name); err != nil {
				t.Fatal(err)
			}
			go func() {
				b.Acquire(ctx, name)
				done <- true
			}()
		}
		time.Sleep(time.Minute)
		seen.reset()
		time.Sleep(100 * time.Second)
		if n := seen.loads.Load(); n > 90 {
			t.Errorf("%d looks in 100 s, want less than one a second", n)
		}
		cancel()
		for range 1000 {
			<-done
		}
	})
}

// Where the store tells, a release wakes who is next and nobody else, whose
// look is all that it costs; and to queue again behind others costs one write.
func TestHandOffCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stores []*telling
		var clients []*holdfast.Client
		inner := memory.New()
		const crowd = 20
		for range crowd {
			s := &telling{counted: &counted{Store: inner}}
			c := newClient(t, s, nil)
			defer c.Close()
			stores, clients = append(stores, s), append(clients, c)
		}
		got := queue(t, clients...)
		time.Sleep(2 * time.Second)
		l := <-got
		const rounds = 200
		var loads, swaps int64
		for _, s := range stores {
			s.reset()
		}
		for i := range rounds {
			time.Sleep(20 * time.Millisecond)
			l.Release(t.Context())
			next := <-got
			go func() {
				l, err := clients[i%crowd].Acquire(t.Context(), "a")
				if err != nil {
					t.Error(err)
				}
				got <- l
			}()
			l = next
			synctest.Wait()
		}
		for _, s := range stores {
			loads += s.loads.Load()
			swaps += s.swaps.Load()
		}
		t.Logf("%d hand-offs in a crowd of %d: %.2f loads and %.2f writes each", rounds, crowd, float64(loads)/rounds, float64(swaps)/rounds)
		if loads > 2*rounds || swaps > 3*rounds+rounds/2 {
			t.Errorf("%d hand-offs cost %d loads and %d writes", rounds, loads, swaps)
		}
		for range crowd - 1 {
			l.Release(t.Context())
			l = <-got
		}
		l.Release(t.Context())
	})
}

// Where nothing notifies, a crowd reads little for each hand-off: the sessions ahead not at all
// while its queue moves.
func TestCrowdPolls(t *testing.T) {
	if many := watchCrowd(t, 48, false); many.holds < 350 || many.loads > 14 || many.sessions > 0.4 {
		t.Errorf("48 clients: %+v", many)
	}
}

// Where to watch costs, only who waits does, and for a while after.
func TestWatchCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &telling{counted: &counted{Store: memory.New()}}
		a, b := newClient(t, s, nil), newClient(t, s, nil)
		defer a.Close()
		defer b.Close()
		l, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := s.listening.Load(); n != 0 {
			t.Fatalf("%d listen and nobody waits", n)
		}
		got := queue(t, b)
		if n := s.listening.Load(); n != 1 {
			t.Fatalf("%d listen, want who waits", n)
		}
		time.Sleep(time.Minute)
		released := time.Now()
		l.Release(t.Context())
		l = <-got
		if late := time.Since(released); late > time.Millisecond {
			t.Errorf("told after %v", late)
		}
		time.Sleep(time.Minute)
		if n := s.listening.Load(); n != 0 {
			t.Errorf("%d listen a minute after the wait", n)
		}
		l.Release(t.Context())
		for range 2 { // and again
			l, err = a.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			got = queue(t, b)
			time.Sleep(10 * time.Second)
			if n := s.listening.Load(); n != 1 {
				t.Fatalf("%d listen, want who waits", n)
			}
			l.Release(t.Context())
			(<-got).Release(t.Context())
			time.Sleep(time.Minute)
		}
	})
}

// A claim shows how many of its writes have lost.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a := newClient(t, store, nil)
		defer a.Close()
		l, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		b := newClient(t, store, nil)
		defer b.Close()
		got := queue(t, b)
		info, err := a.Show(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		// It had not seen the name, so its first write was one that takes it.
		if n := info.Holders[0].Retries; n != 0 {
			t.Errorf("the holder had %d retries", n)
		}
		if n := info.Waiters[0].Retries; n != 1 {
			t.Errorf("the waiter had %d retries, want 1", n)
		}
		l.Release(t.Context())
		<-got
	})
}
