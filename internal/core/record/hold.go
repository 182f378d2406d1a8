package record

import (
	"fmt"
	"slices"
	"time"
)

// A hold is a lock that no process keeps: a session of its own with its claims, which any
// client renews when the owner of the hold asks for it. Its record has the names of its
// claims, and the principal that may renew and end it. Three rules keep exclusion:
//
//   - A client says "held" only if the answering call has itself written a record of the session:
//     the first record, or a beat. The owner of the hold counts from before that call.
//   - The session is ended by its owner, by its death, or by the call that made it, if that
//     call is refused, all its writes were answered, and nobody else has written the record
//     since. So a call that has renewed it since, and may have said "held", is not cut off.
//   - A call that finds the hold over, or to be another one, takes back what it wrote, but, as long
//     as the session is no tombstone or in its grace, no claim that another call may have called held.
//
// A hold of several names may give locks back while it collects them, and two calls may do so at a
// time. So a call gives a lock back only after it has won a beat since its look at the names, and
// it says "held" only if the record says that the hold is whole. A call makes the hold whole by a
// beat that follows one of its own, and rewrites all lock records between the two. Then no write
// can win that another call planned before the first of these beats, and a call that looks later
// has to beat, and sees that the hold is whole.
//
// A revocation ends the hold: it is no longer renewed, so its claims go when its owner
// releases it, or a TTL after the last beat.

// A HoldState is what the record of a hold's session says.
type HoldState int8

const (
	HoldLives    HoldState = iota
	HoldReleased           // by its owner
	HoldBroken             // a claim was revoked: see Revoked
	HoldDead               // declared dead
	HoldUnknown            // there is no record
	HoldMissing            // only a mark by a client that looked for it: its first write came in part
	HoldForeign            // the session is not that of a hold
)

// Hold says what the record of a hold's session says.
func (r *Session) Hold(absent bool) HoldState {
	switch {
	case absent:
		return HoldUnknown
	case len(r.Revoked) > 0:
		return HoldBroken
	case r.Dead != 0 && r.Why == released:
		return HoldReleased
	case r.Dead != 0:
		return HoldDead
	case len(r.Names) == 0 && r.Beat == 0:
		return HoldMissing
	case len(r.Names) == 0:
		return HoldForeign
	}
	return HoldLives
}

// Renewed is the record with one more beat, which clears a mark.
func (r Session) Renewed(nonce string, t Clocks) Session {
	r.Beat, r.Nonce, r.At, r.Suspected = r.Beat+1, nonce, t.Wall, nil
	if r.Detached {
		r.Boot, r.Up = t.Boot, t.Up.Microseconds()
	}
	return r
}

// DetachedFor is the record of a session that lasts for d without heartbeats.
func (r Session) DetachedFor(d time.Duration, t Clocks) Session {
	r.Detached, r.TTL = true, DetachedTTL(d).Milliseconds()
	r.Boot, r.Up = t.Boot, t.Up.Microseconds()
	return r
}

// ReleaseHold makes the record the tombstone of a release by the owner of the hold. It keeps the
// revocations, from which the audit entries of the claims are made. The names of a hold that ends
// in time do not stay shut for its grace; those of a broken hold do. It reports false if there is a
// tombstone already. age is the record's age by the store's clock.
func (r *Session) ReleaseHold(age time.Duration, by string, t Clocks) bool {
	if r.Dead != 0 {
		return false
	}
	window := r.Duration() - Margin(r.Duration())
	if len(r.Revoked) == 0 && r.Age(age) < window && t.Since(r.At) < window {
		r.Grace = 0
	}
	r.Dead, r.By, r.Why, r.Suspected = t.Wall, by, released, nil
	if r.TTL == 0 { // there was no record: it is swept like others
		r.TTL = DefaultTTL.Milliseconds()
	}
	return true
}

// A HoldName is one name of a hold, and its lock record.
type HoldName struct {
	Name    string
	Claim   Claim // as it has to be written
	Record  Lock
	Version Version // IfEmpty: not known, taken for free
}

// mine is the claim in the record, and whether it holds.
func (n *HoldName) mine() (claim Claim, holds, ok bool) {
	return n.Record.Find(n.Claim.Session, n.Claim.Nr)
}

// Before is how many live waiters are before the claim.
func (n *HoldName) Before(dead func(session string) bool) (before int) {
	for _, w := range n.Record.Waiters {
		if w.Is(n.Claim.Session, n.Claim.Nr) {
			break
		}
		if !dead(w.Session) {
			before++
		}
	}
	return before
}

// Waits says whether the claim is in the queue.
func (n *HoldName) Waits() bool {
	_, holds, ok := n.mine()
	return ok && !holds
}

