package engine

import (
	"context"
	"iter"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
)

// Waiting: one poll loop per client serves all its waits. Each round is one query for
// the names that are due and, now and then, the sessions of all claims ahead of ours.
// The core decides what is due (internal/core/pace.go).

// startPolling starts the poll loop if it does not run; c.Mu is held.
func (c *Engine) startPolling() {
	if c.waiting || c.Ctx.Err() != nil {
		return
	}
	c.waiting = true
	c.Spawn(c.pollLoop)
	c.StartWatching()
}

// paced are the names of the client; c.Mu is held.
func (c *Engine) paced() iter.Seq[core.Paced] {
	return func(yield func(core.Paced) bool) {
		for p := range c.active {
			if !yield(p.paced()) {
				return
			}
		}
	}
}

func (p *LocalQueue) paced() core.Paced { return core.Paced{Key: p.Name, Name: p.n, Pace: p.pace} }

// follow notes where we are in the queue of a name; c.Mu is held.
func (c *Engine) follow(p *LocalQueue) {
	if p.pace == nil {
		if !p.n.Waits() {
			return
		}
		p.pace = core.NewPace(0)
	}
	if about := p.pace.Follow(p.n, c.envOfLast()); about > 0 {
		p.pace.PollAt(c.Now().Add(c.Jitter(about)))
		base.Signal(c.nudge)
		c.StartWatching()
	}
}

// pollLoop reads what is due, until this client waits for nothing.
func (c *Engine) pollLoop() {
	polls := core.NewPolls(c.Traits.StaleReads) // then each session is a stale read of its own
	for {
		r, due := c.nextRound()
		if r == nil {
			return
		}
		died, kernel := c.provenDead(r.Close)
		t, observeAt := c.Now(), c.Detector.Next(r.Sessions)
		sessions, about := polls.Sessions(r, observeAt, t)
		if about > 0 {
			polls.SessionsAt(t.Add(c.Jitter(about)))
		}
		if len(due) > 0 || len(sessions) > 0 {
			var await core.Await
			if len(due) == 1 && len(sessions)+len(died) == 0 {
				c.Mu.Lock()
				await = polls.Await(r, due[0].paced(), observeAt, kernel, c.env())
				c.Mu.Unlock()
			}
			if about := polls.Answered(c.poll(due, sessions, await)); about > 0 {
				polls.SilentUntil(c.Now().Add(c.Jitter(about)))
			}
			c.Mu.Lock()
			draw := c.Machine.Int64N(core.Draws)
			for _, p := range due {
				r.Polled(p.paced(), draw, c.env())
			}
			c.Unlock()
		}
		if len(died) > 0 {
			c.DeclareDead(died)
			continue
		}
		observeAt = c.Detector.Next(r.Sessions)
		pause, wakes := polls.Pause(r, observeAt, kernel, c.Now())
		c.awaitRound(pause, wakes)
	}
}

// nextRound returns what is to be read now, and the local queues of the names that are
// due. If the client waits for nothing, r is nil and the poll loop is over.
func (c *Engine) nextRound() (r *core.Round, due []*LocalQueue) {
	c.Mu.Lock()
	r = core.NextRound(c.paced(), c.env())
	if !r.Waits || c.Ctx.Err() != nil {
		c.waiting = false
		c.Unlock()
		c.Detector.ForgetOld(nil)
		c.Proof.Forget(func(string) bool { return false })
		return nil, nil
	}
	for _, name := range r.Due {
		due = append(due, c.queues[name])
	}
	c.Unlock()
	return r, due
}

// provenDead returns the sessions that the kernel of this host knows to be dead,
// without asking the store. near: one of the sessions has a proof on this host.
func (c *Engine) provenDead(sessions []string) (died []string, near bool) {
	wanted := make(map[string]bool, len(sessions))
	for _, s := range sessions {
		wanted[s] = true
	}
	c.Proof.Forget(func(session string) bool { return wanted[session] })
	for _, s := range sessions {
		if c.Proof.Near(s) {
			near = true
			if c.Proof.Dead(s) {
				died = append(died, s)
			}
		}
	}
	return died, near
}

// awaitRound pauses between two rounds. wakes: a nudge ends the pause early.
func (c *Engine) awaitRound(pause time.Duration, wakes bool) {
	nudge := c.nudge
	if !wakes {
		nudge = nil
	}
	timer := c.Machine.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-nudge:
	case <-c.Ctx.Done():
	}
}

// poll loads names and sessions in one query, handles what they show, and reports
// whether the store answered. If await has a limit, the store waits for a write of the
// only name.
func (c *Engine) poll(queues []*LocalQueue, sessions []string, await core.Await) (ok bool) {
	c.Mu.Lock()
	timeout := c.callTimeout() + await.Limit
	c.Mu.Unlock()
	ctx, cancel := context.WithTimeout(c.Ctx, timeout)
	defer cancel()
	others := make([]driver.Key, len(sessions))
	for i, s := range sessions {
		others[i] = driver.Sessions.Key(s)
	}
	stale := c.Traits.StaleReads
	began := c.Now()
	recs, fresh, asked, err := c.read(ctx, queues, others, await)
	if err != nil {
		c.Mu.Lock()
		for _, p := range queues {
			if !p.idle {
				c.failed(p, err, false)
			}
		}
		c.Unlock()
		return false
	}
	c.Mu.Lock()
	for i, p := range queues {
		_, was := p.n.Record()
		if p.idle || !p.n.Known() && p.busy {
			continue // retired since, or its first write is under way
		}
		if fresh[i] {
			c.seeRecord(p, recs[i], asked)
		}
		if _, version := p.n.Record(); version != was || p.n.Blocked(c.env()) {
			c.reconcile(p)
		}
	}
	c.Unlock()
	looks := make(map[string]base.SessionRead, len(sessions))
	for i, s := range sessions {
		looks[s] = base.SessionRead{Rec: recs[len(queues)+i], Asked: began, Got: c.Now(), Stale: stale}
	}
	c.Detect(ctx, looks)
	if len(sessions) > 0 {
		c.Detector.ForgetOld(func(session string) bool { _, ok := looks[session]; return ok })
	}
	return true
}

// AfterDeath removes the claims of sessions that have just been found dead. The first
// in line does so at once; each client behind looks a little later whether it still
// needs doing.
func (c *Engine) AfterDeath() {
	c.Mu.Lock()
	defer c.Unlock()
	for p := range c.active {
		switch {
		case !p.n.Waits() || !p.n.Blocked(c.env()):
		case p.n.Before(c.env()) == 0:
			c.reconcile(p)
		default:
			c.readNotified(p)
		}
	}
}
