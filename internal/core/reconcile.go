package core

import (
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// confirm drops the releases that are done: the claim is not in the record, and no write of
// ours is on its way that could still bring it. (A write that takes the name whenever it is
// empty can: it is watched, see Ambiguous.)
func (n *Name) confirm() {
	if n.ambiguousAfter != 0 {
		return
	}
	n.releasing = slices.DeleteFunc(n.releasing, func(d claimRelease) bool {
		_, _, ok := n.rec.Find(d.id.Session, d.id.Nr)
		if !ok {
			n.eff.Gone = append(n.eff.Gone, Gone{d.id.Nr, false})
		}
		return !ok
	})
}

// needsSession says whether a wanted claim is not in the record.
func (n *Name) needsSession() bool {
	return slices.ContainsFunc(n.desired, func(g *desired) bool { return g.state == wanted })
}

// assign gives every desired claim that has no id yet one of the current session.
func (n *Name) assign(env *Env) {
	for _, g := range n.desired {
		if g.state == wanted && g.id.Nr == 0 {
			g.id = ClaimID{env.Session.ID, env.NewClaim()}
		}
	}
}

// plan is the record that should follow the one last seen: without our claims that nobody
// wants, without those of the dead, with our wanted claims, and settled. A claim of our session
// that we do not know counts as unwanted.
func (n *Name) plan(env *Env) (next record.Lock, changed bool) {
	if n.follows(env) {
		return n.rec, false
	}
	next = record.Lock{Next: n.rec.Next, Breaks: slices.Clone(n.rec.Breaks)}
	unwanted := func(c *record.Claim) bool { return n.dropped(c, &next, env) }
	next.Holders, next.Waiters = without(n.rec.Holders, unwanted), without(n.rec.Waiters, unwanted)
	changed = len(next.Holders)+len(next.Waiters) < len(n.rec.Holders)+len(n.rec.Waiters)
	if n.ambiguousAfter != 0 && n.ambiguousAfter == n.version { // closes what may still follow that version
		changed = true
	}
	now := env.Wall()
	if next.Settle(env.Dead, now) && !n.Idle() {
		changed = true // claims of the dead bother only those who want the name
	}
	for _, g := range n.desired {
		if g.id.Nr == 0 || g.vanished {
			continue
		}
		if _, _, ok := next.Find(g.id.Session, g.id.Nr); ok || g.state != wanted {
			continue
		}
		full := next.Full()
		next.Enqueue(g.claim(env))
		next.Settle(env.Dead, now)
		_, holds, _ := next.Find(g.id.Session, g.id.Nr)
		if full && (holds || !g.try) {
			g.try, g.full = true, true
		}
		if !full && (holds || !g.try) {
			changed = true
		} else {
			next.Drop(func(c record.Claim) bool { return c.Is(g.id.Session, g.id.Nr) })
		}
	}
	if n.enterGuests(&next, env) {
		changed = true
	}
	return next, changed
}

// without is a copy of claims, less those that are unwanted.
func without(claims []record.Claim, unwanted func(*record.Claim) bool) (kept []record.Claim) {
	for i := range claims {
		if !unwanted(&claims[i]) {
			kept = append(slices.Grow(kept, len(claims)-i), claims[i])
		}
	}
	return kept
}

// follows says whether the record is as it should be.
func (n *Name) follows(env *Env) bool {
	if n.ambiguousAfter != 0 && n.ambiguousAfter == n.version {
		return false
	}
	if len(n.rec.Waiters) > 0 && record.Fits(n.rec.Waiters[0], n.rec.Holders) {
		return false
	}
	for _, claims := range [...][]record.Claim{n.rec.Holders, n.rec.Waiters} {
		for i := range claims {
			if c := &claims[i]; env.Dead(c.Session) || env.ours(c.Session) && !n.wants(c.Nr, env) {
				return false
			}
		}
	}
	return !n.needsSession() && len(n.toEnter()) == 0
}

// dropped says whether a claim is ours and nobody wants it. If it was broken it leaves an
// audit entry in next.
func (n *Name) dropped(c *record.Claim, next *record.Lock, env *Env) bool {
	if !env.ours(c.Session) || n.wants(c.Nr, env) {
		return false
	}
	for _, d := range n.releasing {
		if d.id.Nr == c.Nr && d.broken != nil {
			b := *d.broken
			b.Token = c.Token // 0: it was waiting
			next.AddBreak(b)
		}
	}
	return true
}

// wants says whether a claim number of the current session is wanted, or must not be given
// back yet.
func (n *Name) wants(nr int64, env *Env) bool {
	for _, g := range n.desired {
		if g.id.Nr == nr {
			return true
		}
	}
	for _, d := range n.releasing {
		if d.id.Nr == nr && d.keptFor(env.Now) > 0 {
			return true
		}
	}
	return false
}

func (g *desired) claim(env *Env) record.Claim {
	n := g.want
	if g.slots < 2 && int64(g.waiting.len()) > n {
		n = int64(g.waiting.len())
	}
	if n == 1 {
		n = 0
	}
	return record.Claim{
		Session: g.id.Session, Nr: g.id.Nr, Slots: g.slots, N: n, TTL: env.Session.TTL.Milliseconds(),
		Since: g.since, Reason: g.reason, Retries: g.retries, Set: g.set, Labels: g.labels, Election: g.seat,
	}
}

// write is the write that replaces the record with next.
func (n *Name) write(next record.Lock, env *Env) record.Write {
	return record.WriteOf(&n.rec, next, n.version, env.Tells, env.ours)
}

// Looked handles a record that was loaded; bad says that it cannot be read.
func (n *Name) Looked(rec record.Lock, version record.Version, asked lease.Instant, bad error, env *Env) *Effects {
	eff := n.begin()
	if bad != nil {
		n.refuseAll(bad, env)
		return eff
	}
	n.see(rec, version, asked, env)
	return eff
}

// Unanswered handles a call that was not answered. busy: the store does answer. look: the
// call was for the record, which is still wanted.
func (n *Name) Unanswered(err error, busy, look bool, env *Env) *Effects {
	eff := n.begin()
	n.reload = n.reload || look
	n.fail(err, busy, env)
	return eff
}

// fail notes that the store did not answer. A request that does not wait fails at once, as
// all do if the store has never answered this client; the others fail when it has been
// silent for a TTL. A busy store is not silent, so they wait on.
func (n *Name) fail(err error, busy bool, env *Env) {
	if n.failing == lease.Never {
		n.failing = env.Now
	}
	n.failed = err
	if busy {
		n.heard = env.Now
	}
	silent := !env.Answers && !busy || env.Now.Sub(max(n.failing, n.heard)) > env.ttl()
	for g := range n.each {
		if silent || g.try && !busy {
			n.failAll(g, Refusal{Err: err, Silent: true}, env)
		}
	}
}

// refuseAll refuses all requests: the name's value is not a record of ours, and is not touched.
func (n *Name) refuseAll(err error, env *Env) {
	for g := range n.each {
		n.failAll(g, Refusal{Err: err}, env)
	}
	for _, d := range n.releasing {
		n.eff.Gone = append(n.eff.Gone, Gone{d.id.Nr, true})
	}
	n.releasing = nil
	n.ambiguousAfter, n.ambiguousIfEmpty = 0, false
}

// stale says whether a request that does not wait still needs an answer, and the record
// was seen too long ago for one.
func (n *Name) stale() bool {
	return slices.ContainsFunc(n.desired, func(g *desired) bool { return g.try && g.state == wanted && n.asked < g.born })
}

// denyTries refuses the requests that do not wait and were not granted, and reports whether
// there were any.
func (n *Name) denyTries(env *Env) (any bool) {
	for g := range n.each {
		if g.try && g.state == wanted {
			n.failAll(g, Refusal{Err: &Held{Record: n.rec, Locked: n.shut > 0, Full: g.full}}, env)
			any = true
		}
	}
	return any
}

// InTheWay is the error of a request that has given up.
func (n *Name) InTheWay() *Held { return &Held{Record: n.rec, Locked: n.shut > 0} }

// Tries says whether there is a request that does not wait.
func (n *Name) Tries() bool {
	return slices.ContainsFunc(n.desired, func(g *desired) bool { return g.try })
}

// patience is how much longer requests wait for a silent store.
func (n *Name) patience(env *Env) time.Duration {
	if n.failing == lease.Never {
		return env.ttl()
	}
	return max(env.ttl()-env.Now.Sub(max(n.failing, n.heard)), 0) + time.Millisecond
}

// backoff is how long to leave a store alone that does not answer, or does not say what became
// of writes.
func (n *Name) backoff(now lease.Instant) time.Duration {
	still := time.Duration(0)
	for _, since := range []lease.Instant{n.failing, n.ambiguousSince} {
		if since != lease.Never {
			still = max(still, now.Sub(since))
		}
	}
	return min(5*time.Millisecond+still/4, time.Second)
}

// Quiet says whether all that is left are broken claims that stay until their grace is
// over.
func (n *Name) Quiet(now lease.Instant) bool {
	busy := func(d claimRelease) bool { return d.keptFor(now) == 0 }
	return len(n.desired) == 0 && len(n.releasing) > 0 && !slices.ContainsFunc(n.releasing, busy)
}
