package holdfast

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// Waiting: one loop per client for all its waits, with one query each time
// round: the names that are due, and now and then the sessions of all claims
// ahead of ours.
//
// Where the store tells of changes, whoever is let in is told so, and polling
// only stands behind that: when the queue should have moved on long ago, then
// ever less often, up to every two seconds (with the TTL by default) near the
// head and every six far from it. Elsewhere polling goes by place in the
// queue: who is n-th looks when, if those before it are quick, it could be its
// turn, or if they are as usual, it could be near, and from then on after 3 ms and each time a seventh of the time since the
// queue last moved. So a wait is at most a seventh longer than it has to be, never
// by more than two seconds, and a crowd, or a long wait, asks seldom.

const (
	firstPoll   = 50 * time.Millisecond
	quickPoll   = 3 * time.Millisecond
	lastPoll    = time.Second            // and more with a long TTL, see slowest
	sessionPoll = 200 * time.Millisecond // until the sessions ahead are first looked at
	calm        = 100 * time.Millisecond // how long a queue may stand still before those in it look, though they would be told
	firstPace   = 10 * time.Millisecond  // until the queue is seen to move
	proofPoll   = 20 * time.Millisecond  // how often the kernel is asked whether someone ahead has died
	nearHead    = 3                      // by those so near the head of the queue; the others ask with each poll
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

// slowest is how often it looks at what does not move; c.mu is held.
func (c *Client) slowest() time.Duration { return min(max(c.ttl()/8, lastPoll), 2*lastPoll) }

// position is where this client stands in the queue of a place.
type position struct {
	ahead  int           // live waiters before our first
	first  string        // the first holder's claim
	token  int64         // and its token
	moved  core.Instant  // when one of these was seen to change; never: does not wait
	pace   time.Duration // how long it takes to move on by one, when it is quick
	mean   time.Duration // and usually
	held   time.Duration // how long the first holder had it when that was seen
	clock  int64         // the store's, when the record was last seen, in microseconds since 1970; 0: not known
	pollAt core.Instant
}

// follow takes in where we stand; c.mu is held.
func (c *Client) follow(p *place) {
	if !p.n.Waits() {
		if p.pos != nil {
			p.pos.moved = core.Never
		}
		return
	}
	if p.pos == nil {
		p.pos = &position{moved: core.Never, pace: firstPace}
	}
	l, t := p.pos, c.now()
	ahead, first, token := c.before(p), "", int64(0)
	if rec, _ := p.n.Record(); len(rec.Holders) > 0 {
		h := rec.Holders[0]
		first, token = fmt.Sprint(h.Session, h.Nr), int64(h.Token)
	}
	held := time.Duration(0)
	if l.clock != 0 {
		held = min(max(time.Duration(l.clock-token)*time.Microsecond, 0), time.Second)
	}
	switch {
	case l.moved == core.Never:
		l.pollAt = core.Never
	case ahead < l.ahead:
		// Tokens are times where the store has a clock; else they are closer
		// together, and we look more often. That someone was late shall not
		// make all others late as well: the pace grows slowly.
		took := max(min(t.Sub(l.moved), time.Duration(token-l.token)*time.Microsecond), 0) / time.Duration(l.ahead-ahead)
		l.pace = min(max(took, time.Millisecond), l.pace*3/2)
		l.mean = (l.mean + took) / 2
	case ahead == l.ahead && first == l.first:
		return
	}
	l.ahead, l.first, l.token, l.moved, l.held = ahead, first, token, t, held
	if l.pollAt == core.Never {
		l.pollAt = t.Add(c.jitter(c.pollEvery(p)))
		signal(c.nudge)
		c.startHints()
	}
}

// pollEvery is how long to leave between two polls of a place; c.mu is held.
func (c *Client) pollEvery(p *place) time.Duration {
	l := p.pos
	still, rest := c.now().Sub(l.moved), time.Duration(l.ahead)*l.pace
	switch {
	case c.hints.work && l.ahead < nearHead:
		return min(max(calm+rest*4, still/2), c.slowest())
	case c.hints.work:
		return min(max(calm+rest*4, still/2), 3*c.slowest())
	}
	could := time.Duration(l.ahead+1)*l.pace*11/20 - l.held - still // it be our turn
	could = max(could, time.Duration(l.ahead-nearHead)*l.mean*3/4-still)
	return min(max(quickPoll, still/7, could), c.slowest())
}

// A round is what the wait loop looks at.
type round struct {
	waits    bool     // anything at all
	near     bool     // near the head of a queue, somewhere
	due      []*place // names to be looked at now
	polled   bool     // one of them although nothing was told of it
	slowest  time.Duration
	ttl      time.Duration // the shortest of a session ahead
	told     bool          // the store tells of changes
	sessions []string      // of claims ahead of ours, without doubles
	close    []string      // those of the holders and of who is next, where ours comes soon
	next     core.Instant  // when the next name is due
}

// ahead finds what is worth looking at; c.mu is held.
func (c *Client) ahead() (r round) {
	r.next, r.slowest, r.ttl, r.told = core.Never, c.slowest(), MaxTTL, c.hints.work
	t := c.now()
	soon := func(at core.Instant) {
		if at != core.Never && (r.next == core.Never || at < r.next) {
			r.next = at
		}
	}
	seen := make(map[string]bool)
	var later []*place // to be polled, but not yet
	polled := false
	for _, p := range c.places {
		hinted := p.lookAt != core.Never && p.lookAt <= t
		if hinted {
			p.lookAt = core.Never
			r.due = append(r.due, p)
		}
		soon(p.lookAt)
		if !p.n.Waits() {
			continue
		}
		first, ok := p.n.First()
		if !ok {
			c.follow(p)
			continue
		}
		r.waits = true
		if !hinted {
			later = append(later, p)
			polled = polled || p.pos.pollAt <= t
		}
		near := p.pos.ahead < nearHead
		r.near = r.near || near
		look := func(cl core.Claim) {
			if !seen[cl.Session] && !c.isOurs(cl.Session) && !c.isDead(cl.Session) {
				seen[cl.Session] = true
				r.sessions = append(r.sessions, cl.Session)
				r.ttl = min(r.ttl, max(time.Duration(cl.TTL)*time.Millisecond, MinTTL))
				if near {
					r.close = append(r.close, cl.Session)
				}
			}
		}
		rec, _ := p.n.Record()
		for _, h := range rec.Holders {
			look(h)
		}
		for _, w := range rec.Waiters {
			if w.Is(first.Session, first.Nr) {
				break
			}
			look(w)
		}
	}
	for _, p := range later {
		// What is nearly due comes along, so that many waits share their queries.
		if every := c.pollEvery(p); polled && p.pos.pollAt <= t.Add(every/3) {
			r.due, r.polled = append(r.due, p), true
		} else {
			soon(p.pos.pollAt)
		}
	}
	r.waits = r.waits || len(r.due) > 0 || r.next != core.Never
	return r
}

// looked sets when places are to be polled again: all that have the same pace
// at the same moment; c.mu is held.
func (c *Client) looked(places []*place) {
	t, random := c.now(), c.machine.Int64N(512)
	for _, p := range places {
		if p.pos == nil || !p.n.Waits() {
			continue
		}
		every := c.pollEvery(p)
		p.pos.pollAt = t.Add(every*3/4 + every*time.Duration(random)/1024)
	}
}

func (c *Client) waitLoop() {
	sessionsAt, sessionsEvery := core.Never, sessionPoll
	silent, rest := core.Never, firstPoll // until when a store that does not answer is left alone
	_, dear := c.store.(Glancer)          // each session is a look of its own
	for {
		c.mu.Lock()
		r := c.ahead()
		if !r.waits || c.ctx.Err() != nil {
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
		t := c.now()
		longest := r.slowest
		switch {
		case !r.near:
			longest *= 4
		case dear:
			longest *= 2
		}
		if sessionsAt == core.Never {
			sessionsAt = t.Add(c.jitter(sessionsEvery))
			if (r.told || dear) && !r.near { // those who are look for all
				sessionsAt = t.Add(c.jitter(min(r.slowest, r.ttl/4)))
			}
			if dear && !r.near {
				sessionsEvery = longest
			}
		}
		var sessions []string
		// They come along with a name if they can, but not where someone has
		// just been let in, and not early where that spares nothing.
		late, early := sessionsAt.Add(sessionsEvery/2), sessionsAt.Add(-sessionsEvery/2)
		if dear {
			early = sessionsAt
		}
		if len(r.sessions) > 0 && (late <= t || r.polled && early <= t || c.judge.due(r.sessions, t)) {
			sessions = r.sessions
			sessionsEvery = min(sessionsEvery*3/2, longest)
			sessionsAt = t.Add(c.jitter(sessionsEvery))
		}
		if len(r.due) > 0 || len(sessions) > 0 {
			if silent = core.Never; c.look(r.due, sessions) {
				rest = firstPoll
			} else {
				silent = c.now().Add(c.jitter(rest))
				rest = min(rest*3/2, lastPoll)
			}
			c.mu.Lock()
			c.looked(r.due)
			c.unlock()
		}
		if len(died) > 0 {
			c.buryProven(died)
			continue
		}

		wake := r.next
		sooner := func(at core.Instant) {
			if at != core.Never && (wake == core.Never || at < wake) {
				wake = at
			}
		}
		c.mu.Lock()
		for _, p := range r.due {
			if p.n.Waits() {
				sooner(p.pos.pollAt)
			}
		}
		c.unlock()
		if len(r.sessions) > 0 {
			sooner(sessionsAt.Add(sessionsEvery / 2))
			sooner(c.judge.next(r.sessions))
		}
		if neighbours {
			sooner(c.now().Add(proofPoll))
		}
		pause := lastPoll
		if wake != core.Never {
			pause = max(wake, silent).Sub(c.now())
		}
		nudge := c.nudge
		if silent != core.Never {
			nudge = nil
		}
		timer := c.machine.NewTimer(max(pause, time.Millisecond)) // never without a pause
		select {
		case <-timer.C:
		case <-nudge:
		case <-c.ctx.Done():
		}
		timer.Stop()
	}
}

// look loads names and sessions in one query, takes in what they show, and
// reports whether the store answered.
func (c *Client) look(places []*place, sessions []string) (ok bool) {
	c.mu.Lock()
	timeout := c.callTimeout()
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	others := make([]Key, len(sessions))
	for i, s := range sessions {
		others[i] = Key{Sessions, s}
	}
	_, glimpsed := c.store.(Glancer)
	began := c.now()
	recs, sure, asked, err := c.lookOver(ctx, places, others)
	if err != nil {
		c.mu.Lock()
		for _, p := range places {
			if c.places[p.name] == p {
				c.failed(p, err, false)
			}
		}
		c.unlock()
		return false
	}
	c.mu.Lock()
	for i, p := range places {
		_, was := p.n.Record()
		if c.places[p.name] != p || !p.n.Known() && p.busy {
			continue // gone meanwhile, or on its first way there
		}
		if sure[i] {
			c.seeRecord(p, recs[i], asked)
		}
		if _, version := p.n.Record(); version != was || p.n.Blocked(c.env()) {
			c.kick(p)
		}
	}
	c.unlock()
	looks := make(map[string]sighting, len(sessions))
	for i, s := range sessions {
		looks[s] = sighting{rec: recs[len(places)+i], asked: began, got: c.now(), glimpsed: glimpsed}
	}
	c.judgeAll(ctx, looks)
	if len(sessions) > 0 {
		c.judge.forget(func(session string) bool { _, ok := looks[session]; return ok })
	}
	return true
}

// buried has the records rid of those who have just been found dead. The
// first in line does it at once; those behind look a little later each whether
// it still needs doing.
func (c *Client) buried() {
	c.mu.Lock()
	defer c.unlock()
	for _, p := range c.places {
		switch {
		case !p.n.Waits() || !p.n.Blocked(c.env()):
		case c.before(p) == 0:
			c.kick(p)
		default:
			c.hintPlace(p)
		}
	}
}

// before is how many live waiters stand before our first.
func (c *Client) before(p *place) (n int) {
	rec, _ := p.n.Record()
	for _, w := range rec.Waiters {
		if c.isOurs(w.Session) {
			return n
		}
		if !c.isDead(w.Session) {
			n++
		}
	}
	return n
}
