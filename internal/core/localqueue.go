package core

import (
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A desired claim is one claim of this client and the requests that share it: an exclusive
// claim serves them one after the other, a shared one together, and each request for slots has
// a claim of its own. A request joins the last claim in line if it fits; otherwise it starts a
// new one, so that goroutines are served in order, too. The requests of a process queue here,
// and one claim stands for them in the store: Titan's LocalLockMediator does the same.
type desired struct {
	slots   int
	reason  string
	labels  record.Labels
	set     string
	seat    bool          // of an election
	since   int64         // microseconds since 1970
	born    lease.Instant // when its first request came
	waiting fifo
	active  []record.Token // holds
	want    int64          // tokens to ask for, to be handed on in memory
	retries int64          // writes that lost, while it was wanted

	// The claim in the record. A waiting claim whose session is lost is replaced.
	id          ClaimID      // Nr 0: it has none yet
	token, last record.Token // the next token to give, and the first that is not ours
	broken      *record.Break
	endsBy      lease.Instant // when a broken claim goes at the latest; Never: not broken
	state       desiredState
	given       bool // a token has been given
	vanished    bool // it has vanished from the queue: not asked for again before the next heartbeat
	try         bool // do not queue
	full        bool // it had to queue, and there was no room
}

type desiredState int8

const (
	wanted desiredState = iota // not seen in the record yet
	queued
	held
)

// Turn is how long goroutines of this process may follow each other once another process
// waits, and how old a look at the record may be to tell whether one does.
const Turn = 20 * time.Millisecond

// MaxBlock is the most tokens that a claim asks for.
const MaxBlock = 1 << 16

// A claimRelease is a claim of ours that is being released.
type claimRelease struct {
	id     ClaimID
	held   bool          // it was granted
	after  lease.Instant // not before (grace, after a break)
	broken *record.Break // what it leaves behind in the audit
}

// keptFor is how much longer the claim has to stay although it was given up: it was broken,
// and its grace is not over.
func (d claimRelease) keptFor(t lease.Instant) time.Duration {
	if d.after == lease.Never {
		return 0
	}
	return max(d.after.Sub(t), 0)
}

// each calls f for each desired claim that is there now. f may release the claim; claims
// that f adds come last, and are left out.
func (n *Name) each(f func(g *desired) bool) {
	for i, end := 0, len(n.desired); i < end; {
		g := n.desired[i]
		if !f(g) {
			return
		}
		if i < len(n.desired) && n.desired[i] == g {
			i++
		} else {
			end--
		}
	}
}

// Want puts a request in line.
func (n *Name) Want(r *Request, env *Env) *Effects {
	eff := n.begin()
	var last *desired
	if i := len(n.desired); i > 0 {
		last = n.desired[i-1]
	}
	switch {
	case last == nil:
	case r.Try && (r.Slots == 1 || n.full(r.Slots)):
		self := slices.ContainsFunc(n.desired, func(g *desired) bool { return g.state == held })
		n.refuse(r, &Held{Self: self, Here: true})
		return eff
	case r.Try || last.try || last.slots != r.Slots || r.Slots > 1:
	case last.broken != nil:
	case r.Slots == 1 || last.state != held:
		last.waiting.push(r)
		if last.state != wanted {
			eff.Queued = append(eff.Queued, r)
		}
		n.handOver(last, false, env)
		return eff
	case last.token < last.last && env.trusts(last.id.Session) && !n.foreign && env.Now.Sub(n.asked) <= Turn:
		n.grant(last, r, env) // shared, and nobody else waits
		return eff
	}
	g := n.join(r.Slots, env)
	g.try, g.reason, g.labels, g.set, g.seat = r.Try, r.Reason, r.Labels, r.Set, r.Election
	g.waiting.push(r)
	return eff
}

// join puts a new claim in line.
func (n *Name) join(slots int, env *Env) *desired {
	g := n.spare
	if n.spare = nil; g == nil {
		g = new(desired)
	}
	*g = desired{slots: slots, since: env.Wall(), born: env.Now, want: 1, endsBy: lease.Never, active: g.active[:0], waiting: fifo{items: g.waiting.items[:0]}}
	n.desired = append(n.desired, g)
	n.eff.Work = true
	return g
}

// full says whether our own claims leave no room for one more.
func (n *Name) full(slots int) bool {
	var ours []record.Claim
	for _, g := range n.desired {
		if g.state != held {
			return true
		}
		ours = append(ours, record.Claim{Slots: g.slots, N: int64(len(g.active))})
	}
	return !record.Fits(record.Claim{Slots: slots}, ours)
}

// Cancel takes a request out of the line. It returns the claim that it shared, and whether
// it was still in line.
func (n *Name) Cancel(r *Request, env *Env) (id ClaimID, was bool, eff *Effects) {
	eff = n.begin()
	for _, g := range n.desired {
		if g.waiting.remove(r) {
			if g.waiting.len() == 0 && len(g.active) == 0 {
				n.release(g, nil, env)
			}
			return g.id, true, eff
		}
	}
	return ClaimID{}, false, eff
}

// Release ends a hold. It returns the number of the claim that the caller waits to see gone,
// see Effects.Gone; 0: there is none.
func (n *Name) Release(t record.Token, env *Env) (leaves int64, eff *Effects) {
	eff = n.begin()
	for _, g := range n.desired {
		if i := slices.Index(g.active, t); i >= 0 {
			g.active = slices.Delete(g.active, i, i+1)
			if len(g.active) == 0 {
				leaves = n.handOver(g, false, env)
			}
			break
		}
	}
	return leaves, eff
}

// release gives a claim up, and returns its number if a Release waits for its end. Requests
// that still share it start anew, at the end of the queue.
func (n *Name) release(g *desired, broken *record.Break, env *Env) (leaves int64) {
	i := slices.Index(n.desired, g)
	if i < 0 {
		return 0
	}
	n.desired = slices.Delete(n.desired, i, i+1)
	n.requeue(g, min(max(16, g.want*8), MaxBlock), env)
	n.eff.Work = true
	n.spare = g
	if g.id.Nr == 0 || !env.ours(g.id.Session) || env.Session.Over {
		return 0
	}
	d := claimRelease{id: g.id, held: g.state == held, after: lease.Never, broken: broken}
	if broken != nil && d.held && env.Grace > 0 {
		d.after = env.Now.Add(env.Grace)
		n.tick(d.after)
	}
	n.releasing = append(n.releasing, d)
	return g.id.Nr
}

// requeue moves the requests that share a claim to the end of the queue, with a new claim
// for that many tokens.
func (n *Name) requeue(g *desired, tokens int64, env *Env) {
	if g.waiting.len() == 0 {
		return
	}
	next := n.join(g.slots, env)
	next.reason, next.labels = g.reason, g.labels
	if g.slots < 2 {
		next.want = tokens
	}
	next.waiting, g.waiting = g.waiting, next.waiting
}

// handOver hands a held claim that nobody uses to the next request that shares it, if that is
// allowed. Otherwise it releases the claim, or asks for a read of the record first. A record that
// was just read is good enough, however long the read took: a store may be slower than Turn.
func (n *Name) handOver(g *desired, justRead bool, env *Env) (leaves int64) {
	switch {
	case g.state != held || len(g.active) > 0 || !env.trusts(g.id.Session):
	case g.broken != nil:
		return n.release(g, g.broken, env)
	case g.waiting.len() == 0:
		return n.release(g, nil, env)
	case !g.given:
		n.grant(g, g.waiting.pop(), env)
	case g.token == g.last || n.foreign && env.Now.Sub(n.foreignSince) > Turn:
		return n.release(g, nil, env)
	case !justRead && env.Now.Sub(n.asked) > Turn:
		n.reload, n.eff.Work = true, true
	default:
		n.grant(g, g.waiting.pop(), env)
	}
	return 0
}

// grant turns a request into a hold, with a token of its own.
func (n *Name) grant(g *desired, r *Request, env *Env) {
	n.eff.Granted = append(n.eff.Granted, Grant{Request: r, Claim: g.id, Token: g.token, Reason: g.reason, Labels: g.labels, At: env.Now})
	g.active = append(g.active, g.token)
	g.token++
	g.given = true
}

// lose ends belief in the holds of a claim.
func (n *Name) lose(g *desired, why string, err error) {
	for _, t := range g.active {
		n.eff.Lost = append(n.eff.Lost, Loss{Token: t, Why: why, Err: err, Broken: g.broken})
	}
}

// failAll answers all requests that wait for a claim with an error.
func (n *Name) failAll(g *desired, f Refusal, env *Env) {
	for g.waiting.len() > 0 {
		f.Request = g.waiting.pop()
		n.eff.Refused = append(n.eff.Refused, f)
	}
	if len(g.active) == 0 {
		n.release(g, g.broken, env)
	}
}

// Revoke handles the break of one of our claims. Belief ends at once. The claim goes
// when its lock is released, so that the work has stopped before the next holder begins, or
// when the present window is over.
func (n *Name) Revoke(session string, was record.Owner, r record.Revocation, env *Env) *Effects {
	eff := n.begin()
	for g := range n.each {
		if g.id != (ClaimID{session, r.Nr}) || g.broken != nil {
			continue
		}
		g.broken = &record.Break{Session: session, Nr: r.Nr, Was: was, By: r.By, Reason: r.Reason, At: r.At}
		g.broken.Was.Session = session
		if g.state != held {
			n.failAll(g, Refusal{Err: &Broken{r.String()}}, env)
			continue
		}
		n.lose(g, r.String(), nil)
		if len(g.active) == 0 {
			n.release(g, g.broken, env)
			continue
		}
		n.requeue(g, 1, env)
		g.endsBy = max(env.Session.Until, env.Now)
		n.tick(g.endsBy)
	}
	return eff
}

// Tick gives up revoked claims whose window is over, and broken claims whose grace is over.
func (n *Name) Tick(env *Env) *Effects {
	eff := n.begin()
	eff.Work = true
	for g := range n.each {
		switch {
		case g.endsBy == lease.Never:
		case g.endsBy <= env.Now:
			n.release(g, g.broken, env)
		default:
			n.tick(g.endsBy)
		}
	}
	for _, d := range n.releasing {
		if d.keptFor(env.Now) > 0 {
			n.tick(d.after)
		}
	}
	return eff
}

// Close refuses all waiting requests, and gives up the claims that only they wanted. It reports
// whether anything is held.
func (n *Name) Close(err error, env *Env) (holds bool, eff *Effects) {
	eff = n.begin()
	for g := range n.each {
		holds = holds || g.state == held
		n.failAll(g, Refusal{Err: err}, env)
	}
	return holds || slices.ContainsFunc(n.releasing, func(d claimRelease) bool { return d.held }), eff
}

// ReleaseAll gives up all claims, except those that hold if keep is set. It returns how much
// longer broken claims have to stay.
func (n *Name) ReleaseAll(keep bool, env *Env) (grace time.Duration, eff *Effects) {
	eff = n.begin()
	for g := range n.each {
		if !keep || g.state != held {
			n.release(g, g.broken, env)
		}
	}
	for _, d := range n.releasing {
		grace = max(grace, d.keptFor(env.Now))
	}
	return grace, eff
}

// HandsOn says whether a claim that is held has tokens left, to be handed on in memory.
func (n *Name) HandsOn() bool {
	return slices.ContainsFunc(n.desired, func(g *desired) bool { return g.state == held && g.last > g.token })
}
