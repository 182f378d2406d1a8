package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// AcquireAll takes the locks on all names, or none, and cannot deadlock with others
// that do so: it waits in one queue at a time, in the order of the names, and while it
// waits keeps only locks on lower names. Duplicates count once.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...Option) (*LockSet, error) {
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(sorted) == 0 {
		return nil, errors.New("acquire: no names")
	}
	for _, name := range sorted {
		r := c.newRequest(ctx, name, opts)
		if r.least > 0 {
			r.fail(errNoMinHold)
		}
		if r.bad != nil {
			return nil, fmt.Errorf("acquire %q: %w", name, r.bad)
		}
	}
	got := make(map[string]*Lock)
	if err := c.collect(ctx, sorted, opts, got); err != nil {
		for _, l := range got {
			l.leave()
		}
		return nil, err
	}
	set := &LockSet{}
	set.ctx, set.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.mu.Lock()
	for _, name := range sorted {
		set.locks = append(set.locks, got[name])
	}
	var lost error // of a lock that was lost just now
	for _, l := range set.locks {
		l.set = set
		if l.err != nil {
			lost = l.err
		}
	}
	c.mu.Unlock()
	if lost != nil {
		set.cancel(lost)
		set.Release(ctx)
		return nil, fmt.Errorf("acquire %s: %w", quoted(sorted), lost)
	}
	for _, name := range names {
		set.asked = append(set.asked, got[name])
	}
	return set, nil
}

// A LockSet is what AcquireAll took: several locks with one context.
type LockSet struct {
	asked  []*Lock
	locks  []*Lock // each once
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Locks are the locks in the order asked for; a name that was asked for twice has the
// same lock twice. The slice must not be changed.
func (s *LockSet) Locks() []*Lock { return s.asked }

// Context is the context of all locks of the set, see Lock.Context. Losing one ends it, and
// so does the release of the last.
func (s *LockSet) Context() context.Context { return s.ctx }

// Err is nil while all locks of the set are held, and then says why one of them is not. It
// reads the clock itself, as Lock.Err does.
func (s *LockSet) Err() error {
	for _, l := range s.locks {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Release gives all locks of the set back, as Lock.Release does.
func (s *LockSet) Release(ctx context.Context) error {
	var errs []error
	var wait []*Lock
	for _, l := range s.locks {
		if lost := l.leave(); lost != nil {
			errs = append(errs, lost)
		} else {
			wait = append(wait, l)
		}
	}
	for _, l := range wait {
		errs = append(errs, l.awaitGone(ctx))
	}
	return errors.Join(errs...)
}

// collect takes all names, as a core.Set says, and gathers the locks in got.
func (c *Client) collect(ctx context.Context, names []string, opts []Option, got map[string]*Lock) error {
	start, any := c.now(), c.newRequest(ctx, names[0], opts)
	set := core.NewSet(names, any.bounded, any.maxWait, start)
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("acquire %s: %w", quoted(names), err)
		}
		if err := dropLost(ctx, set, got); err != nil {
			return fmt.Errorf("acquire %s: %w", quoted(names), err)
		}
		missing, within := set.Missing(c.now())
		if len(missing) == 0 {
			return nil
		}
		why := c.tryAll(ctx, set, missing, start, within, opts, got)
		step := set.Next(c.now())
		for _, name := range step.Back { // their drivers release them before they ask again
			got[name].leave()
			delete(got, name)
		}
		switch step.Kind {
		case core.SetFail:
			var held *HeldError
			if step.Most != 0 && errors.As(why, &held) {
				c.explain(held, step.Most)
			}
			if c.traced {
				r := c.newRequest(ctx, step.Name, opts)
				r.start = start
				r.traceAnswer(nil, why)
			}
			return ofSet(names, step.Name, why)
		case core.SetWait:
			r := c.newRequest(ctx, step.Name, opts)
			r.set, r.maxWait = step.Set, step.Most
			l, err := c.acquire(ctx, r)
			if err != nil {
				return ofSet(names, step.Name, err)
			}
			got[step.Name] = l
			set.Got(step.Name)
		}
	}
}

// tryAll tries names of a set in one call, and returns why it did not get the lowest of
// those that it missed. The store has within, counted from start, to answer.
func (c *Client) tryAll(ctx context.Context, set *core.Set, names []string, start lease.Instant, within time.Duration, opts []Option, got map[string]*Lock) (why error) {
	var tries []*request
	c.mu.Lock()
	for _, name := range names {
		r := c.newRequest(ctx, name, opts)
		r.start, r.within = start, within
		r.bounded, r.maxWait = true, 0
		c.join(r, c.now())
		tries = append(tries, r)
	}
	c.unlock()
	for _, r := range tries {
		l, err := c.await(ctx, r)
		if l != nil {
			if c.traced {
				r.traceAnswer(l, nil)
			}
			got[r.name] = l
			set.Got(r.name)
			continue
		}
		if set.Failed(r.name, errors.Is(err, ErrHeld)); why == nil {
			why = err
		}
	}
	return why
}

// dropLost takes locks that were lost out of a set that is being collected.
func dropLost(ctx context.Context, set *core.Set, got map[string]*Lock) error {
	for name, l := range got {
		err := l.Err()
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrLost) || !set.Lost(name, l.broken) {
			return err
		}
		delete(got, name)
		l.Release(ctx) // it says only that it was lost
	}
	return nil
}

// ofSet says at which name of a set an error occurred.
func ofSet(names []string, failed string, err error) error {
	if len(names) == 1 {
		return fmt.Errorf("acquire %q: %w", failed, err)
	}
	return fmt.Errorf("acquire %q (%d of %d names): %w", failed, slices.Index(names, failed)+1, len(names), err)
}

func quoted(names []string) string {
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", name)
	}
	return b.String()
}
