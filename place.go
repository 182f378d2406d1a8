package holdfast

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// A place is this client's business with one name: the core's part of it, the locks that
// came of it, and when it is looked at. Goroutines change only what is wanted; the driver
// (drive.go) makes the record follow.
type place struct {
	name    string
	n       *core.Name
	last    *Lock                // a hold,
	more    map[core.Token]*Lock // and where there are several the others
	leaving []*departure         // claims whose going somebody waits for
	busy    bool                 // a driver is at it
	left    leftBehind           // when it was left last
	pace    *core.Pace           // nil until it waits, or is to be read
}

// A departure is a lock's claim that is to go.
type departure struct {
	nr   int64
	gone atomic.Bool   // it is confirmed gone, or void with its session
	void bool          // the latter; guarded by c.mu until gone is set
	done chan struct{} // closed then; made by whoever waits for it, guarded by c.mu
}

func (d *departure) confirm(void bool) {
	d.void = void
	d.gone.Store(true)
	if d.done != nil {
		close(d.done)
	}
}

// hold keeps a lock where its token finds it.
func (p *place) hold(l *Lock) {
	if p.last == nil {
		p.last = l
		return
	}
	if p.more == nil {
		p.more = make(map[core.Token]*Lock)
	}
	p.more[core.Token(l.token)] = l
}

// unhold forgets a lock, and returns it; nil if it had been forgotten.
func (p *place) unhold(t core.Token) (l *Lock) {
	if p.last != nil && p.last.token == int64(t) {
		l, p.last = p.last, nil
		return l
	}
	l = p.more[t]
	delete(p.more, t)
	return l
}

// env is what is true of the client now; c.mu is held. It is valid until the next call.
func (c *Client) env() *core.Env { return c.envAt(c.now()) }

func (c *Client) envAt(t core.Instant) *core.Env {
	e := &c.scratch
	e.Now, e.Answers, e.Session = t, c.answers, core.SessionView{}
	if c.sess != nil {
		e.Session = c.sess.life.View()
	}
	return e
}

// perform turns the effects of an event of a place into locks, errors and wake-ups: nothing
// else does. c.mu is held.
func (c *Client) perform(p *place, eff *core.Effects) {
	for _, g := range eff.Granted {
		r := g.Request.Tag.(*request)
		l := &Lock{c: c, p: p, sess: c.sess, token: int64(g.Token), nr: g.Claim.Nr, slots: r.slots, reason: g.Reason, asked: g.Asked, since: g.At, values: r.ctx}
		p.hold(l)
		r.answer(l, nil)
	}
	for _, f := range eff.Refused {
		f.Request.Tag.(*request).answer(nil, p.refusal(f))
	}
	for _, q := range eff.Queued {
		q.Tag.(*request).announce()
	}
	for _, lost := range eff.Lost {
		if l := p.unhold(lost.Token); l != nil {
			l.broken = lost.Broken
			l.lose(lost.Why, lost.Err)
		}
	}
	for _, g := range eff.Gone {
		p.leaving = slices.DeleteFunc(p.leaving, func(d *departure) bool {
			if d.nr == g.Nr {
				d.confirm(g.Void)
			}
			return d.nr == g.Nr
		})
	}
	if eff.Beat && c.sess != nil {
		c.later = append(c.later, func() { c.log.Warn("no longer in the queue", "name", p.name) })
		signal(c.sess.wake)
	}
	if eff.Tick != core.Never {
		c.machine.AfterFunc(max(eff.Tick.Sub(c.now()), 0), func() {
			c.mu.Lock()
			defer c.unlock()
			c.perform(p, p.n.Tick(c.env()))
		})
	}
	news, work := eff.News, eff.Work // the next event of the place overwrites them
	if news {
		c.follow(p)
		if p.n.Waits() {
			c.startPolling()
		}
	}
	if work {
		c.kick(p)
	}
}

// refusal is the error of a request, from that of the core.
func (p *place) refusal(f core.Refusal) error {
	var held *core.Held
	var broken *core.Broken
	switch {
	case f.Silent:
		return noAnswer(f.Err)
	case errors.As(f.Err, &held):
		return p.heldError(held)
	case errors.As(f.Err, &broken):
		return &brokenError{broken.Why}
	}
	return f.Err
}

