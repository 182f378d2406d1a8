package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
)

// A set whose time is up before all of it was tried does not go on to watch a dead holder,
// as a try may where the store has no clock.
func TestSetDoesNotWatchTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait, ttl = 4 * time.Second, 40 * time.Second
		store := clockless{memory.New()}
		cut := &wire.Cut{Store: store}
		dead, first := newClient(t, cut, &holdfast.Options{TTL: ttl}), newClient(t, store, nil)
		defer dead.Close()
		defer first.Close()
		if _, err := dead.Acquire(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		time.Sleep(2 * ttl) // nobody has observed it
		held, err := first.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		slow := &slowStore{Store: store}
		c := newClient(t, slow, nil)
		defer c.Close()
		slow.by.Store(int64(300 * time.Millisecond))
		began := time.Now()
		time.AfterFunc(wait-200*time.Millisecond, func() { held.Release(t.Context()) })
		_, err = c.AcquireAll(t.Context(), []string{"a", "b"}, holdfast.MaxWait(wait))
		var why *holdfast.HeldError
		if took := time.Since(began); !errors.As(err, &why) || took > wait+time.Second {
			t.Errorf("AcquireAll with MaxWait(%v) took %v: %v", wait, took, err)
		}
		if why != nil && (len(why.Holders) != 1 || why.Holders[0].Owner.Host == "") {
			t.Errorf("it does not tell whose the lock is: %v", err)
		}
	})
}

// What a set gives back when it fails is ended when AcquireAll returns, and nothing of that goes
// on after Close.
func TestSetGivesBackBeforeItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended, running atomic.Int64
		slow := &slowStore{Store: memory.New()}
		other := newClient(t, slow, nil)
		defer other.Close()
		if _, err := other.Acquire(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		c := newClient(t, slow, &holdfast.Options{Trace: &holdfast.Trace{
			Released: func(context.Context, holdfast.Event) {
				ended.Add(1)
				running.Add(1)
				time.Sleep(time.Second)
				running.Add(-1)
			}}})
		slow.by.Store(int64(10 * time.Millisecond)) // so slow that the driver is a goroutine
		if _, err := c.AcquireAll(t.Context(), []string{"a", "b"}, holdfast.MaxWait(0)); !errors.Is(err, holdfast.ErrHeld) {
			t.Fatalf("AcquireAll: %v", err)
		}
		if ended.Load() != 1 || running.Load() != 0 {
			t.Errorf("AcquireAll has returned: %d locks were ended, and of %d the trace is still being called", ended.Load(), running.Load())
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if running.Load() != 0 {
			t.Error("Close has returned, and the trace is still being called")
		}
		info, err := other.Show(t.Context(), "a")
		if err != nil || len(info.Holders) != 0 {
			t.Errorf("held by %v, %v", info.Holders, err)
		}
	})
}
