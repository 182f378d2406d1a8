package holdfast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/internal/holds"
)

// New makes a client on a store. It refuses bad settings and does no I/O: the
// session opens with the first claim, so a client that only looks writes
// nothing. opts may be nil.
func New(store driver.Store, opts *Options) (*Client, error) {
	if store == nil {
		return nil, errors.New("holdfast: no store")
	}
	if opts == nil {
		opts = &Options{}
	}
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	owner := opts.Owner
	owner.Labels = maps.Clone(owner.Labels)
	c := engine.New(store, base.Config{
		TTL: opts.TTL, Grace: opts.Grace, Owner: record.Owner(fillOwner(owner)), RuntimeDir: opts.RuntimeDir,
		Log: opts.Logger, Trace: opts.Trace.hooks(), ReadOnly: opts.ReadOnly,
		Public: public,
		Lost:   func(name string, token int64, why string, err error) error { return &LostError{name, token, why, err} },
		Reason: func(err error) string {
			var lost *LostError
			if errors.As(err, &lost) {
				return lost.Reason
			}
			return ""
		},
	})
	return &Client{e: c, h: holds.New(c)}, nil
}

// StoreTTL returns the store's setting for how long a session may be silent. Clients
// without a TTL of their own read it once per TTL and adopt a change with their next heartbeat.
func (c *Client) StoreTTL(ctx context.Context) (time.Duration, error) {
	return c.e.ReadTTL(ctx, driver.Fresh)
}

// SetStoreTTL changes the store's setting, also while clients run. A session is declared dead
// by the TTL in its own record, so none is lost to a change that it has not read.
func (c *Client) SetStoreTTL(ctx context.Context, ttl time.Duration) error {
	ttl = ttl.Round(time.Millisecond)
	if ttl < MinTTL || ttl > MaxTTL {
		return fmt.Errorf("set ttl: TTL %v is not between %v and %v", ttl, MinTTL, MaxTTL)
	}
	value, err := json.Marshal(base.TTLSetting{TTL: ttl.Milliseconds()})
	if err != nil {
		return err
	}
	if _, err := c.e.Update(ctx, base.TTLKey, driver.Everyone, func(driver.Record) ([]byte, error) { return value, nil }); err != nil {
		return fmt.Errorf("set ttl: %w", err)
	}
	return nil
}

// A Client takes locks in one store. It may be used by any number of
// goroutines; one per process is enough, and best: its locks share one session, whose
// one heartbeat keeps them, and goroutines that want the same name queue in memory and
// bother the store once. Only locks with MinHold and those of AcquireFor have sessions
// of their own.
type Client struct {
	e *engine.Engine
	h *holds.Keeper
}

// Healthy is nil while this client can take locks and keep those that it has. It does no I/O while
// heartbeats are answered; without a session it reads a setting of the store. The error says what
// is wrong: the client is closed, the store does not answer, or heartbeats have not been answered
// for so long that less than a quarter of the TTL is left. It does not look at locks with MinHold,
// which have sessions of their own.
func (c *Client) Healthy(ctx context.Context) error { return c.e.Healthy(ctx) }

// Shutdown closes the client when its work is done. From now on nothing is acquired:
// waiters and new callers get ErrClosed at once, and the context of the function that
// Election.Run runs ends with cause ErrClosed. Locks stay held until they are released
// and the functions of Do have returned, or until ctx ends. Then Shutdown calls Close.
// If ctx ended first, the error joins the cause of ctx with the error of Close.
func (c *Client) Shutdown(ctx context.Context) error { return c.e.Shutdown(ctx) }

// Close ends all the client's locks and gives them back: waiters get ErrClosed at once, contexts
// end with cause ErrClosed, and everything is released when the functions of Do and Election.Run
// have returned. What cannot be released within a second, because a row stays locked, ends with the
// session, whose end is then written as a tombstone. Close never takes longer than the trust
// window, plus a second. If nothing is held it gives the store 5s, or 1s if the store is known not
// to answer. An error says what is not confirmed, and then ends by itself: a lock or the session
// that could not be released, a function that has not returned, or a session that was lost before.
// The store stays open: it is the caller's. A second Close waits for the first, and returns nil.
func (c *Client) Close() error { return c.e.Close(0) }
