package holdfast

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// Follow renews a hold, each third of its TTL, until ctx ends, and has it go on while it waits. It
// gives its state at once, then after each beat and whenever it changes. When the hold is over, the
// last it gives is an error as that of Enter. A store that does not answer is tried again: nothing
// comes meanwhile. Afterwards the hold lives on for what is left of its TTL.
func (c *Client) Follow(ctx context.Context, client, id string) iter.Seq2[Hold, error] {
	return func(yield func(Hold, error) bool) {
		if err := c.followHold(ctx, client, id, func(h Hold) bool { return yield(h, nil) }); err != nil {
			yield(Hold{}, fmt.Errorf("follow hold: %w", err))
		}
	}
}

func (c *Client) followHold(ctx context.Context, client, id string, yield func(Hold) bool) error {
	var last Hold
	changed := make(chan struct{}, 1)
	subscribed := false
	for try := 0; ; try++ {
		x, err := c.oneHold(ctx, client, id, func(*holdCall) {})
		var request *RequestError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrLost), errors.Is(err, ErrOtherHold), errors.Is(err, ErrClosed), errors.Is(err, ErrReadOnly), errors.As(err, &request):
			return err
		case err != nil:
			if !c.doze(ctx, nil, 50*time.Millisecond<<min(try, 4)) {
				return nil
			}
			continue
		}
		try = 0
		if !subscribed {
			subscribed = true
			keys := []driver.Key{driver.Sessions.Key(id)}
			for _, name := range x.session.Names {
				keys = append(keys, driver.Names.Key(name))
			}
			defer c.subscribe(changed, keys...)()
			continue // what came in between
		}
		last = x.hold()
		if !yield(last) {
			return nil
		}
		beat := x.sent.Add(x.session.Duration() / 3)
		if x.session.Detached {
			beat = c.now().Add(DefaultTTL / 3)
		}
		since := c.now()
		for !last.Held || x.session.Detached {
			now := c.now()
			if now >= beat {
				break
			}
			pause := min(beat.Sub(now), max(quickLook, now.Sub(since)/8), lastPoll)
			notified, goes := c.dozeUntil(ctx, changed, pause)
			if !goes {
				return nil
			}
			if notified {
				since = c.now()
			}
			h, err := c.lookOn(ctx, x)
			if errors.Is(err, ErrLost) {
				return err
			}
			if err == nil && (h.Held != last.Held || h.Position != last.Position) {
				if last = h; !yield(h) {
					return nil
				}
			}
		}
		if last.Held {
			if !c.doze(ctx, changed, max(beat.Sub(c.now()), 0)*4/5) {
				return nil
			}
		}
	}
}

// quickLook is the shortest pause between two looks at a queue.
const quickLook = 5 * time.Millisecond

// dozeUntil waits for a notification, or for d.
func (c *Client) dozeUntil(ctx context.Context, notification <-chan struct{}, d time.Duration) (notified, goesOn bool) {
	t := c.machine.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-notification:
		notified = true
	case <-ctx.Done():
	case <-c.ctx.Done():
		return false, false
	}
	return notified, ctx.Err() == nil
}

// lookOn looks at the names of a hold that waits, has it go on, and judges the sessions ahead.
func (c *Client) lookOn(ctx context.Context, x *holdCall) (Hold, error) {
	errs := make(map[string]error)
	c.goOn(ctx, []*holdCall{x}, errs)
	if err := errs[x.id]; err != nil {
		return Hold{}, err
	}
	h := x.hold()
	x.keep(h)
	if h.Held {
		return h, nil
	}
	var ahead []string
	for i := range x.names {
		n := &x.names[i]
		for _, cl := range n.Record.Holders {
			ahead = append(ahead, cl.Session)
		}
		for _, cl := range n.Record.Waiters {
			if cl.Is(x.id, n.Claim.Nr) {
				break
			}
			ahead = append(ahead, cl.Session)
		}
	}
	looks, err := c.loadSessions(ctx, ahead)
	if err == nil {
		c.detect(ctx, looks, x.session.Names...)
	}
	return h, nil
}
