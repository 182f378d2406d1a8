package holdfast_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// A swept store counts sweeps.
type swept struct {
	*memory.Store
	sweeps atomic.Int64
}

func (s *swept) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	s.sweeps.Add(1)
	return s.Store.Sweep(ctx, idle)
}

// Clients take turns to sweep: many do not sweep more often than one.
func TestTurnsToSweep(t *testing.T) {
	for _, clients := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			s := &swept{Store: memory.New()}
			for i := range clients {
				c := newClient(t, s, nil)
				defer c.Close()
				if _, err := c.Acquire(t.Context(), time.Duration(i).String()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(5 * time.Hour)
			// One client sweeps at one heartbeat in sixty, or every 5 minutes.
			if n := s.sweeps.Load(); n < 15 || n > 60 {
				t.Errorf("%d clients swept %d times in 5 hours, want 15 to 60", clients, n)
			}
		})
	}
}

var _ holdfast.Sweeper = (*swept)(nil)