// A HoldPlan is what to write for a hold, and what the hold then has.
type HoldPlan struct {
	Writes  []HoldWrite
	Missing int  // the lowest name that is not held; -1: all are
	Back    bool // locks are given back
	Full    bool // there was no room for one of its claims
}

// Rewrite is a plan that writes all records as they are.
func Rewrite(names []HoldName) HoldPlan {
	p := HoldPlan{Missing: -1}
	for i := range names {
		n := &names[i]
		p.Writes = append(p.Writes, HoldWrite{i, Write{Old: n.Version, Next: n.Record.Clone()}})
	}
	return p
}

// A HoldWrite is a write of the lock record of the name at Index.
type HoldWrite struct {
	Index int
	Write Write
}

// PlanHold plans the next writes for the claims of a hold, in the order of its names. The hold
// takes what it can get at once, up to the lowest name that it cannot. If it waits, it waits for
// that name and gives back what lies above, so that it waits for a name above all that it holds, as
// a Set does. If it does not wait, it gives everything back. now, in microseconds since 1970, is
// when its grants are made.
func PlanHold(names []HoldName, wait bool, dead func(session string) bool, now int64) (p HoldPlan) {
	p.Missing = -1
	next := make([]Lock, len(names))
	changed := make([]bool, len(names))
	for i := range names {
		n := &names[i]
		next[i] = n.Record
		if _, holds, _ := n.mine(); holds || p.Missing >= 0 {
			continue
		}
		set := ""
		if len(names) > 1 {
			set = fmt.Sprintf("%d of %d", i, len(names))
		}
		r, in, news := n.enter(set, dead, now)
		next[i], changed[i] = r, news
		if !in {
			p.Missing, p.Full = i, !news && !n.Waits()
			wait = wait && !p.Full
		}
	}
	if p.Missing >= 0 {
		for i := range names {
			if i > p.Missing || !wait {
				next[i], changed[i] = names[i].without(dead, now)
				_, holds, _ := names[i].mine()
				p.Back = p.Back || holds
			}
		}
	}
	for i := range names {
		if changed[i] {
			p.Writes = append(p.Writes, HoldWrite{i, names[i].write(next[i])})
		}
	}
	return p
}

// enter is the record, settled, with the claim at the end of the queue unless it waits already. in
// says whether the claim is granted, changed whether the record differs; without room it does not.
func (n *HoldName) enter(set string, dead func(session string) bool, now int64) (next Lock, in, changed bool) {
	next = n.Record.Clone()
	if !n.Waits() {
		if next.Full() {
			return next, false, false
		}
		next.Drop(func(c Claim) bool { return c.Session == n.Claim.Session }) // under another number: of one who tried its id
		claim := n.Claim
		claim.Set = set
		next.Enqueue(claim)
		changed = true
	}
	if next.Settle(dead, now) {
		changed = true
	}
	_, in, _ = next.Find(n.Claim.Session, n.Claim.Nr)
	return next, in, changed
}

// without is the record without the claims of the hold; changed is false if it has none.
func (n *HoldName) without(dead func(session string) bool, now int64) (next Lock, changed bool) {
	its := func(c Claim) bool { return c.Session == n.Claim.Session }
	if !slices.ContainsFunc(n.Record.Holders, its) && !slices.ContainsFunc(n.Record.Waiters, its) {
		return n.Record, false
	}
	next = n.Record.Clone()
	next.Drop(its)
	next.Settle(dead, now)
	return next, true
}

// Left is the write that removes the claims of a released hold from the record of a name. Revoked
// claims leave audit entries. ok is false if the record has no claim of the hold.
func (n *HoldName) Left(hold Session, dead func(session string) bool, now int64) (w Write, ok bool) {
	session := n.Claim.Session
	if _, ok = n.without(dead, now); !ok {
		return w, false
	}
	next := n.Record.Clone()
	for _, v := range hold.Revoked {
		claim, _, ok := next.Find(session, v.Nr)
		if !ok || v.Name != n.Name {
			continue
		}
		b := Break{Session: session, Nr: v.Nr, Token: claim.Token, By: v.By, Reason: v.Reason, At: v.At}
		if hold.Owner != nil {
			b.Was = *hold.Owner
		}
		b.Was.Session = session
		next.AddBreak(b)
	}
	next.Drop(func(c Claim) bool { return c.Session == session })
	next.Settle(dead, now)
	return n.write(next), true
}

// write is the write that puts next in place of the record.
func (n *HoldName) write(next Lock) Write {
	return WriteOf(&n.Record, next, n.Version, false, func(session string) bool { return session == n.Claim.Session })
}
