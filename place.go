package holdfast

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// A place is this client's business with one name: what it last saw of the
// record, which claims it wants to be there, and the one write that is on its
// way. Goroutines change only what is wanted; the driver (drive.go) makes the
// record follow. So acquiring, waiting, cancelling, releasing and making good
// for lost answers are one mechanism.
//
// That goroutines queue here, and one of them bothers the store for all, is
// Titan's LocalLockMediator.
type place struct {
	name   string
	groups []*group // claims of ours that are wanted, in the order they were asked for

	// The record as last seen.
	known   bool
	rec     core.LockRecord
	version int64
	asked   core.Instant // when the latest call was sent that showed it
	got     core.Instant // when this version was first seen here
	glanced core.Instant // when the last glance before a write was answered

	foreign      bool // other sessions wait
	foreignSince core.Instant
	waits        bool         // a claim of ours is in its queue
	lookAt       core.Instant // when the wait loop looks at it because of a hint
	pos          *position    // nil until it waits

	// What the driver is at.
	busy    bool
	look    bool  // a fresh look is wanted
	openOld int64 // a write from this version has an unknown outcome
	blind   bool  // so has one that takes the name whenever it is empty: a debt
	leaving []*departure
	shut    int          // writes in a row that lost to the very record that they were to follow: its row is locked
	failing core.Instant // since when the store does not answer; never: it does
	failed  error
	heard   core.Instant // when it last said that it is busy
	unsure  core.Instant // since when it does not say what became of writes, though it may answer; never: it does
}

// A departure is a claim of ours that is to go.
type departure struct {
	sess   *session
	nr     int64
	held   bool          // it was granted
	after  core.Instant  // not before (Options.Grace, after a break)
	broken *core.Break   // what it leaves behind in the audit
	gone   chan struct{} // closed when it is confirmed gone, or void with its session
	void   bool          // the latter
}

// keptFor is how long the claim has to stay yet although it was given up: it was
// broken, and its grace is not over.
func (d *departure) keptFor(t core.Instant) time.Duration {
	if d.after == core.Never {
		return 0
	}
	return max(d.after.Sub(t), 0)
}

// requeue has those who still wait in a group start anew, at the end of the
// queue, with a claim of so many tokens.
func (c *Client) requeue(g *group, tokens int64) {
	if g.waiting.len() == 0 {
		return
	}
	next := &group{p: g.p, slots: g.slots, reason: g.reason, since: time.Now(), born: c.now(), waiting: g.waiting, want: 1}
	if g.slots < 2 {
		next.want = tokens
	}
	for _, r := range next.waiting.all() {
		r.group = next
	}
	g.waiting = fifo{}
	g.p.groups = append(g.p.groups, next)
	c.kick(g.p)
}

// departed is a departure that needs no confirmation.
var departed = func() *departure {
	d := &departure{gone: make(chan struct{})}
	close(d.gone)
	return d
}()

// A group is one claim of this client and the goroutines that share it: an
// exclusive claim serves them one after the other, a shared one together, and
// of slots each has a claim of its own. Who fits the group that is last in line
// joins it, else starts a new one, so that goroutines are served in order, too.
type group struct {
	p       *place
	slots   int
	try     bool // do not queue
	full    bool // it was to queue, and there was no room
	reason  string
	set     string
	since   time.Time
	born    core.Instant
	waiting fifo
	active  []*Lock
	want    int64 // tokens to ask for, to be handed on in memory
	retries int64 // writes that lost, while it was wanted

	// The claim. A group whose session is lost while it waits takes a new one.
	sess        *session
	nr          int64
	state       groupState
	token, last int64 // the next token to give, and the first that is not ours
	given       bool  // one has been given
	broken      *core.Break
	doubt       bool // it has vanished from the queue: not asked for again before the next heartbeat
}

type groupState int8

const (
	wanted groupState = iota // not seen in the record yet
	queued
	held
)

// turn is how long goroutines of this process may follow each other once
// another process waits, and how old a look at the record may be to tell
// whether one does.
const turn = 20 * time.Millisecond

// maxBlock is the most tokens that a claim asks for.
const maxBlock = 1 << 16

