package holdfast_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A tellsRecord is a store whose notifications carry the record.
type tellsRecord struct{ *counted }

func (s tellsRecord) Traits() driver.Traits { return driver.Traits{TellsRecords: true} }

func (s tellsRecord) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	return s.Store.(driver.Watcher).Watch(ctx, who, func(h driver.Notification) {
		if h.Space == driver.Names && h.Name != "" {
			recs, err := s.Store.Load(ctx, []driver.Key{h.Key}, driver.Fresh)
			if err != nil {
				return
			}
			h.Version, h.Value = recs[0].Version, string(recs[0].Value)
		}
		changed(h)
	})
}

// A new holder does not read the record if the notification of its grant carries it.
func TestToldOfGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tellsRecord{&counted{Store: memory.New()}}
		a, b := newClient(t, s.Store, nil), newClient(t, s, nil)
		defer a.Close()
		defer b.Close()
		held, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		got := queue(t, b)
		time.Sleep(time.Second)
		loads := s.loads.Load()
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := <-got
		if n := s.loads.Load() - loads; n != 0 {
			t.Errorf("the record was read %d times, and the notification carried it", n)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A holder is notified of each new waiter, so that its release follows the newest record.
func TestHolderIsNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		s := tellsRecord{&counted{Store: inner}}
		a, b := newClient(t, s, nil), newClient(t, tellsRecord{&counted{Store: inner}}, nil)
		defer a.Close()
		defer b.Close()
		held, err := a.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // from then on it watches
		got := queue(t, b)
		s.reset()
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := s.swaps.Load(); n != 1 {
			t.Errorf("%d writes to give a lock back for which another has come, want 1", n)
		}
		if err := (<-got).Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
