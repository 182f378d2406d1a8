package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// kick has the driver of a place look at what is wanted; c.mu is held. A place
// that is no longer the name's has no business there: to it the claims of its
// successor are claims that nobody wants.
func (c *Client) kick(p *place) {
	if p.busy || c.ctx.Err() != nil || c.places[p.name] != p {
		return
	}
	p.busy = true
	c.work.Add(1)
	if c.here && c.mine == nil {
		c.mine = p // for the goroutine that is at it anyway
		return
	}
	go c.drive(p, nil)
}

// do calls f with c.mu held, and then is itself the driver of the place that f
// has kicked, for one write to a store that is quick: to wake other goroutines
// for it would take a good part of its time.
func (c *Client) do(ctx context.Context, f func()) {
	quick := ctx.Err() == nil && c.batch.quick()
	c.mu.Lock()
	c.here = quick
	f()
	p := c.mine
	c.here, c.mine = false, nil
	c.unlock()
	if p != nil {
		c.drive(p, ctx)
	}
}

// drive makes the record of a place follow what is wanted, one write at a
// time. It ends when there is nothing more to write; hints, the wait loop and
// the goroutines that lock and release kick it again. With a context of its
// caller it makes one write, and leaves everything else to a goroutine.
func (c *Client) drive(p *place, here context.Context) {
	lost := 0                            // writes in a row that lost
	looked := false                      // since the last of them
	glancer, spread := c.store.(Glancer) // writes of one key that meet there delay each other
	var took time.Duration
	for c.ctx.Err() == nil {
		c.mu.Lock()
		c.perform(p, p.n.Confirm())
		var s *session
		if p.n.NeedsSession() {
			s = c.current()
			p.n.Assign(c.env())
		}
		opens := s != nil && !s.life.Opened()
		env := c.env()
		next, changed := p.n.Plan(env)
		look := p.n.Look(changed) || lost > 2 && !looked && !spread
		peek := spread && changed && p.n.Known() && (lost > 0 || p.pos != nil) && env.Now.Sub(p.n.Fresh()) > peekAfter
		comes := spread && changed && opens && !s.life.Opening() && p.n.Untouched() // perhaps to a crowd: does not write blindly
		if here != nil && (opens || look || peek || changed && took > 0) {
			c.unlock()
			go c.drive(p, nil)
			return
		}
		switch {
		case comes:
			c.unlock()
			c.peek(glancer, p)
		case opens && s.life.Opening():
			patience := p.n.Patience(env)
			c.unlock()
			c.awaitOpen(p, s, patience)
		case opens:
			s.life.Open()
			c.unlock()
			c.openWith(p, s)
		case look:
			p.n.Looking()
			c.unlock()
			if lost > 2 && !spread {
				c.pause(c.upTo(min(took<<min(lost-2, 5), maxPause)))
			}
			if looked = c.lookAt(p); !looked {
				c.pause(c.backoff(p))
			}
		case peek:
			c.unlock()
			c.peek(glancer, p)
		case changed:
			w := p.n.Write(next, env)
			leaves := p.n.Leaves()
			timeout := c.callTimeout()
			if p.n.Tries() {
				timeout = min(timeout, tryPatience)
			}
			c.unlock()
			var sw *swap
			if here == nil {
				sw = c.batch.do(p.storeWrite(w), timeout)
			} else if sw = c.batch.alone(here, p.storeWrite(w), timeout); sw == nil {
				go c.drive(p, nil)
				return
			}
			took, looked = max(c.now().Sub(sw.sent), 1), false
			switch c.answered(p, sw, w, here) {
			case core.Won:
				lost = 0
			case core.LostTo:
				if lost++; spread && !leaves {
					wide := min(lost-1, 4)
					if lost > 8 { // who comes anew does not pause, and shall not always be before us
						wide = 0
					}
					c.pause(c.upTo(min(4*took<<wide, maxSpread)))
				}
			case core.Ambiguous:
				if here != nil {
					go c.drive(p, nil)
					return
				}
				c.pause(c.backoff(p))
			}
		case c.denyTries(p):
			c.unlock()
		default:
			p.busy = false
			if p.n.Idle() && (!p.n.Debt() || c.closed) {
				c.debts = c.debts || p.n.Debt()
				c.leave(p)
			}
			c.checkQuiet()
			c.unlock()
			c.work.Done()
			return
		}
	}
	c.work.Done()
}

// maxPause bounds what a write that lost waits before the next look; maxSpread
// where a crowd that writes one key has to be spread out.
const (
	maxPause  = 250 * time.Millisecond
	maxSpread = 4 * time.Second
)

// openWith opens a session in one call with its first claim.
func (c *Client) openWith(p *place, s *session) {
	var w core.Write
	writes := false
	sw := s.open(func() (Write, bool) {
		env := c.env()
		var next core.LockRecord
		if next, writes = p.n.Plan(env); !writes {
			return Write{}, false
		}
		w = p.n.Write(next, env)
		return p.storeWrite(w), true
	})
	if !writes {
		return
	}
	if sw.write = p.storeWrite(w); c.answered(p, sw, w, nil) == core.Ambiguous {
		c.pause(c.backoff(p))
	}
}

