package engine

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A LocalQueue is the state of one name in this client: the core's Name with its queue of
// goroutines, the locks that were granted, and the pace at which the record is polled.
// Goroutines change only what is wanted; the driver (reconcile.go) makes the record follow.
type LocalQueue struct {
	Name      string
	n         *core.Name
	last      *Lock                  // a lock that is held; nil: none
	more      map[record.Token]*Lock // the other locks that are held
	releasing []*claimRelease        // claims whose end a Release waits for
	busy      bool                   // a driver runs
	idle      bool                   // nobody wants the name: the queue is kept for reuse, or was dropped
	left      *leftBehind            // the record when the queue was last retired; nil: of no use
	pace      *core.Pace             // nil until a claim waits, or the record has to be read
	account   *base.Account          // of holds that have ended and are not recorded yet; nil: none
}

// A claimRelease is the release of a lock's claim.
type claimRelease struct {
	nr   int64
	gone atomic.Bool   // the claim is confirmed gone, or void with its session
	void bool          // void with its session; guarded by c.Mu until gone is set
	done chan struct{} // closed when gone is set; made by the first to wait for it, guarded by c.Mu
}

func (d *claimRelease) confirm(void bool) {
	d.void = void
	d.gone.Store(true)
	if d.done != nil {
		close(d.done)
	}
}

