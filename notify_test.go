package holdfast_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
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

// A notifies is a store whose notifications carry nothing.
type notifies struct{ *counted }

func (s notifies) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	return s.Store.(driver.Watcher).Watch(ctx, who, changed)
}

// A holder is notified of new waiters, so that its release follows the newest record and does not
// lose first: of each where notifications carry the record, and elsewhere of the first few.
func TestHolderIsNotified(t *testing.T) {
	for _, test := range []struct {
		name    string
		store   func(s *counted) driver.Store
		waiters int
		writes  int64
	}{
		{"notifications that carry the record, one waiter", func(s *counted) driver.Store { return tellsRecord{s} }, 1, 1},
		{"notifications that carry the record, a crowd", func(s *counted) driver.Store { return tellsRecord{s} }, 12, 1},
		{"notifications alone, one waiter", func(s *counted) driver.Store { return notifies{s} }, 1, 1},
		{"notifications alone, a few", func(s *counted) driver.Store { return notifies{s} }, 8, 1},
		{"notifications alone, a crowd", func(s *counted) driver.Store { return notifies{s} }, 12, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &counted{Store: memory.New()}
				a := newClient(t, test.store(s), nil)
				defer a.Close()
				var others []*holdfast.Client
				for range test.waiters {
					c := newClient(t, test.store(&counted{Store: s.Store}), nil)
					defer c.Close()
					others = append(others, c)
				}
				held, err := a.Acquire(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second) // from then on it watches
				got := queue(t, others...)
				s.reset()
				if err := held.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := s.swaps.Load(); n != test.writes {
					t.Errorf("%d writes to give a lock back for which others have come, want %d", n, test.writes)
				}
				for range others {
					if err := (<-got).Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
