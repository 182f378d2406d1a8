package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
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

func (c *Client) kickAll() {
	for _, p := range c.places {
		c.kick(p)
	}
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
		p.confirm()
		s := c.assign(p)
		opens := s != nil && !s.opened
		next, changed := c.plan(p)
		look := p.look || p.stale() && !changed || lost > 2 && !looked && !spread
		peek := spread && changed && p.known && (lost > 0 || p.pos != nil) && c.now().sub(max(p.asked, p.got, p.glanced)) > peekAfter
		comes := spread && changed && opens && !s.opening && !p.known && p.glanced == never // perhaps to a crowd: does not write blindly
		if here != nil && (opens || look || peek || changed && took > 0) {
			c.unlock()
			go c.drive(p, nil)
			return
		}
		switch {
		case comes:
			c.unlock()
			c.peek(glancer, p)
		case opens && s.opening:
			patience := c.patience(p)
			c.unlock()
			c.awaitOpen(p, s, patience)
		case opens:
			s.opening = true
			c.unlock()
			c.openWith(p, s)
		case look:
			p.look = false
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
			w := p.write(next, c.sess)
			leaves := len(p.leaving) > 0
			timeout := c.callTimeout()
			if slices.ContainsFunc(p.groups, func(g *group) bool { return g.try }) {
				timeout = min(timeout, tryPatience)
			}
			c.unlock()
			var sw *swap
			if here == nil {
				sw = c.batch.do(w, timeout)
			} else if sw = c.batch.alone(here, w, timeout); sw == nil {
				go c.drive(p, nil)
				return
			}
			took, looked = max(c.now().sub(sw.sent), 1), false
			switch c.answered(p, sw, next, here) {
			case won:
				lost = 0
			case lostTo:
				if lost++; spread && !leaves {
					wide := min(lost-1, 4)
					if lost > 8 { // who comes anew does not pause, and shall not always be before us
						wide = 0
					}
					c.pause(c.upTo(min(4*took<<wide, maxSpread)))
				}
			case perhaps:
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
			if len(p.groups)+len(p.leaving) == 0 && (!p.blind || c.closed) {
				c.debts = c.debts || p.blind
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
	var next lockRecord
	var w Write
	sw := s.open(func() (Write, bool) {
		var changed bool
		if next, changed = c.plan(p); changed {
			w = p.write(next, c.sess)
		}
		return w, changed
	})
	if w.Key.Name == "" {
		return
	}
	if sw.write = w; c.answered(p, sw, next, nil) == perhaps {
		c.pause(c.backoff(p))
	}
}

// patience is how much longer those who wait for a silent store go on waiting;
// c.mu is held.
func (c *Client) patience(p *place) time.Duration {
	if p.failing == never {
		return c.ttl()
	}
	return max(c.ttl()-c.now().sub(max(p.failing, p.heard)), 0) + time.Millisecond
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
		if s.failing != nil {
			c.failed(p, s.failing)
		}
	}
}

// ttl is the session's; c.mu is held.
func (c *Client) ttl() time.Duration {
	if c.sess != nil && c.sess.ttl > 0 {
		return c.sess.ttl
	}
	return DefaultTTL
}

// callTimeout bounds one call to the store, so that one that hangs is tried
// again; c.mu is held.
func (c *Client) callTimeout() time.Duration {
	return max(c.ttl()/2, min(c.ttl(), time.Second))
}

// confirm lets go of departures that are done: the claim is not in the record,
// and no write of ours is on its way that could still bring it. (One that takes
// the name whenever it is empty can: that is a debt, and watched.)
func (p *place) confirm() {
	if p.openOld != 0 {
		return
	}
	p.leaving = slices.DeleteFunc(p.leaving, func(d *departure) bool {
		_, _, ok := p.rec.find(d.sess.id, d.nr)
		if !ok {
			close(d.gone)
		}
		return !ok
	})
}

// assign gives every group that has no claim yet one of the current session,
// and returns that session; nil if none is needed.
func (c *Client) assign(p *place) (s *session) {
	for _, g := range p.groups {
		if g.state != wanted {
			continue
		}
		s = c.current()
		if g.nr == 0 {
			s.claims++
			g.sess, g.nr = s, s.claims
		}
	}
	return s
}

// plan is the record that should follow the one last seen: without our claims
// that nobody wants, without those of the dead, with those that are wanted, and
// settled. Any claim of our session that we do not know is one that nobody
// wants. c.mu is held.
func (c *Client) plan(p *place) (next lockRecord, changed bool) {
	next = p.rec.clone()
	changed = p.openOld != 0 && p.openOld == p.version // closes what may still follow that version
	if s := c.sess; s != nil {
		gone := next.drop(func(cl claimRecord) bool {
			if cl.Session != s.id || c.wants(p, cl.Nr) {
				return false
			}
			for _, d := range p.leaving {
				if d.nr == cl.Nr && d.broken != nil {
					b := *d.broken
					b.Token = cl.Token // 0: it was waiting
					next.addBreak(b)
				}
			}
			return true
		})
		changed = changed || gone
	}
	if next.settle(c.isDead) && len(p.groups)+len(p.leaving) > 0 {
		changed = true // claims of the dead bother only those who want the name
	}
	for _, g := range p.groups {
		if g.nr == 0 || g.doubt {
			continue
		}
		if _, _, ok := next.find(g.sess.id, g.nr); ok || g.state != wanted {
			continue
		}
		full := next.full()
		next.enqueue(g.claim())
		next.settle(c.isDead)
		_, holds, _ := next.find(g.sess.id, g.nr)
		if full && (holds || !g.try) {
			g.try, g.full = true, true
		}
		if !full && (holds || !g.try) {
			changed = true
		} else {
			next.drop(func(cl claimRecord) bool { return cl.is(g.sess.id, g.nr) })
		}
	}
	return next, changed
}

// maxQueue bounds a queue, and maxRecord the claims of a record: a claim that would come
// later, or make the record larger than every store keeps, is refused. The rest of a record
// is for audit entries.
const (
	maxQueue  = 4096
	maxRecord = MaxValue * 7 / 8
)

// full says whether a record has room for no more claims.
func (r *lockRecord) full() bool {
	if len(r.Holders)+len(r.Waiters) < maxRecord/(claimSize+6*maxReason) {
		return false // however long their reasons are
	}
	size := 0
	for _, claims := range [][]claimRecord{r.Holders, r.Waiters} {
		for _, c := range claims {
			size += claimSize + len(c.Reason) + 5*strings.Count(c.Reason, "<") + 5*strings.Count(c.Reason, ">") + 5*strings.Count(c.Reason, "&")
			if strings.ContainsFunc(c.Reason, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r > 0x2000 }) {
				size += 5 * len(c.Reason) // escaped in JSON, the most that can be
			}
		}
	}
	return len(r.Waiters) >= maxQueue || size > maxRecord
}

// claimSize is the most that a claim takes in a record, but for its reason.
const claimSize = 260

// wants says whether a claim number of the current session is wanted, or not to
// be given back yet.
func (c *Client) wants(p *place, nr int64) bool {
	for _, g := range p.groups {
		if g.nr == nr {
			return true
		}
	}
	for _, d := range p.leaving {
		if d.nr == nr && d.keptFor(c.now()) > 0 {
			return true
		}
	}
	return false
}

func (g *group) claim() claimRecord {
	n := g.want
	if g.slots < 2 && int64(g.waiting.len()) > n {
		n = int64(g.waiting.len())
	}
	if n == 1 {
		n = 0
	}
	return claimRecord{
		Session: g.sess.id, Nr: g.nr, Slots: g.slots, N: n, TTL: g.sess.ttl.Milliseconds(),
		Since: g.since.UnixMicro(), Reason: g.reason, Retries: g.retries, Set: g.set,
	}
}

const maxBreaks = 16

func (r *lockRecord) addBreak(b breakRecord) {
	r.Breaks = append(r.Breaks, b.bounded())
	if n := len(r.Breaks) - maxBreaks; n > 0 {
		r.Breaks = slices.Delete(r.Breaks, 0, n)
	}
}

// write is the write that puts next in place of what is there. It waits for the
// disk only if it gives someone a token. It wakes watchers only where someone
// waits: for a grant to another process, or, of a claim that is handed on in
// memory, to be told that another process is in line.
func (p *place) write(next lockRecord, s *session) Write {
	old := p.version
	if old == 0 {
		old = IfEmpty
	}
	w := Write{Key: Key{Names, p.name}, Old: old, Value: next.encode(max(old, 0)), Lazy: !next.gives()}
	for _, h := range next.Holders {
		if h.Token == 0 && (s == nil || h.Session != s.id) || h.tokens() > 1 && len(next.Waiters) > len(p.rec.Waiters) {
			if w.Wake != "" && w.Wake != h.Session {
				w.Wake = Everyone
				break
			}
			w.Wake = h.Session
		}
	}
	return w
}

type result int8

const (
	won result = iota
	lostTo
	perhaps
)

// answered takes in what became of a write. An error is not the store's if the
// context here had ended.
func (c *Client) answered(p *place, sw *swap, next lockRecord, here context.Context) result {
	c.mu.Lock()
	defer c.unlock()
	if sw.write.Lazy {
		c.lazy[p.name] = c.now() // a crash of the database may take it back, whatever the answer
	}
	if sw.err == nil {
		p.unsure = never
	}
	switch {
	case sw.err != nil:
		if p.unsure == never {
			p.unsure = c.now()
		}
		if sw.write.Old == IfEmpty {
			p.blind = true
		} else {
			p.openOld = sw.write.Old
		}
		p.look = true
		if here == nil || here.Err() == nil {
			c.failed(p, sw.err)
		}
		return perhaps
	case sw.out.Won:
		p.shut = 0
		next.written(sw.out.Record.Version)
		p.saw(sw.out.Record)
		c.see(p, next, sw.out.Record.Version, sw.sent)
		return won
	}
	rec, err := decodeLock(sw.out.Record.Value, sw.out.Record.Version)
	if err != nil {
		c.refuse(p, err)
		return lostTo
	}
	p.saw(sw.out.Record)
	for _, g := range p.groups {
		if g.state == wanted && g.nr != 0 {
			g.retries++
		}
	}
	c.see(p, rec, sw.out.Record.Version, sw.sent)
	p.shut++
	if !sw.lostToOld() {
		p.shut = 0
	} else if p.shut > 1 || c.now().sub(sw.sent) > lockedCall {
		c.denyTries(p)
	}
	return lostTo
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

// lockedCall is how long a single write has to take before its loss to the record that
// it was to follow is put down to a locked row. A quicker one may have lost to a record
// that was emptied before it was read.
const lockedCall = 250 * time.Millisecond

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
		p.look = true
		c.failed(p, err)
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

func (c *Client) seeRecord(p *place, r Record, asked instant) {
	p.saw(r)
	if p.known && r.Version == p.version {
		c.see(p, p.rec, p.version, asked)
		return
	}
	rec, err := decodeLock(r.Value, r.Version)
	if err != nil {
		c.refuse(p, err)
		return
	}
	c.see(p, rec, r.Version, asked)
}

// failed: the store did not answer. A request that does not wait fails at once,
// as all do if the store has never answered this client; the others fail when it
// has been silent for a TTL. A store that is busy is not silent, so they wait on;
// c.mu is held.
func (c *Client) failed(p *place, err error) {
	if p.failing == never {
		p.failing = c.now()
	}
	p.failed = err
	busy := errors.Is(err, ErrBusy)
	if busy {
		c.answers, p.heard = true, c.now()
	}
	silent := !c.answers || c.now().sub(max(p.failing, p.heard)) > c.ttl()
	for _, g := range slices.Clone(p.groups) {
		if silent || g.try && !busy {
			c.failGroup(g, noAnswer(err))
		}
	}
}

// noAnswer is what a request is told of a call that was not answered.
func noAnswer(err error) error {
	if errors.Is(err, ErrBusy) {
		return err
	}
	return fmt.Errorf("the store does not answer: %w", err)
}

// failGroup answers everyone who waits in a group with an error.
func (c *Client) failGroup(g *group, err error) {
	for g.waiting.len() > 0 {
		g.waiting.pop().answer(nil, err)
	}
	if len(g.active) == 0 {
		c.part(g, g.broken)
	}
}

// refuse: what stands under the name was not written by us, and we do not touch
// it; c.mu is held.
func (c *Client) refuse(p *place, err error) {
	for _, g := range slices.Clone(p.groups) {
		c.failGroup(g, err)
	}
	p.leaving = slices.DeleteFunc(p.leaving, func(d *departure) bool { d.void = true; close(d.gone); return true })
	p.openOld, p.blind = 0, false
}

// stale says whether someone who does not wait still needs to be told, and the
// record was seen too long ago for that.
func (p *place) stale() bool {
	return slices.ContainsFunc(p.groups, func(g *group) bool { return g.try && g.state == wanted && p.asked < g.born })
}

// denyTries answers those who do not wait and did not get in, and reports
// whether there were any; c.mu is held.
func (c *Client) denyTries(p *place) (any bool) {
	for _, g := range slices.Clone(p.groups) {
		if g.try && g.state == wanted {
			held := p.heldError()
			held.Full = g.full
			c.failGroup(g, held)
			any = true
		}
	}
	return any
}

// heldError says who is in the way, as far as the record tells.
func (p *place) heldError() *HeldError {
	return &HeldError{Name: p.name, Holders: p.claims(p.rec.Holders), Waiters: p.claims(p.rec.Waiters), Locked: p.shut > 0}
}

// claims shows records as claims, without what only their sessions know.
func (p *place) claims(recs []claimRecord) []Claim {
	var claims []Claim
	for _, r := range recs {
		claims = append(claims, r.public(p.name))
	}
	return claims
}

// backoff is how long to leave a store alone that does not answer, or that does
// not say what becomes of writes.
func (c *Client) backoff(p *place) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	still := time.Duration(0)
	for _, since := range []instant{p.failing, p.unsure} {
		if since != never {
			still = max(still, c.now().sub(since))
		}
	}
	return c.jitter(min(5*time.Millisecond+still/4, time.Second))
}
