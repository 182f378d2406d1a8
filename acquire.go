package holdfast

import (
	"context"
	"slices"
)

// Acquire waits in line for the lock on a name, first come, first served across all processes. ctx
// bounds the wait, never the hold. The error is the ctx.Err() or the store's, ErrHeld (a
// *HeldError) if someone is in the way, ErrLost if the waiting claim was broken, ErrClosed or
// ErrReadOnly. A store that does not answer gets a TTL to come back; if it has never answered this
// client, its error is returned at once. Locks are not reentrant.
func (c *Client) Acquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	l, err := c.e.Acquire(ctx, c.request(ctx, name, opts))
	return (*Lock)(l), err
}

func (c *Client) request(ctx context.Context, name string, opts []Option) *request {
	r := c.e.NewRequest(ctx, name)
	for _, o := range opts {
		o(r)
	}
	return r
}

// TryAcquire is Acquire with MaxWait(0): it asks once and does not wait for live sessions.
// If the only claims in the way belong to sessions that seem to have been silent for their TTL,
// or dead for their grace, it asks them for a heartbeat and watches them: for half a TTL where
// the store's clock shows their silence, else for a TTL. It gives up as soon as one is seen
// alive, and otherwise takes over in the same call. ctx bounds the watch, too. A store that does
// not answer within 5s is an error.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.Acquire(ctx, name, append(slices.Clip(opts), MaxWait(0))...)
}

// Do runs fn while holding the lock on a name. fn's context ends with ctx, when
// the lock is lost, and with Close; the lock is released after fn has returned.
// Do returns the error that kept it from running fn, or fn's error, joined with
// ErrLost if the lock was lost while fn ran, even if fn returned nil. If fn succeeded and
// its release is not confirmed, Do returns that error of Release.
func (c *Client) Do(ctx context.Context, name string, fn func(context.Context, *Lock) error, opts ...Option) error {
	l, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	return c.e.With(ctx, l.e(), func(ctx context.Context) error { return fn(ctx, l) })
}
