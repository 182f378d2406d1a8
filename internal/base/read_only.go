package base

import (
	"context"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A readOnlyStore is the store of a client with Options.ReadOnly: a write that the client forgets
// to refuse does not reach the store either.
type readOnlyStore struct{ driver.Store }

// Unwrap is what driver.Find looks through.
func (s readOnlyStore) Unwrap() driver.Store { return s.Store }

func (readOnlyStore) CompareAndSwap(context.Context, []driver.Write) ([]driver.Outcome, error) {
	return nil, ErrReadOnly
}

func (readOnlyStore) Sweep(context.Context, time.Duration) (int, error) { return 0, ErrReadOnly }
