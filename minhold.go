package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// MinHold keeps the name shut for at least d after the grant, even if the lock is released earlier
// or its process dies. So with TryAcquire a job that several hosts start by their own clocks, which
// differ by seconds, runs once; a host that waits runs it again after d. After d the lock is like
// any other: it lasts until Release. It has a session, and so a heartbeat, of its own. If its
// process dies in the last TTL of d (or the last half of d, if that is shorter) or later, the name
// is free a TTL after its last heartbeat. Break opens the name early. d is at least 1s. AcquireAll,
// AcquireFor and Election refuse MinHold.
func MinHold(d time.Duration) Option {
	return func(r *request) {
		r.least = d
		if d < MinTTL || d > MaxTTL {
			r.fail(fmt.Errorf("MinHold(%v) is not between %v and %v", d, MinTTL, MaxTTL))
		}
	}
}

var errNoMinHold = errors.New("MinHold is for one lock of Acquire, TryAcquire or Do")

// A part is a lock with a session of its own.
type part struct {
	whole  *Client       // the client that was asked
	client *Client       // and that of the session
	lock   *Lock         // nil until it is granted, and after a loss; guarded by whole.mu
	ends   bool          // it is being released; guarded by whole.mu
	gone   chan struct{} // closed when it has been released, and its client is closed
	err    error         // after that: why the release is not confirmed
}

// acquirePart is acquire with MinHold.
func (c *Client) acquirePart(ctx context.Context, name string, d time.Duration, opts []Option) (*Lock, error) {
	p, err := c.newPart()
	if err != nil {
		return nil, err
	}
	sub := p.client
	r := sub.newRequest(ctx, name, opts)
	r.least = 0
	l, err := sub.acquire(ctx, r)
	if err == nil {
		if err = l.sess.keep(ctx, d); err != nil {
			l.leave()
			err = fmt.Errorf("it was granted, but not kept for %v: %w", d, err)
		}
	}
	c.mu.Lock()
	if err == nil && p.ends && c.end.closing {
		err = ErrClosed
	}
	if err == nil {
		if l.part = p; !p.ends { // else it has just been lost
			p.lock = l
		}
		c.mu.Unlock()
		return l, nil
	}
	c.endPart(p, 0)
	c.unlock()
	return nil, err
}

// newPart makes a client for a lock with a session of its own. The death of its process must not
// open the name early, so it makes no proof of host liveness.
func (c *Client) newPart() (*part, error) {
	settings := c.opts
	sub, err := New(c.bare(), &settings)
	if err != nil {
		return nil, err
	}
	p := &part{whole: c, client: sub, gone: make(chan struct{})}
	sub.owner, sub.proof.Mute, sub.part = c.owner, true, p
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end.closing {
		return nil, ErrClosed
	}
	c.parts = append(c.parts, p)
	return p, nil
}

// endPart releases a part and closes its client, once. If a function still runs under the lock,
// what MinHold does not keep shut stays shut for a grace. c.mu is held.
func (c *Client) endPart(p *part, grace time.Duration) {
	if p.ends {
		return
	}
	p.ends = true
	c.spawn(func() {
		p.err = p.client.close(grace)
		c.mu.Lock()
		defer c.unlock()
		c.parts = slices.DeleteFunc(c.parts, func(o *part) bool { return o == p })
		close(p.gone)
		c.checkDrained()
	})
}

// release is Lock.Release of a part.
func (p *part) release(ctx context.Context, l *Lock) error {
	sub, c := p.client, p.whole
	t := sub.now()
	l.checkWindow(t)
	sub.mu.Lock()
	var lost error
	if l.err == nil {
		l.past(t, record.EndReleased, nil, "")
		l.end((*releasedError)(l))
	} else if errors.Is(l.err, ErrLost) {
		lost = l.err
	}
	sub.unlock()
	c.mu.Lock()
	select {
	case <-c.ctx.Done():
	default:
		c.endPart(p, 0)
	}
	c.unlock()
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

// owns says whether a session is this client's, or that of a part of it.
func (c *Client) owns(session string) bool {
	c.mu.Lock()
	ours := c.isOurs(session)
	c.mu.Unlock()
	if c.part != nil {
		c = c.part.whole
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return ours || slices.ContainsFunc(c.parts, func(p *part) bool { return p.lock != nil && p.lock.sess.id == session })
}

// lost notes that the lock was lost. A broken lock is released when its work has stopped.
func (p *part) lost(broken bool) {
	c := p.whole
	c.mu.Lock()
	defer c.unlock()
	if p.lock = nil; !broken && c.ctx.Err() == nil {
		c.endPart(p, 0)
	}
	c.checkDrained()
}

// endParts ends belief in the locks of all parts, and refuses requests that wait; c.mu is held.
func (c *Client) endParts() {
	for _, p := range c.parts {
		c.after.call(func() {
			p.client.mu.Lock()
			defer p.client.unlock()
			p.client.endLocks()
		})
	}
}

// closeParts releases all parts, waits for that, and returns what is not confirmed.
func (c *Client) closeParts(grace time.Duration) (err error) {
	c.mu.Lock()
	parts := slices.Clone(c.parts)
	for _, p := range parts {
		c.endPart(p, grace)
	}
	c.unlock()
	for _, p := range parts {
		<-p.gone
		err = errors.Join(err, p.err)
	}
	return err
}

// keep makes the names of the session stay shut for d from now.
func (s *session) keep(ctx context.Context, d time.Duration) error {
	c := s.c
	c.mu.Lock()
	s.life.Keep(d, c.now())
	alone := make(chan struct{})
	s.alone = alone
	c.mu.Unlock()
	signal(s.wake)
	select {
	case <-alone:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.idle:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.life.Why() != "":
		return errors.New("lost: " + s.life.Why())
	case s.life.Over():
		return ErrClosed
	}
	return nil
}

// leaveShut ends a session that keeps its names shut for a while longer. It reports false if it
// need not keep them shut: that time is over, or the lock was lost or broken.
func (s *session) leaveShut(limit time.Duration) (left bool, err error) {
	c := s.c
	c.mu.Lock()
	until, ok := s.life.Shut()
	if !ok || s.life.Over() || until <= c.now() || s.broke {
		c.mu.Unlock()
		return false, nil
	}
	s.life.Leave()
	alone := make(chan struct{})
	s.alone = alone
	c.mu.Unlock()
	signal(s.wake)
	t := c.machine.NewTimer(min(limit, until.Sub(c.now())))
	defer t.Stop()
	select {
	case <-alone:
	case <-s.idle:
	case <-t.C:
		err = fmt.Errorf("holdfast: not known to others as released: it stays held for %s at most", record.Short(until.Sub(c.now())+s.life.Usual()))
	}
	c.mu.Lock()
	if !s.life.Over() {
		s.life.End()
		close(s.ended)
		c.after.call(func() { s.traceEnded("", nil) })
	}
	c.unlock()
	return true, err
}
