package holdfast

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A localQueue is the state of one name in this client: the core's Name with its queue of
// goroutines, the locks that were granted, and the pace at which the record is polled.
// Goroutines change only what is wanted; the driver (reconcile.go) makes the record follow.
type localQueue struct {
	name      string
	n         *core.Name
	last      *Lock                  // a lock that is held; nil: none
	more      map[record.Token]*Lock // the other locks that are held
	releasing []*claimRelease        // claims whose end a Release waits for
	busy      bool                   // a driver runs
	idle      bool                   // nobody wants the name: the queue is kept for reuse, or was dropped
	left      *leftBehind            // the record when the queue was last retired; nil: of no use
	pace      *core.Pace             // nil until a claim waits, or the record has to be read
	account   *account               // of holds that have ended and are not recorded yet; nil: none
}

// A claimRelease is the release of a lock's claim.
type claimRelease struct {
	nr   int64
	gone atomic.Bool   // the claim is confirmed gone, or void with its session
	void bool          // void with its session; guarded by c.mu until gone is set
	done chan struct{} // closed when gone is set; made by the first to wait for it, guarded by c.mu
}

func (d *claimRelease) confirm(void bool) {
	d.void = void
	d.gone.Store(true)
	if d.done != nil {
		close(d.done)
	}
}

// hold keeps a lock, to be found by its token.
func (p *localQueue) hold(l *Lock) {
	if p.last == nil {
		p.last = l
		return
	}
	if p.more == nil {
		p.more = make(map[record.Token]*Lock)
	}
	p.more[record.Token(l.token)] = l
}

