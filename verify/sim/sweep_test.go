package sim_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// refusing fails every swap of a name.
type refusing struct {
	driver.Store
	on bool
}

func (s *refusing) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for _, w := range writes {
		if s.on && w.Key.Space == driver.Names {
			return nil, errors.New("the name cannot be written")
		}
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

// A tombstone may only go when no claim of its session is left: without it the
// next who comes would have to judge the dead once more.
func TestSweepKeepsATombstoneThatIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 2 * time.Second
		s := newStage(t)
		holder, p := s.join(ttl)
		if _, err := s.acquire(t.Context(), holder, "a"); err != nil {
			t.Fatal(err)
		}
		p.Crash()
		store := &refusing{Store: s.store, on: true}
		sweeper, err := holdfast.New(store, &holdfast.Options{TTL: ttl, RuntimeDir: "/dev/null"})
		if err != nil {
			t.Fatal(err)
		}
		defer sweeper.Close()
		left := func() (n int) {
			for _, space := range []driver.Space{driver.Names, driver.Sessions} {
				keys, err := s.store.Keys(t.Context(), space, "", 100)
				if err != nil {
					t.Fatal(err)
				}
				n += len(keys)
			}
			return n
		}
		for range 5 { // sees it, buries it, would forget it
			sweeper.Sweep(t.Context())
			time.Sleep(2*ttl + time.Second)
		}
		if n := left(); n != 2 {
			t.Fatalf("%d records are left of a lock and its dead session while the lock cannot be written, want both", n)
		}
		store.on = false
		for range 2 {
			if _, err := sweeper.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := left(); n != 0 {
			t.Fatalf("%d records are left after the sweep", n)
		}
	})
}
