package holdfast

import (
	"context"
	"iter"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"

	"github.com/holdfast-lock/holdfast/driver"
)

// Waiting: one poll loop per client serves all its waits. Each round is one query for
// the names that are due and, now and then, the sessions of all claims ahead of ours.
// The core decides what is due (internal/core/pace.go).

// All other polling begins with pauses of firstPoll, which grow to lastPoll.
const (
	firstPoll = 50 * time.Millisecond
	lastPoll  = time.Second
)

// startPolling starts the poll loop if it does not run; c.mu is held.
func (c *Client) startPolling() {
	if c.waiting || c.ctx.Err() != nil {
		return
	}
	c.waiting = true
	c.spawn(c.pollLoop)
	c.startWatching()
}

// paced are the names of the client; c.mu is held.
func (c *Client) paced() iter.Seq[core.Paced] {
	return func(yield func(core.Paced) bool) {
		for p := range c.active {
			if !yield(p.paced()) {
				return
			}
		}
	}
}

func (p *localQueue) paced() core.Paced { return core.Paced{Key: p.name, Name: p.n, Pace: p.pace} }

// follow notes where we are in the queue of a name; c.mu is held.
func (c *Client) follow(p *localQueue) {
	if p.pace == nil {
		if !p.n.Waits() {
			return
		}
		p.pace = core.NewPace(0)
	}
	if about := p.pace.Follow(p.n, c.envOfLast()); about > 0 {
		p.pace.PollAt(c.now().Add(c.jitter(about)))
		signal(c.nudge)
		c.startWatching()
	}
}

// pollLoop reads what is due, until this client waits for nothing.
func (c *Client) pollLoop() {
	polls := core.NewPolls(c.traits.StaleReads) // then each session is a stale read of its own
	for {
		r, due := c.nextRound()
		if r == nil {
			return
		}
		died, kernel := c.provenDead(r.Close)
		t, observeAt := c.now(), c.detector.next(r.Sessions)
		sessions, about := polls.Sessions(r, observeAt, t)
		if about > 0 {
			polls.SessionsAt(t.Add(c.jitter(about)))
		}
		if len(due) > 0 || len(sessions) > 0 {
			var await core.Await
			if len(due) == 1 && len(sessions)+len(died) == 0 {
				c.mu.Lock()
				await = polls.Await(r, due[0].paced(), observeAt, kernel, c.env())
				c.mu.Unlock()
			}
			if about := polls.Answered(c.poll(due, sessions, await)); about > 0 {
				polls.SilentUntil(c.now().Add(c.jitter(about)))
			}
			c.mu.Lock()
			draw := c.machine.Int64N(core.Draws)
			for _, p := range due {
				r.Polled(p.paced(), draw, c.env())
			}
			c.unlock()
		}
		if len(died) > 0 {
			c.declareDead(died)
			continue
		}
		observeAt = c.detector.next(r.Sessions)
		pause, wakes := polls.Pause(r, observeAt, kernel, c.now())
		c.awaitRound(pause, wakes)
	}
}

// nextRound returns what is to be read now, and the local queues of the names that are
// due. If the client waits for nothing, r is nil and the poll loop is over.
func (c *Client) nextRound() (r *core.Round, due []*localQueue) {
	c.mu.Lock()
	r = core.NextRound(c.paced(), c.env())
	if !r.Waits || c.ctx.Err() != nil {
		c.waiting = false
		c.unlock()
		c.detector.forgetOld(nil)
		c.proof.Forget(func(string) bool { return false })
		return nil, nil
	}
	for _, name := range r.Due {
		due = append(due, c.queues[name])
	}
	c.unlock()
	return r, due
}

// provenDead returns the sessions that the kernel of this host knows to be dead,
// without asking the store. near: one of the sessions has a proof on this host.
func (c *Client) provenDead(sessions []string) (died []string, near bool) {
	wanted := make(map[string]bool, len(sessions))
	for _, s := range sessions {
		wanted[s] = true
	}
	c.proof.Forget(func(session string) bool { return wanted[session] })
	for _, s := range sessions {
		if c.proof.Near(s) {
			near = true
			if c.proof.Dead(s) {
				died = append(died, s)
			}
		}
	}
	return died, near
}

// awaitRound pauses between two rounds. wakes: a nudge ends the pause early.
func (c *Client) awaitRound(pause time.Duration, wakes bool) {
	nudge := c.nudge
	if !wakes {
		nudge = nil
	}
	timer := c.machine.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-nudge:
	case <-c.ctx.Done():
	}
}

// poll loads names and sessions in one query, handles what they show, and reports
// whether the store answered. If await has a limit, the store waits for a write of the
// only name.
func (c *Client) poll(queues []*localQueue, sessions []string, await core.Await) (ok bool) {
	c.mu.Lock()
	timeout := c.callTimeout() + await.Limit
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	others := make([]driver.Key, len(sessions))
	for i, s := range sessions {
		others[i] = driver.Sessions.Key(s)
	}
	stale := c.traits.StaleReads
	began := c.now()
	recs, fresh, asked, err := c.read(ctx, queues, others, await)
	if err != nil {
		c.mu.Lock()
		for _, p := range queues {
			if !p.idle {
				c.failed(p, err, false)
			}
		}
		c.unlock()
		return false
	}
	c.mu.Lock()
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
	c.unlock()
	looks := make(map[string]sessionRead, len(sessions))
	for i, s := range sessions {
		looks[s] = sessionRead{rec: recs[len(queues)+i], asked: began, got: c.now(), stale: stale}
	}
	c.detect(ctx, looks)
	if len(sessions) > 0 {
		c.detector.forgetOld(func(session string) bool { _, ok := looks[session]; return ok })
	}
	return true
}

// afterDeath removes the claims of sessions that have just been found dead. The first
// in line does so at once; each client behind looks a little later whether it still
// needs doing.
func (c *Client) afterDeath() {
	c.mu.Lock()
	defer c.unlock()
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