// unhold forgets the lock with that token and returns it; nil: there is none.
func (p *localQueue) unhold(t record.Token) (l *Lock) {
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

// envOfLast is env as of the last event, without reading the clock again. The step follows that
// event at once, and some time always passes before a step is performed.
func (c *Client) envOfLast() *core.Env { return c.envAt(c.scratch.Now) }

func (c *Client) envAt(t lease.Instant) *core.Env {
	e := &c.scratch
	e.Now, e.Answers = t, c.answers
	if c.sess != nil {
		e.Session = c.sess.life.View()
	} else {
		e.Session = lease.View{}
	}
	return e
}

// A walled is a reading of the wall clock at an instant.
type walled struct {
	at   lease.Instant
	wall int64
}

// wall is the time of the last event by the wall clock, in microseconds since 1970. The clock is
// read at most once per millisecond. c.mu is held.
func (c *Client) wall() int64 {
	since := c.scratch.Now.Sub(c.walled.at)
	if since < 0 || since > time.Millisecond || c.walled.wall == 0 {
		since, c.walled = 0, walled{c.scratch.Now, time.Now().UnixMicro()}
	}
	return c.walled.wall + since.Microseconds()
}

// perform turns the effects of an event into locks, errors and wake-ups. Nothing else does.
// c.mu is held.
func (c *Client) perform(p *localQueue, eff *core.Effects) {
	for _, g := range eff.Granted {
		c.granted(p, g)
	}
	for _, f := range eff.Refused {
		f.Request.Tag.(*request).answer(nil, p.refusal(f))
	}
	for _, q := range eff.Queued {
		q.Tag.(*request).traceQueued()
	}
	for _, l := range eff.Lost {
		c.lost(p, l)
	}
	for _, g := range eff.Gone {
		c.gone(p, g)
	}
	if len(eff.Evicted) > 0 {
		c.evicted(p.name, eff.Evicted)
	}
	for _, g := range eff.Guests {
		signal(g.Tag.(chan struct{}))
	}
	if eff.Beat && c.sess != nil {
		c.after.call(func() { c.log.Warn("no longer in the queue", "name", p.name) })
		signal(c.sess.wake)
	}
	if eff.Tick != lease.Never {
		c.machine.AfterFunc(max(eff.Tick.Sub(c.now()), 0), func() {
			c.mu.Lock()
			defer c.unlock()
			c.perform(p, p.n.Tick(c.env()))
		})
	}
	news, work := eff.News, eff.Work // the next event of the name overwrites them
	if news {
		c.follow(p)
		if p.n.Waits() {
			c.startPolling()
		}
	}
	if work {
		c.reconcile(p)
	}
}

// granted turns a request into a lock.
func (c *Client) granted(p *localQueue, g core.Grant) {
	r := g.Request.Tag.(*request)
	l := &Lock{c: c, p: p, sess: c.sess, token: int64(g.Token), nr: g.Claim.Nr, slots: r.slots, reason: g.Reason, seat: r.seat, labels: g.Labels, since: g.At, waited: g.At.Sub(r.start), values: r.ctx}
	p.hold(l)
	if r.slots == 1 && !l.sess.setLabels(l.nr, g.Labels, r.labels) { // the claim may have been handed on
		l.sess.dropLabels(l.nr)
	}
	r.answer(l, nil)
}

// lost ends a lock that was not released.
func (c *Client) lost(p *localQueue, lost core.Loss) {
	l := p.unhold(lost.Token)
	if l == nil {
		return
	}
	l.broken = lost.Broken != nil
	if b := lost.Broken; b != nil {
		l.past(c.now(), record.EndBroken, &b.By, b.Reason)
	}
	l.lose(lost.Why, lost.Err)
	c.checkDrained()
}

// gone confirms the end of a claim to the releases that wait for it.
func (c *Client) gone(p *localQueue, g core.Gone) {
	if c.sess != nil {
		c.sess.dropLabels(g.Nr)
	}
	p.releasing = slices.DeleteFunc(p.releasing, func(d *claimRelease) bool {
		if d.nr == g.Nr {
			d.confirm(g.Void)
		}
		return d.nr == g.Nr
	})
}

// refusal turns a refusal of the core into the error of a request.
func (p *localQueue) refusal(f core.Refusal) error {
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
func (p *localQueue) heldError(h *core.Held) *HeldError {
	if h.Here {
		return &HeldError{Name: p.name, Self: h.Self}
	}
	return &HeldError{Name: p.name, Holders: p.claims(h.Record.Holders), Waiters: p.claims(h.Record.Waiters), Locked: h.Locked, Full: h.Full}
}

// claims shows records as claims, without what only their sessions know.
func (p *localQueue) claims(recs []record.Claim) []Claim {
	var claims []Claim
	for _, r := range recs {
		claims = append(claims, publicClaim(r, p.name))
	}
	return claims
}

// A brokenError says that a waiting claim was broken.
type brokenError struct{ why string }

func (e *brokenError) Is(target error) bool { return target == ErrLost }

func (e *brokenError) Error() string { return e.why }

// active yields the queues of names that somebody wants; c.mu is held.
func (c *Client) active(yield func(p *localQueue) bool) {
	for _, p := range c.queues {
		if !p.idle && !yield(p) {
			return
		}
	}
}

// activeQueue returns the queue of a name; nil: nobody wants it. c.mu is held.
func (c *Client) activeQueue(name string) *localQueue {
	if p := c.queues[name]; p != nil && !p.idle {
		return p
	}
	return nil
}

// queue returns the local queue of a name, which is active from now on; c.mu is held.
func (c *Client) queue(name string) *localQueue {
	p := c.queues[name]
	switch {
	case p == nil:
		p = &localQueue{name: name, n: core.NewName(&c.rooms)}
		c.queues[name] = p
		return p
	case !p.idle:
		return p
	}
	p.idle = false
	c.idle--
	old := p.left
	if p.left = nil; old != nil && c.now().Sub(old.at) < recently {
		if old.pace > 0 {
			p.pace = core.NewPace(old.pace)
		}
		c.perform(p, p.n.Seen(old.rec, old.version, old.at, old.pace > 0, c.env()))
	}
	return p
}

// join puts a request in line at t; c.mu is held.
func (c *Client) join(r *request, t lease.Instant) {
	if c.end.closing {
		r.answer(nil, ErrClosed)
		return
	}
	r.p = c.queue(r.name)
	r.core = core.Request{Slots: r.slots, Try: r.try(), Reason: r.reason, Labels: r.labels, Set: r.set, Election: r.seat, Tag: r}
	c.perform(r.p, r.p.n.Want(&r.core, c.envAt(t)))
}

// cancel takes a request out of the line. It returns the claim that it shared, and whether
// it was still in line; c.mu is held.
func (c *Client) cancel(r *request) (id core.ClaimID, was bool) {
	if r.done {
		return id, false
	}
	r.done = true
	id, _, eff := r.p.n.Cancel(&r.core, c.env())
	c.perform(r.p, eff)
	return id, true
}

// release ends a hold at t, unless that was done before; c.mu is held.
func (c *Client) release(l *Lock, t lease.Instant) {
	if l.going {
		return
	}
	l.going = true
	l.p.unhold(record.Token(l.token))
	nr, eff := l.p.n.Release(record.Token(l.token), c.envAt(t))
	if l.left.nr = nr; nr != 0 {
		l.p.releasing = append(l.p.releasing, &l.left)
	} else {
		l.left.confirm(false)
	}
	c.perform(l.p, eff)
	c.checkDrained()
}

// leftBehind is the record of a name, with claims of others, when its queue was retired.
type leftBehind struct {
	rec     record.Lock
	version record.Version
	at      lease.Instant
	pace    time.Duration
}

const (
	recently = time.Second // how long that record may be of use
	maxIdle  = 1000        // idle queues that are kept for reuse
)

// retire makes a queue idle. It forgets all but a record with claims of others: a request
// that comes soon after need not read it again. c.mu is held.
func (c *Client) retire(p *localQueue) {
	p.left = nil
	if rec, version := p.n.Record(); len(rec.Holders)+len(rec.Waiters) > 0 {
		p.left = &leftBehind{rec: *rec, version: version, at: c.now(), pace: p.pace.Quick()}
	}
	if c.idle >= maxIdle {
		maps.DeleteFunc(c.queues, func(_ string, p *localQueue) bool { return p.idle })
		c.idle = 0
	}
	p.n.Forget()
	p.pace = nil
	p.idle = true
	c.idle++
}

func (c *Client) isOurs(session string) bool { return c.sess != nil && c.sess.id == session }

// revoke handles the break of one of our claims; c.mu is held.
func (c *Client) revoke(s *session, r record.Revocation) {
	s.broke = true
	if p := c.activeQueue(r.Name); p != nil {
		c.perform(p, p.n.Revoke(s.id, c.owner, r, c.env()))
	}
}
