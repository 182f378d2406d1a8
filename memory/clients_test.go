package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

func TestClients(t *testing.T) {
	clienttest.RunInBubble(t, func(t *testing.T) driver.Store { return twice{memory.New()} })
}

// Clients promise the same, later, over a store that tells of no changes and
// has no clock.
func TestClientsOfLeast(t *testing.T) {
	clienttest.RunInBubble(t, func(t *testing.T) driver.Store { return least{memory.New()} })
}

func TestHoles(t *testing.T) {
	clienttest.RunHoles(t, func(t *testing.T) driver.Store { return twice{memory.New()} })
}

// The holes are closed as well over a store that tells of no changes and has no clock.
func TestHolesOfLeast(t *testing.T) {
	clienttest.RunHoles(t, func(t *testing.T) driver.Store { return least{memory.New()} })
}

// least is a store that is no more than it must be.
type least struct{ inner *memory.Store }

func (s least) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	records, err := s.inner.Load(ctx, keys, how)
	for i := range records {
		records[i].Age = -1
	}
	return records, err
}

func (s least) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outcomes, err := s.inner.CompareAndSwap(ctx, writes)
	for i := range outcomes {
		outcomes[i].Record.Age = -1
	}
	return outcomes, err
}

// Sweep removes nothing: a store may keep its rows.
func (s least) Sweep(context.Context, time.Duration) (int, error) { return 0, nil }

func (s least) Restore(k driver.Key, r driver.Record) { s.inner.Restore(k, r) }

func (s least) Traits() driver.Traits { return driver.Traits{} }

func (s least) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	return s.inner.Keys(ctx, space, after, n)
}
