package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// AcquireFor takes a lock and detaches it: it returns its claim and session, and how much is left of
// the d for which it is held.
func (c *Engine) AcquireFor(ctx context.Context, r *Request, d time.Duration) (claim record.Claim, session string, left time.Duration, err error) {
	fail := func(err error) (record.Claim, string, time.Duration, error) { return record.Claim{}, "", 0, err }
	name := r.name
	if r.Least > 0 {
		return fail(fmt.Errorf("acquire %q: %w", name, ErrNoMinHold))
	}
	ctx, cancel, err := c.WhileOpen(ctx, true)
	if err != nil {
		return fail(fmt.Errorf("acquire %q: %w", name, err))
	}
	defer cancel()
	settings := c.Opts
	settings.RuntimeDir = os.DevNull // its process may end
	sub := New(c.Bare(), settings)
	sub.Detaches = true
	l, err := sub.Acquire(ctx, r.like(sub, ctx, name))
	if err != nil {
		sub.Close(0)
		if context.Cause(ctx) == base.ErrClosed {
			err = fmt.Errorf("acquire %q: %w", name, base.ErrClosed)
		}
		return fail(err)
	}
	claim = l.claim()
	left, err = l.sess.LeaveAlone(ctx, d)
	if err != nil {
		release, done := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		if lost := l.Release(release); errors.Is(lost, record.ErrLost) {
			err = lost
		} else if context.Cause(ctx) == base.ErrClosed {
			err = base.ErrClosed
		}
		done()
		sub.Close(0)
		return fail(fmt.Errorf("acquire %q for %v: %w", name, d, err))
	}
	sub.Mu.Lock()
	l.end((*releasedError)(l)) // for this client; the claim stays
	sub.Unlock()
	sub.halt()
	return claim, l.sess.ID, left, nil
}
