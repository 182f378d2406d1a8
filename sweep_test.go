package holdfast_test

import (
	"context"
	"fmt"
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

// A lossy store carries out a write and does not tell, once it is told so.
type lossy struct {
	holdfast.Store
	lose atomic.Bool
}

func (s *lossy) CompareAndSwap(ctx context.Context, writes []holdfast.Write) ([]holdfast.Outcome, error) {
	outs, err := s.Store.CompareAndSwap(ctx, writes)
	if writes[0].Key == lockA && s.lose.Swap(false) {
		return nil, errFails
	}
	return outs, err
}

// What was given back without waiting for the disk, with an answer that was lost, is
// given back again when a crash has undone it.
func TestUndoneReleaseWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		s := &lossy{Store: inner}
		c := newClient(t, s, nil)
		defer c.Close()
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		stands := func() holdfast.Record {
			recs, err := inner.Load(t.Context(), []holdfast.Key{lockA})
			if err != nil {
				t.Fatal(err)
			}
			return recs[0]
		}
		held := stands()
		s.lose.Store(true)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		inner.Restore(lockA, held)
		time.Sleep(15 * time.Second) // three heartbeats
		if r := stands(); len(r.Value) > 0 {
			t.Errorf("the lock is still held: %s", r.Value)
		}
	})
}

// A sweep in the background has the time until another's turn would come, so where
// there are many names it comes to its end as well.
func TestSweepOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowList{Store: memory.New()}
		c := newClient(t, s, nil)
		defer c.Close()
		names := make([]string, 2000)
		for i := range names {
			names[i] = fmt.Sprint("n", i)
		}
		if _, err := c.AcquireAll(t.Context(), names); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		if s.swept.Load() == 0 {
			t.Error("in three hours no sweep has come to its end, which takes a minute and a half")
		}
	})
}

// slowList takes eight seconds for each page of names.
type slowList struct {
	*memory.Store
	swept atomic.Int64
}

func (s *slowList) Keys(ctx context.Context, space holdfast.Space, after string, n int) ([]string, error) {
	if space == holdfast.Names {
		time.Sleep(8 * time.Second)
	}
	return s.Store.Keys(ctx, space, after, n)
}

func (s *slowList) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.swept.Add(1)
	return s.Store.Sweep(ctx, idle)
}

// A crash of the database may take back the end of a claim whose session has then
// ended in order: nobody is left who would remove it. Sweeps do, also where nobody
// wants the name.
func TestSweepOfAnOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		c := newClient(t, s, nil)
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		held, err := s.Load(t.Context(), []holdfast.Key{lockA})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Restore(lockA, held[0])
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		sweeper := newClient(t, s, nil)
		defer sweeper.Close()
		for range 4 {
			if _, err := sweeper.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * holdfast.DefaultTTL)
		}
		for _, space := range []holdfast.Space{holdfast.Names, holdfast.Sessions} {
			if left, err := s.Keys(t.Context(), space, "", 10); err != nil || len(left) > 0 {
				t.Errorf("%s: %q is left (%v)", space, left, err)
			}
		}
	})
}
