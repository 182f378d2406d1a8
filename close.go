package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// An ending says how far a client has come in closing.
type ending struct {
	closing bool          // nothing is acquired any more: Shutdown or Close has begun
	closed  bool          // Close has begun
	using   int           // running functions of Do and Election.Run
	unused  chan struct{} // closed once closed is set and no function runs
	drained chan struct{} // closed once closing is set, nothing is held, and no function runs
	quiet   chan struct{} // closed once closed is set and no claim is left
}

func newEnding() ending {
	return ending{unused: make(chan struct{}), drained: make(chan struct{}), quiet: make(chan struct{})}
}

// Shutdown closes the client when its work is done. From now on nothing is acquired:
// waiters and new callers get ErrClosed at once, and the context of the function that
// Election.Run runs ends with cause ErrClosed. Locks stay held until they are released
// and the functions of Do have returned, or until ctx ends. Then Shutdown calls Close.
// If ctx ended first, the error joins the cause of ctx with the error of Close.
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	c.refuseNew()
	c.checkDrained()
	c.unlock()
	var early error
	select {
	case <-c.end.drained:
	case <-c.ctx.Done(): // by Close
	case <-ctx.Done():
		early = fmt.Errorf("holdfast: shutdown: closed while locks were held: %w", context.Cause(ctx))
	}
	return errors.Join(early, c.Close())
}

// refuseNew refuses all requests, waiting ones and new ones; c.mu is held. It reports whether a
// lock is held.
func (c *Client) refuseNew() (holds bool) {
	c.end.closing = true
	c.shut()
	for p := range c.active {
		held, eff := p.n.Close(ErrClosed, c.env())
		holds = holds || held
		c.perform(p, eff)
	}
	for _, p := range c.parts {
		c.after.call(func() {
			p.client.mu.Lock()
			defer p.client.unlock()
			p.client.refuseNew()
		})
	}
	return holds
}

// checkDrained closes drained when a closing client holds nothing and runs no function; c.mu is
// held.
func (c *Client) checkDrained() {
	if !c.end.closing || c.end.using > 0 {
		return
	}
	if slices.ContainsFunc(c.parts, func(p *part) bool { return p.lock != nil }) {
		return
	}
	for p := range c.active {
		if p.last != nil || len(p.more) > 0 {
			return
		}
	}
	select {
	case <-c.end.drained:
	default:
		close(c.end.drained)
	}
}

// Close ends all the client's locks and gives them back: waiters get ErrClosed at once, contexts
// end with cause ErrClosed, and everything is released when the functions of Do and Election.Run
// have returned. What cannot be released within a second, because a row stays locked, ends with the
// session, whose end is then written as a tombstone. Close never takes longer than the trust
// window, plus a second. If nothing is held it gives the store 5s, or 1s if the store is known not
// to answer. An error says what is not confirmed, and then ends by itself: a lock or the session
// that could not be released, a function that has not returned, or a session that was lost before.
// The store stays open: it is the caller's. A second Close waits for the first, and returns nil.
func (c *Client) Close() error { return c.close(0) }

// close is Close. A positive grace says that a function may still run under a lock.
func (c *Client) close(grace time.Duration) error {
	c.mu.Lock()
	if c.end.closed {
		c.mu.Unlock()
		<-c.ctx.Done()
		return nil
	}
	c.end.closed = true
	first, holds := c.sess, c.endLocks()
	c.checkUnused()
	c.unlock()

	longer, err := c.awaitFunctions(first)
	grace = max(grace, longer)
	err = errors.Join(err, c.closeParts(grace))
	patience := closePatience
	if !holds {
		patience /= 2
	}
	began, limit, kept := c.now(), patience, false
	if first != nil {
		var late error
		kept, late = first.leaveShut(patience)
		err = errors.Join(err, late)
	}
	if !kept {
		quiet := false
		patience, grace, quiet = c.awaitReleases(patience, grace)
		err = errors.Join(err, c.endSession(holds, quiet, grace, patience))
	}
	// The history comes last, so that it delays nobody and needs no connection of its own.
	c.writeLast(limit - c.now().Sub(began))
	c.mu.Lock()
	ttl, shortly := c.wrote, c.wrote > 0 && !c.sweeping.done
	if err == nil && first != nil && first.life.Why() != "" {
		err = fmt.Errorf("holdfast: close: the session was lost meanwhile (%s): it ends by itself in %s", first.life.Why(), record.Short(first.life.TTL()))
	}
	c.mu.Unlock()
	if shortly && err == nil {
		c.sweepAtClose(ttl)
	}
	c.halt()
	c.proof.Close()
	return err
}

