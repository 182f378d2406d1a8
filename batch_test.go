package holdfast_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A narrow store carries out few writes of a call together.
type narrow struct {
	driver.Store
	most int

	mu      sync.Mutex
	largest int // call so far
}

func (s *narrow) Traits() driver.Traits { return driver.Traits{MaxBatch: s.most} }

func (s *narrow) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.mu.Lock()
	s.largest = max(s.largest, len(writes))
	s.mu.Unlock()
	time.Sleep(10 * time.Millisecond) // of a bubble: meanwhile others gather
	return s.Store.CompareAndSwap(ctx, writes)
}

// No more writes are gathered into a call than the store carries out together. Where it sets no
// bound, a second call begins when 16 have gathered.
func TestMaxBatch(t *testing.T) {
	for most, want := range map[int]func(largest int) bool{
		0: func(largest int) bool { return largest >= 16 },
		8: func(largest int) bool { return largest == 8 },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &narrow{Store: memory.New(), most: most}
			c := newClient(t, s, nil)
			defer c.Close()
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					if _, err := c.Acquire(t.Context(), fmt.Sprint(i)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if !want(s.largest) {
				t.Errorf("MaxBatch %d: a call with %d writes", most, s.largest)
			}
		})
	}
}
