package holdfast_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A narrow store carries out few writes of a call together.
type narrow struct {
	driver.Store
	most, largest atomic.Int64
}

func (s *narrow) Traits() driver.Traits { return driver.Traits{MaxBatch: int(s.most.Load())} }

func (s *narrow) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	s.largest.Store(max(s.largest.Load(), int64(len(writes))))
	time.Sleep(10 * time.Millisecond)
	return s.Store.CompareAndSwap(ctx, writes)
}

// A store gets no more writes in a call than it carries out together.
func TestMaxBatch(t *testing.T) {
	for most, want := range map[int64]func(largest int64) bool{
		0: func(largest int64) bool { return largest > 50 },
		8: func(largest int64) bool { return largest == 8 },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &narrow{Store: memory.New()}
			s.most.Store(most)
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
			if largest := s.largest.Load(); !want(largest) {
				t.Errorf("MaxBatch %d: a call with %d writes", most, largest)
			}
		})
	}
}
