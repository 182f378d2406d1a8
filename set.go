package holdfast

import (
	"context"

	"github.com/holdfast-lock/holdfast/internal/engine"
)

// AcquireAll takes the locks on all names, or none, and cannot deadlock with others
// that do so: it waits in one queue at a time, in the order of the names, and while it
// waits keeps only locks on lower names. Duplicates count once.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...Option) (*LockSet, error) {
	s, err := c.e.AcquireAll(ctx, names, c.request(ctx, "", opts))
	if err != nil {
		return nil, err
	}
	set := &LockSet{s: s}
	for _, l := range s.Asked {
		set.locks = append(set.locks, (*Lock)(l))
	}
	return set, nil
}

// A LockSet is what AcquireAll took: several locks with one context.
type LockSet struct {
	s     *engine.LockSet
	locks []*Lock
}

// Locks are the locks in the order asked for; a name that was asked for twice has the
// same lock twice. The slice must not be changed.
func (s *LockSet) Locks() []*Lock { return s.locks }

// Context is the context of all locks of the set, see Lock.Context. Losing one ends it, and
// so does the release of the last.
func (s *LockSet) Context() context.Context { return s.s.Ctx }

// Err is nil while all locks of the set are held, and then says why one of them is not. It
// reads the clock itself, as Lock.Err does.
func (s *LockSet) Err() error { return s.s.Err() }

// Release gives all locks of the set back, as Lock.Release does.
func (s *LockSet) Release(ctx context.Context) error { return s.s.Release(ctx) }