// halt ends the client's goroutines and waits for them.
func (c *Client) halt() {
	c.mu.Lock()
	c.stop() // from here on nothing is begun
	c.mu.Unlock()
	c.work.Wait()
}

// closePatience is how long a closing client goes on giving back its claims one
// by one, before it ends them all with its session.
const closePatience = time.Second

// endLocks ends all locks and requests, and reports whether there was a lock; c.mu is held.
func (c *Client) endLocks() (holds bool) {
	holds = c.refuseNew()
	t := c.now()
	for p := range c.active {
		if p.last != nil {
			p.last.close(t)
		}
		for _, l := range p.more {
			l.close(t)
		}
	}
	c.endParts()
	return holds
}

// close ends a lock with its client; c.mu is held.
func (l *Lock) close(t lease.Instant) {
	if l.err == nil {
		l.past(t, record.EndReleased, nil, "")
		l.end(ErrClosed)
	}
}

// awaitFunctions waits until no function of Do or Election.Run runs, for as long as a session of
// the client is trusted, and at least a second. If one still runs then, what is held stays shut
// for a grace.
func (c *Client) awaitFunctions(s *session) (grace time.Duration, err error) {
	left := time.Second
	if s != nil {
		left = max(s.left(), left)
	}
	c.mu.Lock()
	for _, p := range c.parts {
		if p.lock != nil {
			left = max(p.lock.sess.left(), left)
		}
	}
	c.mu.Unlock()
	deadline := c.machine.NewTimer(left)
	defer deadline.Stop()
	select {
	case <-c.end.unused:
	case <-deadline.C:
		err = errors.New("holdfast: close: a function of Do or Election.Run has not returned although its context ended; its lock is not held any more")
		grace = c.opts.Grace
	}
	return grace, err
}

// awaitReleases gives back all claims and waits until they are gone, unless they stay for a grace
// and go with the tombstone. It returns the limit of that wait, how long what was held stays shut,
// and whether nothing else is left.
func (c *Client) awaitReleases(most, grace time.Duration) (patience, shut time.Duration, quiet bool) {
	kept := grace > 0 // what is held then goes with the tombstone
	c.mu.Lock()
	for p := range c.active {
		left, eff := p.n.ReleaseAll(kept, c.env())
		grace = max(grace, left)
		c.perform(p, eff)
	}
	c.checkQuiet()
	if c.sess == nil || kept { // nothing of ours is left to be given back
		most = 0
	}
	c.unlock()
	deadline := c.machine.NewTimer(most)
	defer deadline.Stop()
	select {
	case <-c.end.quiet:
		return most, grace, true
	case <-deadline.C:
		return most, grace, false
	}
}

// endSession ends the session, if there still is one.
func (c *Client) endSession(holds, quiet bool, grace, patience time.Duration) error {
	c.mu.Lock()
	s := c.sess
	clean := quiet && grace == 0 && !c.ambiguous
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	left := patience
	switch {
	case holds:
		left = max(s.left(), 100*time.Millisecond)
	case s.answered():
		left = tryPatience - patience // the store may be slow
	}
	return s.end(clean, grace, left)
}

// use counts a function that runs under a lock, unless the client is closed.
func (c *Client) use() (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.end.closed {
		c.end.using++
	}
	return !c.end.closed
}

// unuse takes back one use.
func (c *Client) unuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end.using--
	c.checkUnused()
	c.checkDrained()
}

// checkUnused closes unused when a closed client runs no function any more; c.mu is held.
func (c *Client) checkUnused() {
	if c.end.closed && c.end.using == 0 {
		close(c.end.unused)
	}
}

// checkQuiet closes quiet when a closed client has nothing left to do, except for broken
// claims that stay until their grace is over; c.mu is held.
func (c *Client) checkQuiet() {
	if !c.end.closed {
		return
	}
	for p := range c.active {
		if !p.n.Quiet(c.now()) {
			return
		}
	}
	select {
	case <-c.end.quiet:
	default:
		close(c.end.quiet)
	}
}
