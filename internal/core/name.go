package core

import (
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Name is one client's business with one name: what it last saw of the record, which claims
// it wants to be there, and what it does not know about its writes. Events change only what
// is wanted and known; the driver makes the record follow, one write at a time. So acquiring,
// waiting, cancelling, releasing and recovering from lost answers are one mechanism.
//
// The caller serialises the calls.
type Name struct {
	desired   []*desired          // claims of ours that are wanted, in the order they were asked for
	releasing []claimRelease      // claims of ours that are being released
	guests    map[string][]*Guest // claims of holds that are followed here, by their sessions

	// The record as last seen.
	rec       record.Lock
	version   record.Version
	asked     lease.Instant // when the latest call that showed it was sent
	got       lease.Instant // when this version was first seen here
	staleRead lease.Instant // when the last stale read before a write was answered

	foreignSince lease.Instant
	known        bool // it was seen
	foreign      bool // other sessions wait
	waits        bool // a claim of ours is in its queue
	waited       bool // a claim of ours was in the queue, or others were when we were here last
	reload       bool // it has to be read

	ambiguousIfEmpty bool           // a write that takes the name whenever it is empty is ambiguous; no other write can rule it out
	ambiguousAfter   record.Version // so is a write from this version
	shut             int            // writes in a row that lost to the very record that they were to follow: its row is locked
	failing          lease.Instant  // since when the store does not answer; Never: it does
	failed           error
	heard            lease.Instant // when it last said that it is busy
	ambiguousSince   lease.Instant // since when it does not say what became of writes, though it may answer; Never: it does

	*room // while something happens here: from the first event until Rest
	rooms *Rooms
}

// A room is what a name needs only while something happens there. Most names are held, and
// nothing happens.
type room struct {
	eff Effects

	// Reconciling.
	step     Step              // that is under way
	lost     int               // writes in a row that lost
	beaten   int               // those of them that lost to writes of others
	reloaded bool              // since the last of these writes
	took     time.Duration     // how long the last write took
	paused   bool              // before the read that follows these writes
	rest     Step              // a pause that comes before the next step
	evicts   []record.Eviction // of an ambiguous write

	spare *desired // a released claim whose memory is reused
}

// reset forgets what a driver has met with.
func (r *room) reset() {
	r.lost, r.beaten, r.reloaded, r.took, r.paused = 0, 0, false, 0, false
	if r.rest.Kind == Pause {
		r.rest = Step{}
	}
}

// Rooms are the rooms that no name needs just now. The names of a client share them.
type Rooms struct{ free []*room }

// NewName is a name of which nothing is known. rooms may be nil.
func NewName(rooms *Rooms) *Name {
	return &Name{asked: lease.Never, staleRead: lease.Never, got: lease.Never, failing: lease.Never, heard: lease.Never, ambiguousSince: lease.Never, rooms: rooms}
}

// enter makes sure that the name has a room.
func (n *Name) enter() {
	if n.room != nil {
		return
	}
	if n.rooms == nil || len(n.rooms.free) == 0 {
		n.room = new(room)
		return
	}
	last := len(n.rooms.free) - 1
	n.room, n.rooms.free = n.rooms.free[last], n.rooms.free[:last]
}

// Rest gives up what a name needs only while something happens there. No driver may run,
// and the effects of the last event are no longer valid.
func (n *Name) Rest() {
	if r := n.room; r != nil && n.rooms != nil && len(n.rooms.free) < 16 {
		n.begin()
		r.step, r.evicts = Step{}, nil
		r.reset()
		n.rooms.free = append(n.rooms.free, r)
	}
	n.room = nil
}

// Forget makes n a name of which nothing is known. Nothing may be wanted of it.
func (n *Name) Forget() {
	desired, releasing, room := n.desired[:0], n.releasing[:0], n.room
	*n = *NewName(n.rooms)
	n.desired, n.releasing, n.room = desired, releasing, room
}

// Known says whether the record was ever seen, Record is what was last seen of it, and Asked
// when the latest call that showed it was sent.
func (n *Name) Known() bool                            { return n.known }
func (n *Name) Record() (*record.Lock, record.Version) { return &n.rec, n.version }
func (n *Name) Asked() lease.Instant                   { return n.asked }

// Waits says whether a claim of ours is in the queue of the record; First is the claim.
func (n *Name) Waits() bool { return n.waits }

// Idle says whether nothing is wanted here; Ambiguous whether an ambiguous write is left that
// no other can rule out.
func (n *Name) Idle() bool      { return len(n.desired)+len(n.releasing)+len(n.guests) == 0 }
func (n *Name) Ambiguous() bool { return n.ambiguousIfEmpty }

// Failed is the error of the latest call, if it was not answered.
func (n *Name) Failed() error { return n.failed }

// First is the claim of ours, or of a guest, that has waited longest in the queue. If there is
// none, it reports false and notes that none waits.
func (n *Name) First() (id ClaimID, ok bool) {
	if len(n.guests) > 0 {
		own := slices.ContainsFunc(n.desired, func(g *desired) bool { return g.state == queued && g.id.Nr != 0 })
		for _, w := range n.rec.Waiters {
			mine := func(g *desired) bool { return g.state == queued && g.id == (ClaimID{w.Session, w.Nr}) }
			if n.Hosts(w.Session) || own && slices.ContainsFunc(n.desired, mine) {
				return ClaimID{w.Session, w.Nr}, true
			}
		}
		n.waits = false
		return id, false
	}
	for _, g := range n.desired {
		if g.state == queued && g.id.Nr != 0 {
			return g.id, true
		}
	}
	n.waits = false
	return id, false
}

// Seen begins with what was known of the record a moment ago; waited says whether a claim of
// ours had waited there.
func (n *Name) Seen(rec record.Lock, version record.Version, at lease.Instant, waited bool, env *Env) *Effects {
	eff := n.begin()
	n.waited = waited
	n.known, n.rec, n.version, n.got = true, rec, version, at
	n.compare(env)
	return eff
}

// Saw handles a record that a call sent at asked has shown.
func (n *Name) Saw(rec record.Lock, version record.Version, asked lease.Instant, env *Env) *Effects {
	eff := n.begin()
	n.see(rec, version, asked, env)
	return eff
}

// SawAgain is Saw of the record that is known.
func (n *Name) SawAgain(asked lease.Instant, env *Env) *Effects {
	return n.Saw(n.rec, n.version, asked, env)
}

func (n *Name) see(rec record.Lock, version record.Version, asked lease.Instant, env *Env) {
	n.failing, n.failed = lease.Never, nil
	if n.known && version < n.version && asked < n.got {
		return // overtaken on its way
	}
	before := n.asked
	n.asked = max(n.asked, asked)
	if version != n.ambiguousAfter {
		n.evicted(&rec)
		n.ambiguousAfter = 0 // nothing can follow that version any more, and that may have been seen before the write failed
	}
	if !n.known || version != n.version {
		n.known, n.rec, n.version, n.got = true, rec, version, env.Now
		alone := !n.foreign
		n.compare(env)
		if n.foreign && alone && before != lease.Never {
			n.foreignSince = before // a waiter may have come right after the look before
		}
	} else {
		n.lookForGuests(env)
	}
	for g := range n.each {
		if g.state == held && len(g.active) == 0 {
			n.handOver(g, n.asked == asked, env) // a hand-off may have waited for this look
		}
	}
}

// evicted reports the holders that an ambiguous write may have removed and a later record lacks.
func (n *Name) evicted(rec *record.Lock) {
	for _, e := range n.evicts {
		if _, _, ok := rec.Find(e.Claim.Session, e.Claim.Nr); !ok {
			n.eff.Evicted = append(n.eff.Evicted, e)
		}
	}
	n.evicts = nil
}

// compare finds our claims in a new record.
func (n *Name) compare(env *Env) {
	foreign := slices.ContainsFunc(n.rec.Waiters, func(w record.Claim) bool { return !env.ours(w.Session) && !env.Dead(w.Session) })
	if foreign && !n.foreign {
		n.foreignSince = env.Now
	}
	n.foreign = foreign
	n.waits = false
	n.eff.News = true
	for g := range n.each {
		if g.id.Nr == 0 {
			continue
		}
		claim, holds, ok := n.rec.Find(g.id.Session, g.id.Nr)
		if ok { // also if it had vanished: a late write of ours has brought it back
			g.vanished = false
		}
		switch {
		case ok && holds && g.state != held:
			n.sawGrant(g, claim, env)
		case ok && !holds:
			n.waits, n.waited = true, true
			if g.state == wanted {
				g.state = queued
				n.eff.Queued = append(n.eff.Queued, g.waiting.all()...)
			}
		case !ok && g.state == held:
			n.lose(g, n.whyGone(g), nil)
			g.active = nil
			n.release(g, nil, env)
		case !ok && g.state == queued:
			// Broken, or our session is dead, or the store has lost it: the next
			// heartbeat tells.
			g.state, g.vanished = wanted, true
			n.eff.Beat = true
		}
	}
	if n.compareGuests(env) {
		n.waits, n.waited = true, true
	}
}

// whyGone says why a claim that we held is not in the record any more.
func (n *Name) whyGone(g *desired) string {
	for _, b := range n.rec.Breaks {
		if g.id == (ClaimID{b.Session, b.Nr}) {
			g.broken = &b
			return b.String()
		}
	}
	return "its claim has vanished from the store"
}

// sawGrant notes that the record shows a claim of ours among the holders. The grant is
// believed only if the window is open at this moment. Whether anyone else takes the session
// for dead is not asked.
func (n *Name) sawGrant(g *desired, claim record.Claim, env *Env) {
	if !env.trusts(g.id.Session) {
		return
	}
	g.state, g.token, g.last = held, claim.Token, claim.Token+record.Token(claim.Tokens())
	if g.slots == 0 {
		for g.waiting.len() > 0 && g.token < g.last {
			n.grant(g, g.waiting.pop(), env)
		}
	}
	n.handOver(g, false, env)
	if g.slots != 1 && len(g.active) > 0 { // there may be more than it has tokens for
		n.requeue(g, int64(g.waiting.len()), env)
	}
}

// SessionOpened handles the opening of the session's window: grants that were seen before
// could not be believed.
func (n *Name) SessionOpened(env *Env) *Effects {
	eff := n.begin()
	if n.known {
		n.compare(env)
	}
	eff.Work = true
	return eff
}

// SessionLost handles the loss of a session of ours. What it held is lost, waiting requests
// go on with the next session, and claims that were being released are void.
func (n *Name) SessionLost(session, why string, err error, env *Env) *Effects {
	eff := n.begin()
	for g := range n.each {
		if g.id.Session != session {
			continue
		}
		n.lose(g, why, err)
		g.active = nil
		if g.waiting.len() == 0 {
			n.desired = slices.DeleteFunc(n.desired, func(o *desired) bool { return o == g })
			continue
		}
		g.id, g.state, g.given, g.vanished = ClaimID{}, wanted, false, false
	}
	n.releasing = slices.DeleteFunc(n.releasing, func(d claimRelease) bool {
		if d.id.Session == session {
			eff.Gone = append(eff.Gone, Gone{d.id.Nr, true})
		}
		return d.id.Session == session
	})
	n.ambiguousIfEmpty, n.ambiguousAfter = false, 0
	eff.Work = true
	return eff
}

// Beaten handles a confirmed heartbeat. Ambiguous writes are looked at, and claims that had
// vanished from the queue are asked for again: the session lives, and nobody has broken them.
func (n *Name) Beaten(env *Env) *Effects {
	eff := n.begin()
	for _, g := range n.desired {
		if g.vanished && env.ours(g.id.Session) {
			g.id, g.vanished, eff.Work = ClaimID{}, false, true
		}
	}
	if n.ambiguousIfEmpty {
		n.reload, eff.Work = true, true
	}
	return eff
}

// Blocked says whether a claim of the dead stands in the record.
func (n *Name) Blocked(env *Env) bool {
	isDead := func(c record.Claim) bool { return env.Dead(c.Session) }
	return slices.ContainsFunc(n.rec.Holders, isDead) || slices.ContainsFunc(n.rec.Waiters, isDead)
}

// GoesOn says whether a later record still has all our claims that stood in the last one, and
// no unwanted claim: a crash of the store may bring one back.
func (n *Name) GoesOn(rec *record.Lock, env *Env) bool {
	for _, g := range n.desired {
		if g.state == wanted {
			continue
		}
		if _, holds, ok := rec.Find(g.id.Session, g.id.Nr); !ok || g.state == held && !holds {
			return false
		}
	}
	unwanted := func(c record.Claim) bool {
		return env.ours(c.Session) && !n.wants(c.Nr, env) &&
			!slices.ContainsFunc(n.releasing, func(d claimRelease) bool { return d.id.Nr == c.Nr })
	}
	return !slices.ContainsFunc(rec.Holders, unwanted) && !slices.ContainsFunc(rec.Waiters, unwanted)
}

// Answers notes that the store has answered, with nothing new.
func (n *Name) Answers() { n.failing, n.failed = lease.Never, nil }
