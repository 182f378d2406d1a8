package engine

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// reconcile starts the driver of a queue unless it runs; c.Mu is held. An idle queue is left alone:
// it may have a successor, whose claims would look to it like claims that nobody wants.
func (c *Engine) reconcile(p *LocalQueue) {
	if p.busy || p.idle || c.Ctx.Err() != nil {
		return
	}
	p.busy = true
	if c.here && c.mine == nil {
		c.mine = p // for the goroutine that calls do
		c.Work.Add(1)
		return
	}
	c.drive(p)
}

// drive performs the steps of a name in a goroutine of its own.
func (c *Engine) drive(p *LocalQueue) {
	c.Spawn(func() {
		makeRoom(len(p.Name))
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
func (p *LocalQueue) rest() {
	if !p.busy {
		p.n.Rest()
	}
}

// do calls f with c.Mu held. If the store is quick, do then itself drives the queue that f wants
// reconciled, for one write: waking another goroutine would take a good part of the time of the
// write.
func (c *Engine) do(ctx context.Context, f func()) {
	quick := ctx.Err() == nil && c.Batch.Quick()
	c.Mu.Lock()
	c.here = quick
	f()
	p := c.mine
	c.here, c.mine = false, nil
	c.Unlock()
	if p != nil {
		c.runSteps(p, ctx)
		c.Work.Done()
	}
}

// runSteps performs the steps of a name until there are none, one at a time. Notifications, the
// poll loop and the goroutines that acquire and release start it again. Given the context of its
// caller, it makes one write and leaves everything else to a goroutine.
func (c *Engine) runSteps(p *LocalQueue, here context.Context) {
	c.Mu.Lock()
	p.n.Begin()
	for c.Ctx.Err() == nil {
		env := c.envOfLast
		if here == nil {
			env = c.env
		}
		step, eff := p.n.Next(env())
		c.perform(p, eff)
		switch {
		case step.Kind == core.NeedSession && here == nil:
			c.Current()
			continue
		case step.Kind == core.Idle:
			p.busy = false
			p.rest()
			if step.Forget && (!p.n.Ambiguous() || c.Closed) {
				c.ambiguous = c.ambiguous || p.n.Ambiguous()
				c.retire(p)
			}
			c.checkQuiet()
			c.Unlock()
			return
		case here != nil && (step.Kind != core.Put || p.n.Tried()):
			p.n.Abort()
			c.drive(p)
			c.Unlock()
			return
		}
		if !c.runStep(p, step, here) {
			c.drive(p)
			break
		}
	}
	c.Unlock()
}

// runStep performs a step and reports what became of it. It returns false if another goroutine has
// to go on. c.Mu is held, but not during the step.
func (c *Engine) runStep(p *LocalQueue, step core.Step, here context.Context) bool {
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
		c.Unlock()
		if step.About > 0 {
			c.Pause(c.Jitter(step.About))
		} else {
			c.Pause(c.UpTo(step.Most))
		}
		c.Mu.Lock()
	case core.Put:
		return c.put(p, step.Write, here)
	}
	p.n.Rested()
	return true
}

// put is runStep of a write.
func (c *Engine) put(p *LocalQueue, write record.Write, here context.Context) bool {
	planned, timeout := c.scratch.Now, c.callTimeout()
	if p.n.Tries() {
		timeout = min(timeout, core.TryPatience)
	}
	c.Unlock()
	w := p.storeWrite(write)
	if here == nil {
		c.answered(p, c.Batch.Do(w, timeout), nil)
		return true
	}
	sw, ok := c.Batch.Alone(here, w, planned, timeout)
	if !ok {
		c.Mu.Lock()
		p.n.Abort()
		return false
	}
	c.answered(p, &sw, here)
	return sw.Err == nil
}

// openWith opens the session in one call with its first claim. c.Mu is held, but not during the
// call.
func (c *Engine) openWith(p *LocalQueue) {
	s := c.Sess
	s.Life.Open()
	c.Unlock()
	var w driver.Write
	writes := false
	sw := s.Open(func() (driver.Write, bool) {
		var first record.Write
		if first, writes = p.n.Opening(c.env()); writes {
			w = p.storeWrite(first)
		}
		return w, writes
	})
	if !writes {
		c.Mu.Lock()
		p.n.Rested()
		return
	}
	sw.Write = w
	c.answered(p, sw, nil)
}

// awaitOpen waits until the session is open, or over. c.Mu is held, but not while it waits.
func (c *Engine) awaitOpen(p *LocalQueue, patience time.Duration) {
	s := c.Sess
	c.Unlock()
	t, late := c.Machine.NewTimer(patience), false
	select {
	case <-s.Ready:
	case <-c.Ctx.Done():
	case <-t.C:
		late = true
	}
	t.Stop()
	c.Mu.Lock()
	if err := s.Life.Failing(); late && err != nil {
		c.failed(p, err, false)
	}
}

// callTimeout bounds one call to the store, so that a call that hangs is tried again; c.Mu is held.
func (c *Engine) callTimeout() time.Duration {
	return max(c.TTL()/2, min(c.TTL(), time.Second))
}

// storeWrite is a write as the store takes it.
func (p *LocalQueue) storeWrite(w record.Write) driver.Write {
	return driver.Write{Key: driver.Names.Key(p.Name), Old: int64(w.Old), Value: w.Next.Encode(max(w.Old, 0)), Notify: w.Notify, Lazy: w.Lazy}
}

// answered locks c.Mu and handles what became of a write. An error does not count as the store's if
// the context here had ended.
func (c *Engine) answered(p *LocalQueue, sw *batch.Swap, here context.Context) {
	out := core.Outcome{Sent: sw.Sent, Won: sw.Out.Won, Version: record.Version(sw.Out.Record.Version), Err: sw.Err,
		Busy: driver.Busy(sw.Err), Cut: here != nil && here.Err() != nil}
	if sw.Err == nil && !out.Won {
		out.Record, out.Bad = base.LockOf(sw.Out.Record)
		out.Same = sw.LostToOld()
	}
	c.Mu.Lock()
	t := sw.Got
	if t == 0 {
		t = c.Now()
	}
	if sw.Write.Lazy {
		c.lazy[p.Name] = t // a crash of the database may take it back, whatever the answer
	}
	if sw.Err == nil && out.Bad == nil {
		p.saw(sw.Out.Record)
		c.Answers = true
	}
	eff := p.n.Answered(out, closedBy(sw.Err, c.envAt(t)))
	c.Answers = c.Answers || out.Busy && !out.Cut
	c.perform(p, eff)
}

// loadRecord loads the record of a name and reports whether the store answered. c.Mu is held, but
// not during the call.
func (c *Engine) loadRecord(p *LocalQueue) bool {
	ctx, cancel := context.WithTimeout(c.Ctx, c.callTimeout())
	defer cancel()
	c.Unlock()
	asked := c.Now()
	recs, err := c.Store.Load(ctx, []driver.Key{driver.Names.Key(p.Name)}, driver.Fresh)
	c.Mu.Lock()
	if err != nil {
		c.failed(p, err, true)
		return false
	}
	c.seeRecord(p, recs[0], asked)
	return true
}

// saw notes the store's clock from a record of the name.
func (p *LocalQueue) saw(r driver.Record) { p.pace.Clock(record.Version(r.Version), r.Age) }

func (c *Engine) seeRecord(p *LocalQueue, r driver.Record, asked lease.Instant) {
	p.saw(r)
	if _, version := p.n.Record(); p.n.Known() && record.Version(r.Version) == version {
		c.Answers = true
		c.perform(p, p.n.SawAgain(asked, c.env()))
		return
	}
	rec, err := base.LockOf(r)
	c.Answers = c.Answers || err == nil
	c.perform(p, p.n.Looked(rec, record.Version(r.Version), asked, err, c.env()))
}

// failed notes that a call was not answered. look: the call was to read the record, which is still
// wanted. c.Mu is held.
func (c *Engine) failed(p *LocalQueue, err error, look bool) {
	busy := driver.Busy(err)
	eff := p.n.Unanswered(err, busy, look, closedBy(err, c.env()))
	c.Answers = c.Answers || busy
	c.perform(p, eff)
}

// closedBy makes a store that its user has closed count as one that never answers.
func closedBy(err error, env *core.Env) *core.Env {
	if err != nil && errors.Is(err, driver.ErrClosed) {
		env.Answers = false
	}
	return env
}
