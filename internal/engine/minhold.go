package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// ErrNoMinHold refuses MinHold where there is none.
var ErrNoMinHold = errors.New("MinHold is for one lock of Acquire, TryAcquire or Do")

// A part is a lock with a session of its own.
type part struct {
	whole  *Engine       // the client that was asked
	client *Engine       // and that of the session
	lock   *Lock         // nil until it is granted, and after a loss; guarded by whole.mu
	ends   bool          // it is being released; guarded by whole.mu
	gone   chan struct{} // closed when it has been released, and its client is closed
	err    error         // after that: why the release is not confirmed
}

// acquirePart is acquire with MinHold.
func (c *Engine) acquirePart(ctx context.Context, asked *Request) (*Lock, error) {
	p, err := c.newPart()
	if err != nil {
		return nil, err
	}
	sub := p.client
	r, d := asked.like(sub, ctx, asked.name), asked.Least
	r.Least = 0
	l, err := sub.acquire(ctx, r)
	if err == nil {
		if err = l.sess.Keep(ctx, d); err != nil {
			l.leave()
			err = fmt.Errorf("it was granted, but not kept for %v: %w", d, err)
		}
	}
	c.Mu.Lock()
	if err == nil && p.ends && c.Closing {
		err = base.ErrClosed
	}
	if err == nil {
		if l.part = p; !p.ends { // else it has just been lost
			p.lock = l
		}
		c.Mu.Unlock()
		return l, nil
	}
	c.endPart(p, 0)
	c.Unlock()
	return nil, err
}

// newPart makes a client for a lock with a session of its own. The death of its process must not
// open the name early, so it makes no proof of host liveness.
func (c *Engine) newPart() (*part, error) {
	sub := New(c.Bare(), c.Opts)
	p := &part{whole: c, client: sub, gone: make(chan struct{})}
	sub.Owner, sub.Proof.Mute, sub.part = c.Owner, true, p
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Closing {
		return nil, base.ErrClosed
	}
	c.parts = append(c.parts, p)
	return p, nil
}

// endPart releases a part and closes its client, once. If a function still runs under the lock,
// what MinHold does not keep shut stays shut for a grace. c.Mu is held.
func (c *Engine) endPart(p *part, grace time.Duration) {
	if p.ends {
		return
	}
	p.ends = true
	c.Spawn(func() {
		p.err = p.client.Close(grace)
		c.Mu.Lock()
		defer c.Unlock()
		c.parts = slices.DeleteFunc(c.parts, func(o *part) bool { return o == p })
		close(p.gone)
		c.checkDrained()
	})
}

// release is Lock.Release of a part.
func (p *part) release(ctx context.Context, l *Lock) error {
	sub, c := p.client, p.whole
	t := sub.Now()
	l.checkWindow(t)
	sub.Mu.Lock()
	var lost error
	if l.err == nil {
		l.past(t, record.EndReleased, nil, "")
		l.end((*releasedError)(l))
	} else if errors.Is(l.err, record.ErrLost) {
		lost = l.err
	}
	sub.Unlock()
	c.Mu.Lock()
	select {
	case <-c.Ctx.Done():
	default:
		c.endPart(p, 0)
	}
	c.Unlock()
	if lost != nil {
		return lost
	}
	select {
	case <-p.gone:
		if p.err != nil {
			return fmt.Errorf("release %q: not confirmed: %w", l.Name(), p.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("release %q: not confirmed: %w; the client keeps trying, and after Close it ends by itself", l.Name(), ctx.Err())
	}
}

// Owns says whether a session is this client's, or that of a part of it.
func (c *Engine) Owns(session string) bool {
	c.Mu.Lock()
	ours := c.IsOurs(session)
	c.Mu.Unlock()
	if c.part != nil {
		c = c.part.whole
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return ours || slices.ContainsFunc(c.parts, func(p *part) bool { return p.lock != nil && p.lock.sess.ID == session })
}

// lost notes that the lock was lost. A broken lock is released when its work has stopped.
func (p *part) lost(broken bool) {
	c := p.whole
	c.Mu.Lock()
	defer c.Unlock()
	if p.lock = nil; !broken && c.Ctx.Err() == nil {
		c.endPart(p, 0)
	}
	c.checkDrained()
}

// endParts ends belief in the locks of all parts, and refuses requests that wait; c.Mu is held.
func (c *Engine) endParts() {
	for _, p := range c.parts {
		c.After.Call(func() {
			p.client.Mu.Lock()
			defer p.client.Unlock()
			p.client.endLocks()
		})
	}
}

// closeParts releases all parts, waits for that, and returns what is not confirmed.
func (c *Engine) closeParts(grace time.Duration) (err error) {
	c.Mu.Lock()
	parts := slices.Clone(c.parts)
	for _, p := range parts {
		c.endPart(p, grace)
	}
	c.Unlock()
	for _, p := range parts {
		<-p.gone
		err = errors.Join(err, p.err)
	}
	return err
}