// hold keeps a lock, to be found by its token.
func (p *LocalQueue) hold(l *Lock) {
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
func (p *LocalQueue) unhold(t record.Token) (l *Lock) {
	if p.last != nil && p.last.token == int64(t) {
		l, p.last = p.last, nil
		return l
	}
	l = p.more[t]
	delete(p.more, t)
	return l
}

// env is what is true of the client now; c.Mu is held. It is valid until the next call.
func (c *Engine) env() *core.Env { return c.envAt(c.Now()) }

// envOfLast is env as of the last event, without reading the clock again. The step follows that
// event at once, and some time always passes before a step is performed.
func (c *Engine) envOfLast() *core.Env { return c.envAt(c.scratch.Now) }

func (c *Engine) envAt(t lease.Instant) *core.Env {
	e := &c.scratch
	e.Now, e.Answers = t, c.Answers
	if c.Sess != nil {
		e.Session = c.Sess.Life.View()
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
// read at most once per millisecond. c.Mu is held.
func (c *Engine) wall() int64 {
	since := c.scratch.Now.Sub(c.walled.at)
	if since < 0 || since > time.Millisecond || c.walled.wall == 0 {
		since, c.walled = 0, walled{c.scratch.Now, time.Now().UnixMicro()}
	}
	return c.walled.wall + since.Microseconds()
}

// perform turns the effects of an event into locks, errors and wake-ups. Nothing else does.
// c.Mu is held.
func (c *Engine) perform(p *LocalQueue, eff *core.Effects) {
	for _, g := range eff.Granted {
		c.granted(p, g)
	}
	for _, f := range eff.Refused {
		f.Request.Tag.(*Request).answer(nil, c.refusal(p, f))
	}
	for _, q := range eff.Queued {
		q.Tag.(*Request).traceQueued()
	}
	for _, l := range eff.Lost {
		c.lost(p, l)
	}
	for _, g := range eff.Gone {
		c.gone(p, g)
	}
	if len(eff.Evicted) > 0 {
		c.Evicted(p.Name, eff.Evicted)
	}
	for _, g := range eff.Guests {
		base.Signal(g.Tag.(chan struct{}))
	}
	if eff.Beat && c.Sess != nil {
		c.After.Call(func() { c.Log.Warn("no longer in the queue", "name", p.Name) })
		base.Signal(c.Sess.Wake)
	}
	if eff.Tick != lease.Never {
		c.Machine.AfterFunc(max(eff.Tick.Sub(c.Now()), 0), func() {
			c.Mu.Lock()
			defer c.Unlock()
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
func (c *Engine) granted(p *LocalQueue, g core.Grant) {
	r := g.Request.Tag.(*Request)
	l := &Lock{c: c, p: p, sess: c.Sess, token: int64(g.Token), nr: g.Claim.Nr, slots: r.Slots, reason: g.Reason, seat: r.Seat, labels: g.Labels, since: g.At, waited: g.At.Sub(r.start), values: r.ctx}
	p.hold(l)
	if r.Slots == 1 && !l.sess.SetLabels(l.nr, g.Labels, r.Labels) { // the claim may have been handed on
		l.sess.DropLabels(l.nr)
	}
	r.answer(l, nil)
}

// lost ends a lock that was not released.
func (c *Engine) lost(p *LocalQueue, lost core.Loss) {
	l := p.unhold(lost.Token)
	if l == nil {
		return
	}
	l.broken = lost.Broken != nil
	if b := lost.Broken; b != nil {
		l.past(c.Now(), record.EndBroken, &b.By, b.Reason)
	}
	l.lose(lost.Why, lost.Err)
	c.checkDrained()
}

// gone confirms the end of a claim to the releases that wait for it.
func (c *Engine) gone(p *LocalQueue, g core.Gone) {
	if c.Sess != nil {
		c.Sess.DropLabels(g.Nr)
	}
	p.releasing = slices.DeleteFunc(p.releasing, func(d *claimRelease) bool {
		if d.nr == g.Nr {
			d.confirm(g.Void)
		}
		return d.nr == g.Nr
	})
}

// refusal turns a refusal of the core into the error of a request.
func (c *Engine) refusal(p *LocalQueue, f core.Refusal) error {
	var held *core.Held
	var broken *core.Broken
	switch {
	case f.Silent:
		return base.NoAnswer(f.Err)
	case errors.As(f.Err, &held):
		return c.held(p, held)
	case errors.As(f.Err, &broken):
		return &brokenError{broken.Why}
	}
	return f.Err
}

// held says who is in the way, as far as the record tells.
func (c *Engine) held(p *LocalQueue, h *core.Held) *Held {
	if h.Here {
		return &Held{C: c, Name: p.Name, Self: h.Self}
	}
	return &Held{C: c, Name: p.Name, Holders: slices.Clone(h.Record.Holders), Waiters: slices.Clone(h.Record.Waiters), Locked: h.Locked, Full: h.Full}
}

// A brokenError says that a waiting claim was broken.
type brokenError struct{ why string }

func (e *brokenError) Is(target error) bool { return target == record.ErrLost }

func (e *brokenError) Error() string { return e.why }

// active yields the queues of names that somebody wants; c.Mu is held.
func (c *Engine) active(yield func(p *LocalQueue) bool) {
	for _, p := range c.queues {
		if !p.idle && !yield(p) {
			return
		}
	}
}

// activeQueue returns the queue of a name; nil: nobody wants it. c.Mu is held.
func (c *Engine) activeQueue(name string) *LocalQueue {
	if p := c.queues[name]; p != nil && !p.idle {
		return p
	}
	return nil
}

// queue returns the local queue of a name, which is active from now on; c.Mu is held.
func (c *Engine) queue(name string) *LocalQueue {
	p := c.queues[name]
	switch {
	case p == nil:
		p = &LocalQueue{Name: name, n: core.NewName(&c.rooms)}
		c.queues[name] = p
		return p
	case !p.idle:
		return p
	}
	p.idle = false
	c.idle--
	old := p.left
	if p.left = nil; old != nil && c.Now().Sub(old.at) < recently {
		if old.pace > 0 {
			p.pace = core.NewPace(old.pace)
		}
		c.perform(p, p.n.Seen(old.rec, old.version, old.at, old.pace > 0, c.env()))
	}
	return p
}

// join puts a request in line at t; c.Mu is held.
func (c *Engine) join(r *Request, t lease.Instant) {
	if c.Closing {
		r.answer(nil, base.ErrClosed)
		return
	}
	r.p = c.queue(r.name)
	r.core = core.Request{Slots: r.Slots, Try: r.try(), Reason: r.Reason, Labels: r.Labels, Set: r.set, Election: r.Seat, Tag: r}
	c.perform(r.p, r.p.n.Want(&r.core, c.envAt(t)))
}

// cancel takes a request out of the line. It returns the claim that it shared, and whether
// it was still in line; c.Mu is held.
func (c *Engine) cancel(r *Request) (id core.ClaimID, was bool) {
	if r.done {
		return id, false
	}
	r.done = true
	id, _, eff := r.p.n.Cancel(&r.core, c.env())
	c.perform(r.p, eff)
	return id, true
}

// release ends a hold at t, unless that was done before; c.Mu is held.
func (c *Engine) release(l *Lock, t lease.Instant) {
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
// that comes soon after need not read it again. c.Mu is held.
func (c *Engine) retire(p *LocalQueue) {
	p.left = nil
	if rec, version := p.n.Record(); len(rec.Holders)+len(rec.Waiters) > 0 {
		p.left = &leftBehind{rec: *rec, version: version, at: c.Now(), pace: p.pace.Quick()}
	}
	if c.idle >= maxIdle {
		maps.DeleteFunc(c.queues, func(_ string, p *LocalQueue) bool { return p.idle })
		c.idle = 0
	}
	p.n.Forget()
	p.pace = nil
	p.idle = true
	c.idle++
}

// Revoked handles the break of one of our claims; c.Mu is held.
func (c *Engine) Revoked(s *base.Session, r record.Revocation) {
	s.Broke = true
	if p := c.activeQueue(r.Name); p != nil {
		c.perform(p, p.n.Revoke(s.ID, c.Owner, r, c.env()))
	}
}
