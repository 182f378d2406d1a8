package holdfast_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A narrow store carries out each write by itself, a few at a time.
type narrow struct {
	driver.Store
	single int

	mu            sync.Mutex
	largest, most int // call so far, and calls at a time
	under         int
}

func (s *narrow) Traits() driver.Traits { return driver.Traits{SingleWrites: s.single} }

func (s *narrow) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.mu.Lock()
	s.under++
	s.most = max(s.most, s.under)
	if !slices.ContainsFunc(writes, func(w driver.Write) bool { return w.Key.Space == driver.Sessions }) { // else it opens the session
		s.largest = max(s.largest, len(writes))
	}
	s.mu.Unlock()
	time.Sleep(10 * time.Millisecond) // of a bubble: meanwhile others gather
	s.mu.Lock()
	s.under--
	s.mu.Unlock()
	return s.Store.CompareAndSwap(ctx, writes)
}

// Where the store carries out each write by itself each goes in a call of its own, and as many calls
// are under way as it says. Elsewhere what gathers goes in one call, and a second one begins when 16
// have gathered.
func TestSingleWrites(t *testing.T) {
	for single, want := range map[int]func(largest, most int) bool{
		0: func(largest, most int) bool { return largest >= 16 && most == 2 },
		8: func(largest, most int) bool { return largest == 1 && most == 8 },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &narrow{Store: memory.New(), single: single}
			c := newClient(t, s, nil)
			defer c.Close()
			if _, err := c.Acquire(t.Context(), "opens the session"); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			acquire := func(name string) {
				wg.Go(func() {
					if _, err := c.Acquire(t.Context(), name); err != nil {
						t.Error(err)
					}
				})
			}
			acquire("first")
			synctest.Wait() // its call is under way
			for i := range 99 {
				acquire(fmt.Sprint(i))
			}
			wg.Wait()
			if !want(s.largest, s.most) {
				t.Errorf("SingleWrites %d: %d calls at a time, the largest with %d writes", single, s.most, s.largest)
			}
		})
	}
}
