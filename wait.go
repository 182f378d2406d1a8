package holdfast

import (
	"context"
	"slices"
	"time"
)

// Waiting: one loop per client for all its waits, with one query each time
// round: the names waited for, and the sessions of all claims ahead of ours.
// Hints from the store make it look at once; without them it looks after 50 ms,
// and less and less often up to once a second.

const (
	firstPoll = 50 * time.Millisecond
	lastPoll  = time.Second
	proofPoll = 20 * time.Millisecond // how often the kernel is asked whether someone ahead has died
	nearHead  = 3                     // by those so near the head of the queue; the others ask with each poll
)

// startWaiting runs the wait loop if it does not; c.mu is held.
func (c *Client) startWaiting() {
	if c.waiting || c.ctx.Err() != nil {
		return
	}
	c.waiting = true
	c.spawn(c.waitLoop)
	c.startHints()
}

// A round is what the wait loop looks at.
type round struct {
	names    []*place
	sessions []string // of claims ahead of ours, without doubles
	close    []string // those of the holders and of who is next, where ours comes soon
	due      []*place // names that a hint says have changed
	next     instant  // when the next hint is due
}

// ahead finds what is worth looking at; c.mu is held.
func (c *Client) ahead() (r round) {
	r.next = never
	t := now()
	seen := make(map[string]bool)
	for _, p := range c.places {
		if p.lookAt != never {
			if p.lookAt <= t {
				p.lookAt = never
				r.due = append(r.due, p)
			} else if r.next == never || p.lookAt < r.next {
				r.next = p.lookAt
			}
		}
		if !p.waits {
			continue
		}
		p.waits = false
		var first claimRecord
		for _, g := range p.groups {
			if g.state == queued && g.sess != nil {
				first, p.waits = claimRecord{Session: g.sess.id, Nr: g.nr}, true
				break
			}
		}
		if !p.waits {
			continue
		}
		r.names = append(r.names, p)
		near := c.before(p) < nearHead
		look := func(cl claimRecord) {
			if !seen[cl.Session] && !c.isOurs(cl.Session) && !c.isDead(cl.Session) {
				seen[cl.Session] = true
				r.sessions = append(r.sessions, cl.Session)
				if near {
					r.close = append(r.close, cl.Session)
				}
			}
		}
		for _, h := range p.rec.Holders {
			look(h)
		}
		for _, w := range p.rec.Waiters {
			if w.is(first.Session, first.Nr) {
				break
			}
			look(w)
		}
	}
	return r
}

func (c *Client) waitLoop() {
	poll := firstPoll
	nextPoll := now().add(jitter(poll))
	silent := never // until when a store that does not answer is left alone
	for {
		c.mu.Lock()
		r := c.ahead()
		if len(r.names) == 0 && len(r.due) == 0 && r.next == never || c.ctx.Err() != nil {
			c.waiting = false
			c.unlock()
			c.judge.forget(nil)
			c.proof.forget(func(string) bool { return false })
			return
		}
		c.unlock()

		// Who has died on this host is known without asking the store.
		var died []string
		neighbours := false
		for _, s := range r.close {
			if c.proof.near(s) {
				neighbours = true
				if c.proof.dead(s) {
					died = append(died, s)
				}
			}
		}
		t := now()
		switch {
		case len(died) > 0:
			if len(r.due) > 0 {
				c.look(r.due, nil)
			}
			c.buryProven(died)
			nextPoll = now()
		case nextPoll <= t || c.judge.due(r.sessions, t):
			names := r.names
			for _, p := range r.due {
				if !slices.Contains(names, p) {
					names = append(names, p)
				}
			}
			changed, ok := c.look(names, r.sessions)
			// Where hints come, this only stands behind them.
			if poll = min(poll*3/2, lastPoll); changed && !c.hinted() {
				poll = firstPoll
			}
			nextPoll = now().add(jitter(poll))
			if silent = never; !ok {
				silent = nextPoll // leave it alone until then
			}
		case len(r.due) > 0:
			c.look(r.due, nil)
		}

		wake := nextPoll
		if r.next != never {
			wake = min(wake, r.next)
		}
		if at := c.judge.next(r.sessions); at != never {
			wake = min(wake, at)
		}
		if neighbours {
			wake = min(wake, now().add(proofPoll))
		}
		pause := max(wake, silent).sub(now())
		nudge := c.nudge
		if silent != never {
			nudge = nil
		}
		timer := time.NewTimer(max(pause, time.Millisecond)) // never without a pause
		select {
		case <-timer.C:
		case <-nudge:
		case <-c.ctx.Done():
		}
		timer.Stop()
	}
}

