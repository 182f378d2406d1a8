package faultstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/memory"
)

// A staleReading process has stale reads.
type staleReading struct {
	reopened
}

func (staleReading) Traits() driver.Traits { return driver.Traits{StaleReads: true} }

func (g staleReading) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if how == driver.Stale {
		return g.StaleLoad(ctx, keys)
	}
	return g.reopened.Load(ctx, keys, how)
}

func staleReadingProcess(bus *faultstore.Bus, name string) staleReading {
	return staleReading{reopened{bus.Process(name), bus}}
}

func (g staleReading) Reopen(*testing.T) driver.Store { return staleReadingProcess(g.bus, "two") }

// An awaiting process can await a write.
type awaiting struct{ reopened }

func (awaiting) Traits() driver.Traits { return driver.Traits{Awaits: true} }

func (a awaiting) Reopen(*testing.T) driver.Store {
	return awaiting{reopened{a.bus.Process("two"), a.bus}}
}

func TestAwaits(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) driver.Store {
		bus := faultstore.NewBus(memory.New(), 1, faultstore.Faults{})
		t.Cleanup(bus.Close)
		return awaiting{reopened{bus.Process("one"), bus}}
	})
}

// Looks that are out of date keep the contract of looks that may be, also
// where batches are answered in part and the store says that it is busy.
func TestStaleReads(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	drivertest.Run(t, func(t *testing.T) driver.Store {
		bus := faultstore.NewBus(memory.New(), 1, faultstore.Faults{Stale: 100 * time.Millisecond})
		t.Cleanup(bus.Close)
		return staleReadingProcess(bus, "one")
	})
}

// The races of the suite allow that a store is too busy to know of some writes.
func TestBusyRaces(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) driver.Store {
		return &busy{Store: memory.New(), inside: make(map[driver.Key]int)}
	})
}

// A busy store does not know what became of every third write that has rivals
// for its key, whether it was done or not.
type busy struct {
	driver.Store
	mu     sync.Mutex
	inside map[driver.Key]int
	writes int
}

func (s *busy) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	count := func(by int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, w := range writes {
			s.inside[w.Key] += by
		}
	}
	count(1)
	defer count(-1)
	runtime.Gosched() // rivals come
	outs := make([]driver.Outcome, len(writes))
	var do []driver.Write
	s.mu.Lock()
	for i, w := range writes {
		skip := false
		if s.inside[w.Key] > 1 {
			if s.writes++; s.writes%3 == 0 {
				outs[i].Err, skip = &driver.BusyError{Err: errors.New("crowded")}, s.writes%2 == 0
			}
		}
		if !skip {
			do = append(do, w)
		}
	}
	s.mu.Unlock()
	done, err := s.Store.CompareAndSwap(ctx, do)
	if err != nil {
		return nil, err
	}
	for i, w := range writes {
		if len(do) == 0 || do[0].Key != w.Key {
			continue
		}
		if outs[i].Err == nil {
			outs[i] = done[0]
		}
		do, done = do[1:], done[1:]
	}
	if len(outs) == 1 && outs[0].Err != nil {
		return nil, outs[0].Err
	}
	return outs, nil
}

// A stale read shows what was there at most so long ago, and sometimes the newest.
func TestAgeOfStaleReads(t *testing.T) {
	inBubble(t, faultstore.Faults{Stale: 10 * time.Second}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p := bus.Process("p")
		look := func() string {
			r, err := p.StaleLoad(t.Context(), []driver.Key{key})
			if err != nil {
				t.Fatal(err)
			}
			return string(r[0].Value)
		}
		seen := func() (values []string) {
			for range 200 {
				values = append(values, look())
			}
			slices.Sort(values)
			return slices.Compact(values)
		}
		for i := range 4 {
			old := driver.IfEmpty
			if i > 0 {
				r, _ := p.Load(t.Context(), []driver.Key{key}, driver.Fresh)
				old = r[0].Version
			}
			if _, err := p.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: old, Value: fmt.Append(nil, i)}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * time.Second)
		}
		if got, want := seen(), []string{"1", "2", "3"}; !slices.Equal(got, want) {
			t.Errorf("stale reads show %q, want %q", got, want)
		}
		time.Sleep(7 * time.Second)
		if got, want := seen(), []string{"3"}; !slices.Equal(got, want) {
			t.Errorf("later stale reads show %q, want %q", got, want)
		}
	})
}

// A write whose notification was lost shows when someone loads.
func TestLostNotificationShowsOnLoad(t *testing.T) {
	inBubble(t, faultstore.Faults{LoseReply: 1}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		p, q := bus.Process("p"), bus.Process("q")
		_, err := p.CompareAndSwap(t.Context(), take("1"))
		fails(t, err, faultstore.ErrFault)
		bus.SetFaults(faultstore.Faults{})
		for _, want := range []string{"", "1"} {
			for range 20 {
				r, err := q.StaleLoad(t.Context(), []driver.Key{key})
				if err != nil || string(r[0].Value) != want {
					t.Fatalf("a stale read shows %q, error %v; want %q", r[0].Value, err, want)
				}
			}
			holds(t, q, "1")
		}
	})
}

// Some batches are answered with an error for each write that is not.
func TestSingly(t *testing.T) {
	inBubble(t, faultstore.Faults{Partial: 1, Singly: 1, Busy: 1}, func(t *testing.T, bus *faultstore.Bus, inner *memory.Store) {
		_, writes := batch(30)
		outs, err := bus.Process("p").CompareAndSwap(t.Context(), writes)
		if err != nil {
			t.Fatal(err)
		}
		won := 0
		for _, o := range outs {
			switch {
			case o.Err == nil && o.Won:
				won++
			case !driver.Busy(o.Err) || !errors.Is(o.Err, faultstore.ErrFault) || o.Won:
				t.Errorf("an outcome of %+v", o)
			}
		}
		first := count(t, inner)
		bus.Settle()
		if second := count(t, inner); !(0 < won && won == first && first < second && second < 30) {
			t.Errorf("of 30 writes %d have won, %d were applied, and %d in the end", won, first, second)
		}
	})
}

// What a stale read shows depends on the seed, the process and the number of the
// stale read.
func TestSeedsOfStaleReads(t *testing.T) {
	run := func(seed uint64) (story []int64) {
		synctest.Test(t, func(t *testing.T) {
			bus := faultstore.NewBus(memory.New(), seed, faultstore.Faults{Stale: time.Minute})
			defer bus.Close()
			p := bus.Process("p")
			old := driver.IfEmpty
			for range 20 {
				time.Sleep(time.Second)
				outs, err := p.CompareAndSwap(t.Context(), []driver.Write{{Key: key, Old: old, Value: []byte("1")}})
				if err != nil {
					t.Fatal(err)
				}
				old = outs[0].Record.Version
				r, err := p.StaleLoad(t.Context(), []driver.Key{key})
				if err != nil {
					t.Fatal(err)
				}
				story = append(story, r[0].Version)
			}
		})
		return story
	}
	first := run(1)
	if !slices.Equal(first, run(1)) {
		t.Errorf("the same seed shows something else")
	}
	if slices.Equal(first, run(2)) {
		t.Errorf("another seed shows the same")
	}
}
