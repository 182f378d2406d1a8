package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// An ending says how far a client has come in closing.
type ending struct {
	using   int           // running functions of Do and Election.Run
	unused  chan struct{} // closed once closed is set and no function runs
	drained chan struct{} // closed once closing is set, nothing is held, and no function runs
	quiet   chan struct{} // closed once closed is set and no claim is left
}

func newEnding() ending {
	return ending{unused: make(chan struct{}), drained: make(chan struct{}), quiet: make(chan struct{})}
}

// refuseNew refuses all requests, waiting ones and new ones; c.Mu is held. It reports whether a
// lock is held.
func (c *Engine) refuseNew() (holds bool) {
	c.Closing = true
	c.Shut()
	for p := range c.active {
		held, eff := p.n.Close(base.ErrClosed, c.env())
		holds = holds || held
		c.perform(p, eff)
	}
	for _, p := range c.parts {
		c.After.Call(func() {
			p.client.Mu.Lock()
			defer p.client.Unlock()
			p.client.refuseNew()
		})
	}
	return holds
}

// checkDrained closes drained when a closing client holds nothing and runs no function; c.Mu is
// held.
func (c *Engine) checkDrained() {
	if !c.Closing || c.end.using > 0 {
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

// Close is Close. A positive grace says that a function may still run under a lock.
func (c *Engine) Close(grace time.Duration) error {
	c.Mu.Lock()
	if c.Closed {
		c.Mu.Unlock()
		<-c.Ctx.Done()
		return nil
	}
	c.Closed = true
	first, holds := c.Sess, c.endLocks()
	c.checkUnused()
	c.Unlock()

	longer, err := c.awaitFunctions(first)
	grace = max(grace, longer)
	err = errors.Join(err, c.closeParts(grace))
	patience := closePatience
	if !holds {
		patience /= 2
	}
	began, limit, kept := c.Now(), patience, false
	if first != nil {
		var late error
		kept, late = first.LeaveShut(patience)
		err = errors.Join(err, late)
	}
	if !kept {
		quiet := false
		patience, grace, quiet = c.awaitReleases(patience, grace)
		err = errors.Join(err, c.endSession(holds, quiet, grace, patience))
	}
	// The history comes last, so that it delays nobody and needs no connection of its own.
	c.WriteLast(limit - c.Now().Sub(began))
	c.Mu.Lock()
	ttl, shortly := c.Wrote, c.Wrote > 0 && !c.Sweeping.Done
	if err == nil && first != nil && first.Life.Why() != "" {
		err = fmt.Errorf("holdfast: close: the session was lost meanwhile (%s): it ends by itself in %s", first.Life.Why(), record.Short(first.Life.TTL()))
	}
	c.Mu.Unlock()
	if shortly && err == nil {
		c.SweepAtClose(ttl)
	}
	c.halt()
	c.Proof.Close()
	return err
}

// halt ends the client's goroutines and waits for them.
func (c *Engine) halt() {
	c.Mu.Lock()
	c.Stop() // from here on nothing is begun
	c.Mu.Unlock()
	c.Work.Wait()
}

// closePatience is how long a closing client goes on giving back its claims one
// by one, before it ends them all with its session.
const closePatience = time.Second

// endLocks ends all locks and requests, and reports whether there was a lock; c.Mu is held.
func (c *Engine) endLocks() (holds bool) {
	holds = c.refuseNew()
	t := c.Now()
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

// close ends a lock with its client; c.Mu is held.
func (l *Lock) close(t lease.Instant) {
	if l.err == nil {
		l.past(t, record.EndReleased, nil, "")
		l.end(base.ErrClosed)
	}
}

// awaitFunctions waits until no function of Do or Election.Run runs, for as long as a session of
// the client is trusted, and at least a second. If one still runs then, what is held stays shut
// for a grace.
func (c *Engine) awaitFunctions(s *base.Session) (grace time.Duration, err error) {
	left := time.Second
	if s != nil {
		left = max(s.Left(), left)
	}
	c.Mu.Lock()
	for _, p := range c.parts {
		if p.lock != nil {
			left = max(p.lock.sess.Left(), left)
		}
	}
	c.Mu.Unlock()
	deadline := c.Machine.NewTimer(left)
	defer deadline.Stop()
	select {
	case <-c.end.unused:
	case <-deadline.C:
		err = errors.New("holdfast: close: a function of Do or Election.Run has not returned although its context ended; its lock is not held any more")
		grace = c.Opts.Grace
	}
	return grace, err
}

// awaitReleases gives back all claims and waits until they are gone, unless they stay for a grace
// and go with the tombstone. It returns the limit of that wait, how long what was held stays shut,
// and whether nothing else is left.
func (c *Engine) awaitReleases(most, grace time.Duration) (patience, shut time.Duration, quiet bool) {
	kept := grace > 0 // what is held then goes with the tombstone
	c.Mu.Lock()
	for p := range c.active {
		left, eff := p.n.ReleaseAll(kept, c.env())
		grace = max(grace, left)
		c.perform(p, eff)
	}
	c.checkQuiet()
	if c.Sess == nil || kept { // nothing of ours is left to be given back
		most = 0
	}
	c.Unlock()
	deadline := c.Machine.NewTimer(most)
	defer deadline.Stop()
	select {
	case <-c.end.quiet:
		return most, grace, true
	case <-deadline.C:
		return most, grace, false
	}
}

// endSession ends the session, if there still is one.
func (c *Engine) endSession(holds, quiet bool, grace, patience time.Duration) error {
	c.Mu.Lock()
	s := c.Sess
	clean := quiet && grace == 0 && !c.ambiguous
	c.Mu.Unlock()
	if s == nil {
		return nil
	}
	left := patience
	switch {
	case holds:
		left = max(s.Left(), 100*time.Millisecond)
	case s.Answered():
		left = core.TryPatience - patience // the store may be slow
	}
	return s.End(clean, grace, left)
}

// use counts a function that runs under a lock, unless the client is closed.
func (c *Engine) use() (ok bool) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if !c.Closed {
		c.end.using++
	}
	return !c.Closed
}

// unuse takes back one use.
func (c *Engine) unuse() {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.end.using--
	c.checkUnused()
	c.checkDrained()
}

// checkUnused closes unused when a closed client runs no function any more; c.Mu is held.
func (c *Engine) checkUnused() {
	if c.Closed && c.end.using == 0 {
		close(c.end.unused)
	}
}

// checkQuiet closes quiet when a closed client has nothing left to do, except for broken
// claims that stay until their grace is over; c.Mu is held.
func (c *Engine) checkQuiet() {
	if !c.Closed {
		return
	}
	for p := range c.active {
		if !p.n.Quiet(c.Now()) {
			return
		}
	}
	select {
	case <-c.end.quiet:
	default:
		close(c.end.quiet)
	}
}

// Shutdown closes the client when its work is done.
func (c *Engine) Shutdown(ctx context.Context) error {
	c.Mu.Lock()
	c.refuseNew()
	c.checkDrained()
	c.Unlock()
	var early error
	select {
	case <-c.end.drained:
	case <-c.Ctx.Done(): // by Close
	case <-ctx.Done():
		early = fmt.Errorf("holdfast: shutdown: closed while locks were held: %w", context.Cause(ctx))
	}
	return errors.Join(early, c.Close(0))
}
