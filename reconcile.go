package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// reconcile starts the driver of a queue unless it runs; c.mu is held. An idle queue is left alone:
// it may have a successor, whose claims would look to it like claims that nobody wants.
func (c *Client) reconcile(p *localQueue) {
	if p.busy || p.idle || c.ctx.Err() != nil {
		return
	}
	p.busy = true
	if c.here && c.mine == nil {
		c.mine = p // for the goroutine that calls do
		c.work.Add(1)
		return
	}
	c.drive(p)
}

// drive performs the steps of a name in a goroutine of its own.
func (c *Client) drive(p *localQueue) {
	c.spawn(func() {
		makeRoom(len(p.name))
		c.runSteps(p, nil)
	})
}

// makeRoom grows the stack of a new goroutine at once to what the steps of a name need. Otherwise
// it would grow twice while they are planned, copying all frames: a tenth of the time of a crowd.
// at keeps the compiler from optimizing room away.
//
//go:noinline
func makeRoom(at int) byte {
	var room [4 << 10]byte
	return room[at%len(room)]
}

// rest gives up what the queue needs only while something happens there. All effects of events must
// have been performed.
func (p *localQueue) rest() {
	if !p.busy {
		p.n.Rest()
	}
}

// do calls f with c.mu held. If the store is quick, do then itself drives the queue that f wants
// reconciled, for one write: waking another goroutine would take a good part of the time of the
// write.
func (c *Client) do(ctx context.Context, f func()) {
	quick := ctx.Err() == nil && c.batch.Quick()
	c.mu.Lock()
	c.here = quick
	f()
	p := c.mine
	c.here, c.mine = false, nil
	c.unlock()
	if p != nil {
		c.runSteps(p, ctx)
		c.work.Done()
	}
}

// runSteps performs the steps of a name until there are none, one at a time. Notifications, the
// poll loop and the goroutines that acquire and release start it again. Given the context of its
// caller, it makes one write and leaves everything else to a goroutine.
func (c *Client) runSteps(p *localQueue, here context.Context) {
	c.mu.Lock()
	p.n.Begin()
	for c.ctx.Err() == nil {
		env := c.envOfLast
		if here == nil {
			env = c.env
		}
		step, eff := p.n.Next(env())
		c.perform(p, eff)
		switch {
		case step.Kind == core.NeedSession && here == nil:
			c.current()
			continue
		case step.Kind == core.Idle:
			p.busy = false
			p.rest()
			if step.Forget && (!p.n.Ambiguous() || c.end.closed) {
				c.ambiguous = c.ambiguous || p.n.Ambiguous()
				c.retire(p)
			}
			c.checkQuiet()
			c.unlock()
			return
		case here != nil && (step.Kind != core.Put || p.n.Tried()):
			p.n.Abort()
			c.drive(p)
			c.unlock()
			return
		}
		if !c.runStep(p, step, here) {
			c.drive(p)
			break
		}
	}
	c.unlock()
}

// runStep performs a step and reports what became of it. It returns false if another goroutine has
// to go on. c.mu is held, but not during the step.
func (c *Client) runStep(p *localQueue, step core.Step, here context.Context) bool {
	switch step.Kind {
	case core.AwaitSession:
		c.awaitOpen(p, step.Most)
	case core.Open:
		c.openWith(p)
		return true
	case core.Load:
		p.n.Loaded(c.loadRecord(p), c.env())
		return true
	case core.StaleLoad:
		c.readStale(p)
		return true
	case core.Pause:
		c.unlock()
		if step.About > 0 {
			c.pause(c.jitter(step.About))
		} else {
			c.pause(c.upTo(step.Most))
		}
		c.mu.Lock()
	case core.Put:
		return c.put(p, step.Write, here)
	}
	p.n.Rested()
	return true
}

// put is runStep of a write.
func (c *Client) put(p *localQueue, write record.Write, here context.Context) bool {
	planned, timeout := c.scratch.Now, c.callTimeout()
	if p.n.Tries() {
		timeout = min(timeout, tryPatience)
	}
	c.unlock()
	w := p.storeWrite(write)
	if here == nil {
		c.answered(p, c.batch.Do(w, timeout), nil)
		return true
	}
	sw, ok := c.batch.Alone(here, w, planned, timeout)
	if !ok {
		c.mu.Lock()
		p.n.Abort()
		return false
	}
	c.answered(p, &sw, here)
	return sw.Err == nil
}

// openWith opens the session in one call with its first claim. c.mu is held, but not during the
// call.
func (c *Client) openWith(p *localQueue) {
	s := c.sess
	s.life.Open()
	c.unlock()
	var w driver.Write
	writes := false
	sw := s.open(func() (driver.Write, bool) {
		var first record.Write
		if first, writes = p.n.Opening(c.env()); writes {
			w = p.storeWrite(first)
		}
		return w, writes
	})
	if !writes {
		c.mu.Lock()
		p.n.Rested()
		return
	}
	sw.Write = w
	c.answered(p, sw, nil)
}