// look loads names and sessions in one query, takes in what they show, and
// reports whether anything had changed, and whether the store answered.
func (c *Client) look(places []*place, sessions []string) (changed, ok bool) {
	c.mu.Lock()
	timeout := c.callTimeout()
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	keys := make([]Key, 0, len(places)+len(sessions))
	for _, p := range places {
		keys = append(keys, Key{Names, p.name})
	}
	for _, s := range sessions {
		keys = append(keys, Key{Sessions, s})
	}
	asked := now()
	recs, err := c.store.Load(ctx, keys)
	if err != nil {
		c.mu.Lock()
		for _, p := range places {
			if c.places[p.name] == p {
				c.failed(p, err)
			}
		}
		c.unlock()
		return false, false
	}
	c.mu.Lock()
	for i, p := range places {
		was := p.version
		if c.places[p.name] != p || !p.known && p.busy {
			continue // gone meanwhile, or on its first way there
		}
		c.seeRecord(p, recs[i], asked)
		if p.version != was {
			changed = true
		}
		if p.version != was || p.blocked(c.isDead) {
			c.kick(p)
		}
	}
	c.unlock()
	looks := make(map[string]sighting, len(sessions))
	for i, s := range sessions {
		looks[s] = sighting{recs[len(places)+i], asked, now()}
	}
	if c.judgeAll(ctx, looks) {
		changed = true
	}
	if len(sessions) > 0 {
		c.judge.forget(func(session string) bool { _, ok := looks[session]; return ok })
	}
	return changed, true
}

// blocked says whether a claim of the dead stands in the record.
func (p *place) blocked(dead func(string) bool) bool {
	isDead := func(cl claimRecord) bool { return dead(cl.Session) }
	return slices.ContainsFunc(p.rec.Holders, isDead) || slices.ContainsFunc(p.rec.Waiters, isDead)
}

// buried has the records rid of those who have just been found dead. The
// first in line does it at once; those behind look a little later each whether
// it still needs doing.
func (c *Client) buried() {
	c.mu.Lock()
	defer c.unlock()
	for _, p := range c.places {
		switch {
		case !p.waits || !p.blocked(c.isDead):
		case c.before(p) == 0:
			c.kick(p)
		default:
			c.hintPlace(p)
		}
	}
}

// before is how many live waiters stand before our first.
func (c *Client) before(p *place) (n int) {
	for _, w := range p.rec.Waiters {
		if c.isOurs(w.Session) {
			return n
		}
		if !c.isDead(w.Session) {
			n++
		}
	}
	return n
}

// hints runs the store's watch while there is something to be told.
type hints struct {
	running bool
	work    bool
	subs    map[Key]map[chan struct{}]bool // for Watch and Observe
}

func (h *hints) init() { h.subs = make(map[Key]map[chan struct{}]bool) }

// hinted says whether the store's hints come.
func (c *Client) hinted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hints.work
}

// startHints starts watching, once; c.mu is held.
func (c *Client) startHints() {
	w, ok := c.store.(Watcher)
	if !ok || c.hints.running || c.ctx.Err() != nil {
		return
	}
	c.hints.running = true
	c.hints.work = true
	c.spawn(func() {
		for wait := 100 * time.Millisecond; c.ctx.Err() == nil; wait = min(wait*2, 10*time.Second) {
			began := now()
			err := w.Watch(c.ctx, c.hint)
			if c.ctx.Err() != nil {
				return
			}
			c.mu.Lock()
			c.hints.work = false
			c.mu.Unlock()
			c.log.Info("no hints from the store, polling instead", "err", err)
			if now().sub(began) > time.Minute {
				wait = 100 * time.Millisecond
			}
			c.pause(jitter(wait))
		}
	})
}

// hint: the store says that a key has changed, or (zero) that any may have.
func (c *Client) hint(key Key) {
	c.mu.Lock()
	defer c.unlock()
	if key != (Key{}) {
		c.hints.work = true
	}
	for k, chans := range c.hints.subs {
		if k == key || key == (Key{}) {
			for ch := range chans {
				signal(ch)
			}
		}
	}
	switch {
	case key == Key{}:
		for _, p := range c.places {
			c.hintPlace(p)
		}
		if c.sess != nil && c.sess.opened {
			signal(c.sess.wake) // it may have been revoked something
		}
		c.judge.hurry()
		signal(c.nudge)
	case key.Space == Names:
		if p := c.places[key.Name]; p != nil {
			c.hintPlace(p)
		}
	case key.Space == Sessions && c.isOurs(key.Name):
		signal(c.sess.wake)
	case key.Space == Sessions:
		c.judge.hurry()
		signal(c.nudge)
	}
}

// hintPlace has a name looked at: at once by who is first in line, by the
// others a little later each, so that a crowd does not come all together. A
// holder that hands on in memory looks before it does so again.
func (c *Client) hintPlace(p *place) {
	if !p.waits {
		for _, g := range p.groups {
			if g.state == held && g.last-g.token > 0 {
				p.lookAt = now()
				c.startWaiting()
				signal(c.nudge)
				return
			}
		}
		return
	}
	at := now().add(time.Duration(min(c.before(p), 60)) * 3 * time.Millisecond)
	if p.lookAt == never || at < p.lookAt {
		p.lookAt = at
		signal(c.nudge)
	}
}

// subscribe has ch signalled when a key may have changed.
func (c *Client) subscribe(ch chan struct{}, keys ...Key) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		if c.hints.subs[k] == nil {
			c.hints.subs[k] = make(map[chan struct{}]bool)
		}
		c.hints.subs[k][ch] = true
	}
	c.startHints()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, k := range keys {
			delete(c.hints.subs[k], ch)
			if len(c.hints.subs[k]) == 0 {
				delete(c.hints.subs, k)
			}
		}
	}
}