// place returns the place of a name; c.mu is held.
func (c *Client) place(name string) *place {
	p := c.places[name]
	if p == nil {
		p = &place{name: name, asked: core.Never, glanced: core.Never, got: core.Never, failing: core.Never, heard: core.Never, unsure: core.Never, lookAt: core.Never}
		c.places[name] = p
		if old, ok := c.recent[name]; ok {
			// What it was when we left it: who comes again soon need not ask.
			delete(c.recent, name)
			if c.now().Sub(old.at) < recently {
				p.known, p.rec, p.version, p.got = true, old.rec, old.version, old.at
				if old.pace > 0 {
					p.pos = &position{moved: core.Never, pace: old.pace}
				}
				c.compare(p)
			}
		}
	}
	return p
}

// join puts a request in line; c.mu is held.
func (c *Client) join(r *request) {
	if c.closed {
		r.answer(nil, ErrClosed)
		return
	}
	p := c.place(r.name)
	var last *group
	if n := len(p.groups); n > 0 {
		last = p.groups[n-1]
	}
	switch {
	case last == nil:
	case r.try() && (r.slots == 1 || p.full(r.slots)):
		self := slices.ContainsFunc(p.groups, func(g *group) bool { return g.state == held })
		r.answer(nil, &HeldError{Name: r.name, Self: self})
		return
	case r.try() || last.try || last.slots != r.slots || r.slots > 1:
	case last.broken != nil:
	case r.slots == 1 || last.state != held:
		r.group = last
		last.waiting.push(r)
		r.announce(last.state != wanted)
		c.advance(last, c.now())
		return
	case last.token < last.last && last.sess.trusted() && !p.foreign && c.now().Sub(p.asked) <= turn:
		r.group = last // shared, and nobody else waits
		c.give(last, r, c.now())
		return
	}
	g := &group{p: p, slots: r.slots, try: r.try(), reason: r.reason, set: r.set, since: time.Now(), born: c.now(), want: 1}
	g.waiting.push(r)
	r.group = g
	p.groups = append(p.groups, g)
	c.kick(p)
}

// full says whether our own groups leave no room for one more.
func (p *place) full(slots int) bool {
	var ours []core.Claim
	for _, g := range p.groups {
		if g.state != held {
			return true
		}
		ours = append(ours, core.Claim{Slots: g.slots, N: int64(len(g.active))})
	}
	return !core.Fits(core.Claim{Slots: slots}, ours)
}

// abandon takes a request out of the line and reports whether it was still in
// it; c.mu is held.
func (c *Client) abandon(r *request) bool {
	if r.done {
		return false
	}
	r.done = true
	g := r.group
	g.waiting.remove(r)
	if g.waiting.len() == 0 && len(g.active) == 0 {
		c.part(g, nil)
	}
	return true
}

// part gives a group's claim up. Who still waits in it starts anew, at the end
// of the queue. c.mu is held.
func (c *Client) part(g *group, broken *core.Break) *departure {
	p := g.p
	i := slices.Index(p.groups, g)
	if i < 0 {
		return departed
	}
	p.groups = slices.Delete(p.groups, i, i+1)
	c.requeue(g, min(max(16, g.want*8), maxBlock))
	c.kick(p)
	if g.nr == 0 || g.sess.life.Over() {
		return departed
	}
	d := &departure{sess: g.sess, nr: g.nr, held: g.state == held, after: core.Never, broken: broken, gone: make(chan struct{})}
	if broken != nil && d.held && c.opts.Grace > 0 {
		d.after = c.now().Add(c.opts.Grace)
		c.machine.AfterFunc(c.opts.Grace, func() {
			c.mu.Lock()
			defer c.unlock()
			c.kick(p)
		})
	}
	p.leaving = append(p.leaving, d)
	return d
}