// heldError says who is in the way, as far as the record tells.
func (p *place) heldError(h *core.Held) *HeldError {
	if h.Here {
		return &HeldError{Name: p.name, Self: h.Self}
	}
	return &HeldError{Name: p.name, Holders: p.claims(h.Record.Holders), Waiters: p.claims(h.Record.Waiters), Locked: h.Locked, Full: h.Full}
}

// claims shows records as claims, without what only their sessions know.
func (p *place) claims(recs []core.Claim) []Claim {
	var claims []Claim
	for _, r := range recs {
		claims = append(claims, publicClaim(r, p.name))
	}
	return claims
}

// brokenError: a waiting claim was broken.
type brokenError struct{ why string }

func (e *brokenError) Is(target error) bool { return target == ErrLost }

func (e *brokenError) Error() string { return e.why }

// place returns the place of a name; c.mu is held.
func (c *Client) place(name string) *place {
	if p := c.places[name]; p != nil {
		return p
	}
	p := c.idle[name]
	if p == nil {
		p = &place{name: name, n: core.NewName()}
		c.places[name] = p
		return p
	}
	delete(c.idle, name)
	c.places[name] = p
	if old := p.left; old.version != 0 && c.now().Sub(old.at) < recently {
		if old.pace > 0 {
			p.pace = core.NewPace(old.pace)
		}
		c.perform(p, p.n.Seen(old.rec, old.version, old.at, old.pace > 0, c.env()))
	}
	return p
}

// join puts a request in line; c.mu is held.
func (c *Client) join(r *request) {
	if c.closed {
		r.answer(nil, ErrClosed)
		return
	}
	r.p = c.place(r.name)
	r.core = core.Request{Slots: r.slots, Try: r.try(), Reason: r.reason, Set: r.set, Tag: r}
	c.perform(r.p, r.p.n.Want(&r.core, c.env()))
}

// abandon takes a request out of the line. It returns the claim that it shared, and whether
// it was still in line; c.mu is held.
func (c *Client) abandon(r *request) (id core.ClaimID, was bool) {
	if r.done {
		return id, false
	}
	r.done = true
	id, _, eff := r.p.n.Cancel(&r.core, c.env())
	c.perform(r.p, eff)
	return id, true
}

// letGo ends a hold at t, unless that was done before; c.mu is held.
func (c *Client) letGo(l *Lock, t core.Instant) {
	if l.going {
		return
	}
	l.going = true
	l.p.unhold(core.Token(l.token))
	nr, eff := l.p.n.Release(core.Token(l.token), c.envAt(t))
	if l.left.nr = nr; nr != 0 {
		l.p.leaving = append(l.p.leaving, &l.left)
	} else {
		l.left.confirm(false)
	}
	c.perform(l.p, eff)
}

// leftBehind is a record as it was left, with others in it.
type leftBehind struct {
	rec     core.LockRecord
	version core.Version
	at      core.Instant
	pace    time.Duration
}

const (
	recently = time.Second // how long that may be of use
	maxIdle  = 1000        // places of which nothing is wanted, kept for their room
)

// leave has a place be idle, and know nothing but what it looked like if others
// are there: one that comes again soon need not ask; c.mu is held.
func (c *Client) leave(p *place) {
	delete(c.places, p.name)
	p.left = leftBehind{}
	if rec, version := p.n.Record(); len(rec.Holders)+len(rec.Waiters) > 0 {
		p.left = leftBehind{rec: *rec, version: version, at: c.now(), pace: p.pace.Quick()}
	}
	if len(c.idle) >= maxIdle {
		clear(c.idle)
	}
	p.n.Forget()
	p.pace = nil
	c.idle[p.name] = p
}

func (c *Client) isOurs(session string) bool { return c.sess != nil && c.sess.id == session }

// revoke takes in that one of our claims was broken.
func (c *Client) revoke(s *session, r core.Revocation) {
	c.mu.Lock()
	defer c.unlock()
	if p := c.places[r.Name]; p != nil {
		c.perform(p, p.n.Revoke(s.id, c.owner, r, c.env()))
	}
}
