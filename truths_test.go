package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// Shared and Slots exclude each other, in either order.
func TestSharedSlots(t *testing.T) {
	c := newClient(t, memory.New(), nil)
	defer c.Close()
	for _, opts := range [][]holdfast.Option{{holdfast.Shared(), holdfast.Slots(2)}, {holdfast.Slots(2), holdfast.Shared()}} {
		if _, err := c.TryAcquire(t.Context(), "a", opts...); err == nil || !strings.Contains(err.Error(), "Shared and Slots exclude each other") {
			t.Errorf("error %v", err)
		}
	}
}

// The error of a client that holds all slots says so, and says nothing of reentrancy.
func TestAllSlotsAreOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(), nil)
		defer c.Close()
		for range 2 {
			if _, err := c.TryAcquire(t.Context(), "a", holdfast.Slots(2)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := c.TryAcquire(t.Context(), "a", holdfast.Slots(2))
		if !errors.Is(err, holdfast.ErrHeld) || strings.Contains(err.Error(), "reentrant") || !strings.Contains(err.Error(), "held by this process for 0s and 1 more") {
			t.Errorf("error %v", err)
		}
	})
}

// A second Run of an election is refused while the first one runs, and not afterwards.
func TestElectionRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(), nil)
		defer c.Close()
		e := c.Election("a")
		for range 2 {
			err := e.Run(t.Context(), func(ctx context.Context, _ *holdfast.Lock) error {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				if err := e.Run(ctx, nil); err == nil || err.Error() != `election "a": Run runs already` {
					t.Errorf("a second Run: %v", err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// A claim that was put together from its exported fields can be broken as the one that Show gave.
func TestBreakOfARebuiltClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		holder, waiter := newClient(t, s, nil), newClient(t, s, nil)
		defer holder.Close()
		defer waiter.Close()
		if _, err := holder.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		go func() { _, err := waiter.Acquire(t.Context(), "a"); told <- err }()
		time.Sleep(time.Second)
		info, err := holder.Show(t.Context(), "a")
		if err != nil || len(info.Waiters) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		w := info.Waiters[0]
		rebuilt := holdfast.Claim{Name: w.Name, ID: w.ID, Owner: holdfast.Owner{Session: w.Owner.Session}}
		if err := holder.BreakWaiter(t.Context(), rebuilt, "test"); err != nil {
			t.Errorf("break: %v", err)
		}
		select {
		case err := <-told:
			if !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("the waiter is told %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the waiter still waits")
		}
		rebuilt.ID = "not one"
		if err := holder.BreakWaiter(t.Context(), rebuilt, "test"); err == nil || errors.Is(err, holdfast.ErrReleased) {
			t.Errorf("break of no claim: %v", err)
		}
	})
}

// closing is a store that its user closes.
type closing struct {
	driver.Store
	closed atomic.Bool
}

func (s *closing) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if s.closed.Load() {
		return nil, fmt.Errorf("read: %w", driver.ErrClosed)
	}
	return s.Store.Load(ctx, keys, how)
}

func (s *closing) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if s.closed.Load() {
		return nil, fmt.Errorf("write: %w", driver.ErrClosed)
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

// A store that was closed ends a wait at the next poll, and is not given a TTL to come back.
func TestClosedStoreEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		s := &closing{Store: m}
		holder, waiter := newClient(t, m, nil), newClient(t, s, &holdfast.Options{TTL: time.Hour})
		defer holder.Close()
		defer waiter.Close()
		if _, err := holder.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		var closed time.Time
		time.AfterFunc(10*time.Second, func() { closed = time.Now(); s.closed.Store(true) })
		_, err := waiter.Acquire(t.Context(), "a")
		if !errors.Is(err, driver.ErrClosed) || strings.Contains(err.Error(), "answer") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(closed); took > 2*time.Second {
			t.Errorf("told %v after the store was closed", took)
		}
	})
}

// calls counts the calls of those who only look.
type calls struct {
	driver.Store
	n atomic.Int64
}

func (s *calls) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	s.n.Add(1)
	return s.Store.Load(ctx, keys, how)
}

func (s *calls) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	s.n.Add(1)
	return s.Store.Keys(ctx, space, after, n)
}

// A list of many names reads them in large pages: each costs a few calls to the store.
func TestListOfManyIsFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		m := memory.New()
		holder := newClient(t, m, nil)
		defer holder.Close()
		for i := range n {
			if _, err := holder.TryAcquire(t.Context(), fmt.Sprintf("orders/%05d", i)); err != nil {
				t.Fatal(err)
			}
		}
		s := &calls{Store: m}
		c := newClient(t, s, &holdfast.Options{ReadOnly: true})
		defer c.Close()
		last, count := "", 0
		for info, err := range c.List(t.Context(), "") {
			if err != nil || info.Name <= last || len(info.Holders) != 1 || info.Holders[0].Owner.PID == 0 {
				t.Fatalf("%+v, %v", info, err)
			}
			last = info.Name
			count++
		}
		if calls := s.n.Load(); count != n || calls > 20 {
			t.Errorf("%d names by %d calls, want %d by 20 at most", count, calls, n)
		}
		s.n.Store(0)
		count = 0
		for info, err := range c.ListAfter(t.Context(), "", "orders/09899") {
			if err != nil || info.Name <= "orders/09899" {
				t.Fatalf("%+v, %v", info, err)
			}
			count++
		}
		if calls := s.n.Load(); count != 100 || calls > 6 {
			t.Errorf("the last %d names by %d calls, want 100 by 6 at most", count, calls)
		}
	})
}