// see takes in a record that a call sent at asked has shown; c.mu is held.
func (c *Client) see(p *place, rec core.LockRecord, version int64, asked core.Instant) {
	p.failing, p.failed = core.Never, nil
	c.answers = true
	if p.known && version < p.version && asked < p.got {
		return // overtaken on its way
	}
	before := p.asked
	p.asked = max(p.asked, asked)
	if !p.known || version != p.version {
		p.known, p.rec, p.version, p.got = true, rec, version, c.now()
		if version != p.openOld {
			p.openOld = 0 // nothing can follow that version any more
		}
		alone := !p.foreign
		c.compare(p)
		if p.foreign && alone && before != core.Never {
			p.foreignSince = before // it may have come right after the look before
		}
	}
	for _, g := range slices.Clone(p.groups) {
		if g.state == held && len(g.active) == 0 {
			c.advance(g, c.now()) // a hand-off may have waited for this look
		}
	}
}

// compare finds our claims in a record that is news.
func (c *Client) compare(p *place) {
	foreign := slices.ContainsFunc(p.rec.Waiters, func(w core.Claim) bool { return !c.isOurs(w.Session) && !c.isDead(w.Session) })
	if foreign && !p.foreign {
		p.foreignSince = c.now()
	}
	p.foreign = foreign
	p.waits = false
	for _, g := range slices.Clone(p.groups) {
		if g.nr == 0 {
			continue
		}
		claim, holds, ok := p.rec.Find(g.sess.id, g.nr)
		switch {
		case ok && holds && g.state != held:
			c.granted(g, claim)
		case ok && !holds:
			p.waits = true
			if g.state == wanted {
				g.state = queued
				for _, r := range g.waiting.all() {
					r.announce(true)
				}
			}
		case !ok && g.state == held:
			c.endGroup(g, p.whyGone(g), nil, nil)
		case !ok && g.state == queued:
			// Broken, or our session is dead, or the store has lost it: the next
			// heartbeat tells.
			c.log.Warn("no longer in the queue", "name", p.name)
			g.state, g.doubt = wanted, true
			signal(g.sess.wake)
		}
	}
	c.follow(p)
	if p.waits {
		c.startWaiting()
	}
}

// recent is a record as it was left behind with others in it.
type recent struct {
	rec     core.LockRecord
	version int64
	at      core.Instant
	pace    time.Duration
}

// recently is how long that may be of use.
const recently = time.Second

// leave forgets a place, but for what it looked like; c.mu is held.
func (c *Client) leave(p *place) {
	delete(c.places, p.name)
	if len(p.rec.Holders)+len(p.rec.Waiters) == 0 {
		return
	}
	if len(c.recent) >= 1000 {
		clear(c.recent)
	}
	left := recent{p.rec, p.version, c.now(), 0}
	if p.pos != nil {
		left.pace = p.pos.pace
	}
	c.recent[p.name] = left
}

func (c *Client) isOurs(session string) bool { return c.sess != nil && c.sess.id == session }

// whyGone: a claim that we held is not in the record any more.
func (p *place) whyGone(g *group) string {
	for _, b := range p.rec.Breaks {
		if b.Session == g.sess.id && b.Nr == g.nr {
			g.broken = &b
			return brokenBy(b.By, b.Reason)
		}
	}
	return "its claim has vanished from the store"
}

// brokenError: a waiting claim was broken.
type brokenError struct{ why string }

func (e *brokenError) Is(target error) bool { return target == ErrLost }

func (e *brokenError) Error() string { return e.why }

func brokenBy(by core.Owner, reason string) string {
	return fmt.Sprintf("broken by %s: %s", by, reason)
}

// granted: the record shows a claim of ours among the holders. It is believed
// only while the window is open, at this moment. Whether anyone else thinks
// that the session lives does not matter, and is not asked.
func (c *Client) granted(g *group, claim core.Claim) {
	if !g.sess.trusted() {
		return
	}
	g.state, g.token, g.last = held, int64(claim.Token), int64(claim.Token)+claim.Tokens()
	if g.slots == 0 {
		for g.waiting.len() > 0 && g.token < g.last {
			c.give(g, g.waiting.pop(), c.now())
		}
	}
	c.advance(g, c.now())
	if g.slots != 1 && len(g.active) > 0 { // there may be more than it has tokens for
		c.requeue(g, int64(g.waiting.len()))
	}
}

