package engine

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// traceQueued emits Queued once; c.Mu is held.
func (r *Request) traceQueued() {
	f := r.c.Trace.Queued
	if r.announced || !r.c.traced {
		return
	}
	r.announced = true
	if ctx, e := r.ctx, r.event(); f != nil {
		r.c.After.Call(func() { f(ctx, e) })
	}
}

func (r *Request) event() base.Event {
	return base.Event{Name: r.name, Slots: r.Slots, Reason: r.Reason, Election: r.Seat}
}

// traceAnswer emits the outcome of a request. Acquired is the first event of a lock: a loss or
// release that came in the meantime is emitted after it.
func (r *Request) traceAnswer(l *Lock, err error) {
	c, e := r.c, r.event()
	e.Waited, e.Queued, e.Err = c.Now().Sub(r.start), r.announced, err
	switch {
	case l != nil:
		e.Token, e.Detached = l.token, c.Detaches
		base.Emit(r.ctx, c.Trace.Acquired, e)
		c.Mu.Lock()
		defer c.Unlock()
		if l.announced = true; l.err != nil {
			l.traceEnd(l.err)
		}
	case r.announced:
		base.Emit(r.ctx, c.Trace.GaveUp, e)
	default:
		base.Emit(r.ctx, c.Trace.Refused, e)
	}
}

// traceEnd emits Released or Lost; c.Mu is held.
func (l *Lock) traceEnd(cause error) {
	t, ctx := l.c.Trace, l.values
	e := base.Event{Name: l.Name(), Token: l.token, Slots: l.slots, Held: l.c.Now().Sub(l.since), Detached: l.c.Detaches, Election: l.seat}
	f := t.Released
	switch {
	case errors.Is(cause, record.ErrLost):
		f, e.Err, e.Reason, e.Broken = t.Lost, cause, l.c.Opts.Reason(cause), l.broken
	case !errors.Is(cause, base.ErrReleased):
		e.Err = cause
	}
	if f != nil {
		l.c.After.Call(func() { f(ctx, e) })
	}
}

// FenceFailed emits FenceRefused if err is that of a lost lock, and returns err.
func (l *Lock) FenceFailed(ctx context.Context, err error) error {
	if errors.Is(err, record.ErrLost) {
		base.Emit(ctx, l.c.Trace.FenceRefused, base.Event{Name: l.Name(), Token: l.token, Slots: l.slots, Err: err})
	}
	return err
}