// awaitOpen waits until the session is open, or over. c.mu is held, but not while it waits.
func (c *Client) awaitOpen(p *localQueue, patience time.Duration) {
	s := c.sess
	c.unlock()
	t, late := c.machine.NewTimer(patience), false
	select {
	case <-s.ready:
	case <-c.ctx.Done():
	case <-t.C:
		late = true
	}
	t.Stop()
	c.mu.Lock()
	if err := s.life.Failing(); late && err != nil {
		c.failed(p, err, false)
	}
}

// ttl is that of the session, or DefaultTTL if none is known; c.mu is held.
func (c *Client) ttl() time.Duration {
	if c.sess != nil && c.sess.life.TTL() > 0 {
		return c.sess.life.TTL()
	}
	return DefaultTTL
}

// callTimeout bounds one call to the store, so that a call that hangs is tried again; c.mu is held.
func (c *Client) callTimeout() time.Duration {
	return max(c.ttl()/2, min(c.ttl(), time.Second))
}

// storeWrite is a write as the store takes it.
func (p *localQueue) storeWrite(w record.Write) driver.Write {
	return driver.Write{Key: driver.Names.Key(p.name), Old: int64(w.Old), Value: w.Next.Encode(max(w.Old, 0)), Notify: w.Notify, Lazy: w.Lazy}
}

// answered locks c.mu and handles what became of a write. An error does not count as the store's if
// the context here had ended.
func (c *Client) answered(p *localQueue, sw *batch.Swap, here context.Context) {
	out := core.Outcome{Sent: sw.Sent, Won: sw.Out.Won, Version: record.Version(sw.Out.Record.Version), Err: sw.Err,
		Busy: driver.Busy(sw.Err), Cut: here != nil && here.Err() != nil}
	if sw.Err == nil && !out.Won {
		out.Record, out.Bad = lockOf(sw.Out.Record)
		out.Same = sw.LostToOld()
	}
	c.mu.Lock()
	t := sw.Got
	if t == 0 {
		t = c.now()
	}
	if sw.Write.Lazy {
		c.lazy[p.name] = t // a crash of the database may take it back, whatever the answer
	}
	if sw.Err == nil && out.Bad == nil {
		p.saw(sw.Out.Record)
		c.answers = true
	}
	eff := p.n.Answered(out, closedBy(sw.Err, c.envAt(t)))
	c.answers = c.answers || out.Busy && !out.Cut
	c.perform(p, eff)
}

// loadRecord loads the record of a name and reports whether the store answered. c.mu is held, but
// not during the call.
func (c *Client) loadRecord(p *localQueue) bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.callTimeout())
	defer cancel()
	c.unlock()
	asked := c.now()
	recs, err := c.store.Load(ctx, []driver.Key{driver.Names.Key(p.name)}, driver.Fresh)
	c.mu.Lock()
	if err != nil {
		c.failed(p, err, true)
		return false
	}
	c.seeRecord(p, recs[0], asked)
	return true
}

// saw notes the store's clock from a record of the name.
func (p *localQueue) saw(r driver.Record) { p.pace.Clock(record.Version(r.Version), r.Age) }

func (c *Client) seeRecord(p *localQueue, r driver.Record, asked lease.Instant) {
	p.saw(r)
	if _, version := p.n.Record(); p.n.Known() && record.Version(r.Version) == version {
		c.answers = true
		c.perform(p, p.n.SawAgain(asked, c.env()))
		return
	}
	rec, err := lockOf(r)
	c.answers = c.answers || err == nil
	c.perform(p, p.n.Looked(rec, record.Version(r.Version), asked, err, c.env()))
}

// failed notes that a call was not answered. look: the call was to read the record, which is still
// wanted. c.mu is held.
func (c *Client) failed(p *localQueue, err error, look bool) {
	busy := driver.Busy(err)
	eff := p.n.Unanswered(err, busy, look, closedBy(err, c.env()))
	c.answers = c.answers || busy
	c.perform(p, eff)
}

// closedBy makes a store that its user has closed count as one that never answers.
func closedBy(err error, env *core.Env) *core.Env {
	if err != nil && errors.Is(err, driver.ErrClosed) {
		env.Answers = false
	}
	return env
}

// noAnswer is the error of a request whose call was not answered.
func noAnswer(err error) error {
	if driver.Busy(err) || errors.Is(err, driver.ErrClosed) {
		return err
	}
	return fmt.Errorf("the store does not answer: %w", err)
}
