package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// AcquireAll takes the locks on all names, or none.
func (c *Engine) AcquireAll(ctx context.Context, names []string, asked *Request) (*LockSet, error) {
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(sorted) == 0 {
		return nil, errors.New("acquire: no names")
	}
	if asked.Least > 0 {
		asked.Fail(ErrNoMinHold)
	}
	for _, name := range sorted {
		if err := asked.like(c, ctx, name).check(); err != nil {
			return nil, fmt.Errorf("acquire %q: %w", name, err)
		}
	}
	got := make(map[string]*Lock)
	if err := c.collect(ctx, sorted, asked, got); err != nil {
		for _, l := range got {
			l.leave()
		}
		return nil, err
	}
	set := &LockSet{}
	set.Ctx, set.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.Mu.Lock()
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
	c.Mu.Unlock()
	if lost != nil {
		set.cancel(lost)
		set.Release(ctx)
		return nil, fmt.Errorf("acquire %s: %w", quoted(sorted), lost)
	}
	for _, name := range names {
		set.Asked = append(set.Asked, got[name])
	}
	return set, nil
}

// A LockSet is several locks with one context.
type LockSet struct {
	Asked  []*Lock // in the order asked for
	locks  []*Lock // each once
	Ctx    context.Context
	cancel context.CancelCauseFunc
}

func (s *LockSet) Err() error {
	for _, l := range s.locks {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

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

// collect takes all names that are asked for, as a core.Set says, and gathers the locks in got.
func (c *Engine) collect(ctx context.Context, names []string, asked *Request, got map[string]*Lock) error {
	start := c.Now()
	set := core.NewSet(names, asked.Bounded, asked.MaxWait, start)
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("acquire %s: %w", quoted(names), err)
		}
		if err := dropLost(ctx, set, got); err != nil {
			return fmt.Errorf("acquire %s: %w", quoted(names), err)
		}
		missing, within := set.Missing(c.Now())
		if len(missing) == 0 {
			return nil
		}
		why := c.tryAll(ctx, set, missing, start, within, asked, got)
		step := set.Next(c.Now())
		for _, name := range step.Back { // their drivers release them before they ask again
			got[name].leave()
			delete(got, name)
		}
		switch step.Kind {
		case core.SetFail:
			if held, ok := why.(*Held); ok && step.Most != 0 {
				c.Explain(held, step.Most)
			}
			if c.traced {
				r := asked.like(c, ctx, step.Name)
				r.start = start
				r.traceAnswer(nil, why)
			}
			return ofSet(names, step.Name, c.Opts.Public(why))
		case core.SetWait:
			r := asked.like(c, ctx, step.Name)
			r.set, r.MaxWait = step.Set, step.Most
			l, err := c.acquire(ctx, r)
			if err != nil {
				return ofSet(names, step.Name, c.Opts.Public(err))
			}
			got[step.Name] = l
			set.Got(step.Name)
		}
	}
}

// tryAll tries names of a set in one call, and returns why it did not get the lowest of
// those that it missed. The store has within, counted from start, to answer.
func (c *Engine) tryAll(ctx context.Context, set *core.Set, names []string, start lease.Instant, within time.Duration, asked *Request, got map[string]*Lock) (why error) {
	var tries []*Request
	c.Mu.Lock()
	for _, name := range names {
		r := asked.like(c, ctx, name)
		r.start, r.within = start, within
		r.Bounded, r.MaxWait = true, 0
		c.join(r, c.Now())
		tries = append(tries, r)
	}
	c.Unlock()
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
		if set.Failed(r.name, errors.Is(err, base.ErrHeld)); why == nil {
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
		if !errors.Is(err, record.ErrLost) || !set.Lost(name, l.broken) {
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