// awaitOpen waits until a session is open, or over.
func (c *Client) awaitOpen(p *place, s *session, patience time.Duration) {
	t := c.machine.NewTimer(patience)
	defer t.Stop()
	select {
	case <-s.ready:
	case <-c.ctx.Done():
	case <-t.C:
		c.mu.Lock()
		defer c.unlock()
		if err := s.life.Failing(); err != nil {
			c.failed(p, err, false)
		}
	}
}

// ttl is the session's; c.mu is held.
func (c *Client) ttl() time.Duration {
	if c.sess != nil && c.sess.life.TTL() > 0 {
		return c.sess.life.TTL()
	}
	return DefaultTTL
}

// callTimeout bounds one call to the store, so that one that hangs is tried
// again; c.mu is held.
func (c *Client) callTimeout() time.Duration {
	return max(c.ttl()/2, min(c.ttl(), time.Second))
}

// storeWrite is a write as the store takes it.
func (p *place) storeWrite(w core.Write) Write {
	return Write{Key: Key{Names, p.name}, Old: int64(w.Old), Value: w.Next.Encode(max(w.Old, 0)), Wake: w.Wake, Lazy: w.Lazy}
}

// answered takes in what became of a write. An error is not the store's if the
// context here had ended.
func (c *Client) answered(p *place, sw *swap, w core.Write, here context.Context) core.Result {
	out := core.Outcome{Sent: sw.sent, Won: sw.out.Won, Version: core.Version(sw.out.Record.Version), Err: sw.err,
		Busy: errors.Is(sw.err, ErrBusy), Cut: here != nil && here.Err() != nil}
	if sw.err == nil && !out.Won {
		out.Record, out.Bad = lockOf(sw.out.Record)
		out.Same = sw.lostToOld()
	}
	c.mu.Lock()
	defer c.unlock()
	if sw.write.Lazy {
		c.lazy[p.name] = c.now() // a crash of the database may take it back, whatever the answer
	}
	if sw.err == nil && out.Bad == nil {
		p.saw(sw.out.Record)
		c.answers = true
	}
	result, eff := p.n.Answered(w, out, c.env())
	c.answers = c.answers || out.Busy && !out.Cut
	c.perform(p, eff)
	return result
}

// lostToOld says whether a write lost to the very record that it was to follow: a
// transaction of the database keeps that record's row locked (a fence, before its
// commit).
func (s *swap) lostToOld() bool {
	if s.write.Old == IfEmpty {
		return len(s.out.Record.Value) == 0
	}
	return s.write.Old == s.out.Record.Version
}

// lookAt loads the record of a place and reports whether the store answered.
func (c *Client) lookAt(p *place) bool {
	c.mu.Lock()
	timeout := c.callTimeout()
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	asked := c.now()
	recs, err := c.store.Load(ctx, []Key{{Names, p.name}})
	c.mu.Lock()
	defer c.unlock()
	if err != nil {
		c.failed(p, err, true)
		return false
	}
	c.seeRecord(p, recs[0], asked)
	return true
}

// saw takes in the store's clock from a record of a place.
func (p *place) saw(r Record) {
	if p.pos == nil {
		return
	}
	if p.pos.clock = 0; r.Age >= 0 {
		p.pos.clock = r.Version + r.Age.Microseconds()
	}
}

func (c *Client) seeRecord(p *place, r Record, asked core.Instant) {
	p.saw(r)
	if _, version := p.n.Record(); p.n.Known() && core.Version(r.Version) == version {
		c.answers = true
		c.perform(p, p.n.SawAgain(asked, c.env()))
		return
	}
	rec, err := lockOf(r)
	c.answers = c.answers || err == nil
	c.perform(p, p.n.Looked(rec, core.Version(r.Version), asked, err, c.env()))
}

// failed takes in that a call was not answered. look: it was to show the record, and that is
// still wanted; c.mu is held.
func (c *Client) failed(p *place, err error, look bool) {
	busy := errors.Is(err, ErrBusy)
	eff := p.n.Unanswered(err, busy, look, c.env())
	c.answers = c.answers || busy
	c.perform(p, eff)
}

// noAnswer is what a request is told of a call that was not answered.
func noAnswer(err error) error {
	if errors.Is(err, ErrBusy) {
		return err
	}
	return fmt.Errorf("the store does not answer: %w", err)
}

// denyTries answers those who do not wait and did not get in, and reports
// whether there were any; c.mu is held.
func (c *Client) denyTries(p *place) bool {
	any, eff := p.n.DenyTries(c.env())
	c.perform(p, eff)
	return any
}

// backoff is how long to leave a store alone that does not answer, or that does
// not say what becomes of writes.
func (c *Client) backoff(p *place) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jitter(p.n.Backoff(c.now()))
}