// advance gives a held claim that nobody has to the next who waits for it
// here, if it may; else it gives the claim up, or looks first. c.mu is held.
func (c *Client) advance(g *group, t core.Instant) *departure {
	p := g.p
	switch {
	case g.state != held || len(g.active) > 0 || !g.sess.trustedAt(t):
	case g.broken != nil:
		return c.part(g, g.broken)
	case g.waiting.len() == 0:
		return c.part(g, nil)
	case !g.given:
		c.give(g, g.waiting.pop(), t)
	case g.token == g.last || p.foreign && t.Sub(p.foreignSince) > turn:
		return c.part(g, nil)
	case t.Sub(p.asked) > turn:
		p.look = true
		c.kick(p)
	default:
		c.give(g, g.waiting.pop(), t)
	}
	return departed
}

// give makes a request a lock, with a token of its own.
func (c *Client) give(g *group, r *request, t core.Instant) {
	l := &Lock{c: c, group: g, sess: g.sess, token: g.token, since: t, values: r.ctx}
	g.token++
	g.given = true
	g.active = append(g.active, l)
	r.answer(l, nil)
}

// endGroup ends belief in one held claim; c.mu is held.
func (c *Client) endGroup(g *group, why string, err error, broken *core.Break) {
	for _, l := range g.active {
		l.lose(why, err)
	}
	g.active = nil
	c.part(g, broken)
}

// sessionOver: the session is lost. What it held is lost; who waits goes on
// with the next session; what was to be given back is void.
func (c *Client) sessionOver(p *place, s *session, why string, err error) {
	for _, g := range slices.Clone(p.groups) {
		if g.sess != s {
			continue
		}
		for _, l := range g.active {
			l.lose(why, err)
		}
		g.active = nil
		if g.waiting.len() == 0 {
			p.groups = slices.DeleteFunc(p.groups, func(o *group) bool { return o == g })
			continue
		}
		g.sess, g.nr, g.state, g.given, g.doubt = nil, 0, wanted, false, false
	}
	p.leaving = slices.DeleteFunc(p.leaving, func(d *departure) bool {
		if d.sess == s {
			d.void = true
			close(d.gone)
		}
		return d.sess == s
	})
	p.blind, p.openOld = false, 0
	c.kick(p)
}

// revoke: one of our claims was broken. Belief ends at once. The claim goes
// when its lock is released, so that the work has stopped before the next holder
// begins, or when the window of this moment is over.
func (c *Client) revoke(s *session, r core.Revocation) {
	c.mu.Lock()
	defer c.unlock()
	p := c.places[r.Name]
	if p == nil {
		return
	}
	for _, g := range slices.Clone(p.groups) {
		if g.sess != s || g.nr != r.Nr || g.broken != nil {
			continue
		}
		g.broken = &core.Break{Session: s.id, Nr: r.Nr, Was: c.owner, By: r.By, Reason: r.Reason, At: r.At}
		g.broken.Was.Session = s.id
		if g.state != held {
			c.failGroup(g, &brokenError{brokenBy(r.By, r.Reason)})
			continue
		}
		for _, l := range g.active {
			l.lose(brokenBy(r.By, r.Reason), nil)
		}
		if len(g.active) == 0 {
			c.part(g, g.broken)
			continue
		}
		c.requeue(g, 1)
		c.machine.AfterFunc(max(s.left(), 0), func() {
			c.mu.Lock()
			defer c.unlock()
			c.part(g, g.broken)
		})
	}
}

// A fifo is a queue of requests that reuses its room.
type fifo struct {
	items []*request
	head  int
}

func (q *fifo) len() int { return len(q.items) - q.head }

func (q *fifo) all() []*request { return q.items[q.head:] }

func (q *fifo) push(r *request) { q.items = append(q.items, r) }

func (q *fifo) pop() *request {
	r := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
	case q.head > 64 && q.head*2 > len(q.items):
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return r
}

func (q *fifo) remove(r *request) {
	for i := q.head; i < len(q.items); i++ {
		if q.items[i] == r {
			q.items = slices.Delete(q.items, i, i+1)
			return
		}
	}
}
