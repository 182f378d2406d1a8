package core

import (
	"iter"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Round is what the poll loop has to do at one moment.
type Round struct {
	Waits    bool     // the poll loop goes on
	Due      []string // names to be read now
	Sessions []string // those of claims ahead of ours, without duplicates
	Close    []string // those of Sessions that are ahead where our turn is near

	near     bool          // our turn is near, somewhere
	polled   bool          // a name is due although no notification has come for it
	notified bool          // notifications come
	slowest  time.Duration // the longest time between polls of a queue that does not move
	ttl      time.Duration // the shortest TTL of a session ahead
	next     lease.Instant // when the next name is due
	still    lease.Instant // when the first queue that does not move counts as standing still
}

// NextRound finds what has to be read.
func NextRound(names iter.Seq[Paced], env *Env) *Round {
	r := &Round{next: lease.Never, still: lease.Never, slowest: env.slowest(), ttl: record.MaxTTL, notified: env.Notified}
	seen := make(map[string]bool)
	var later []Paced // to be polled, but not yet
	var waits []*Pace
	polled := false
	for p := range names {
		notified := p.Pace != nil && p.Pace.readAt != lease.Never && p.Pace.readAt <= env.Now
		if notified {
			p.Pace.readAt = lease.Never
			r.Due = append(r.Due, p.Key)
		}
		if p.Pace != nil {
			r.soon(p.Pace.readAt)
		}
		if !p.Name.Waits() {
			continue
		}
		first, ok := p.Name.First()
		if !ok {
			p.Pace.Follow(p.Name, env)
			continue
		}
		r.Waits, waits = true, append(waits, p.Pace)
		if !notified {
			later = append(later, p)
			polled = polled || p.Pace.pollAt <= env.Now
		}
		r.ahead(p, first, seen, env)
		r.still = sooner(r.still, p.Pace.stillAt(r.ttl, env))
	}
	for _, p := range waits {
		p.awaits = env.Awaits && !env.Notified && len(waits) == 1
	}
	for _, p := range later {
		// Names that are nearly due are read as well, so that many waits share their queries.
		if every := p.Pace.every(env); polled && p.Pace.pollAt <= env.Now.Add(every/3) {
			r.Due, r.polled = append(r.Due, p.Key), true
		} else {
			r.soon(p.Pace.pollAt)
		}
	}
	r.Waits = r.Waits || len(r.Due) > 0 || r.next != lease.Never
	return r
}

// ahead adds the sessions of the claims that are ahead of our first at a name.
func (r *Round) ahead(p Paced, first ClaimID, seen map[string]bool, env *Env) {
	near := p.Pace.ahead < nearHead
	r.near = r.near || near
	add := func(cl record.Claim) {
		if !seen[cl.Session] && !env.ours(cl.Session) && !env.Dead(cl.Session) {
			seen[cl.Session] = true
			r.Sessions = append(r.Sessions, cl.Session)
			r.ttl = min(r.ttl, max(time.Duration(cl.TTL)*time.Millisecond, record.MinTTL))
			if near {
				r.Close = append(r.Close, cl.Session)
			}
		}
	}
	for _, h := range p.Name.rec.Holders {
		add(h)
	}
	for _, w := range p.Name.rec.Waiters {
		if w.Is(first.Session, first.Nr) {
			break
		}
		add(w)
	}
}

// Polled notes that a name of the round was read, and is next polled as Pace.Polled says.
func (r *Round) Polled(p Paced, draw int64, env *Env) {
	p.Pace.Polled(p.Name, draw, env)
	if p.Name.Waits() {
		r.soon(p.Pace.pollAt)
	}
	if p.Pace != nil {
		r.soon(p.Pace.readAt)
	}
}

// moves says whether all queues move.
func (r *Round) moves(now lease.Instant) bool { return r.still > now }

func (r *Round) soon(at lease.Instant) { r.next = sooner(r.next, at) }

// sooner is the earlier of two instants, either of which may be Never.
func sooner(t, u lease.Instant) lease.Instant {
	if t == lease.Never || u != lease.Never && u < t {
		return u
	}
	return t
}

// Polls says when the sessions ahead are read, and how long the poll loop pauses.
type Polls struct {
	stale bool // each session is a stale read of its own

	at     lease.Instant // when the sessions are read; Never: not known yet
	every  time.Duration
	silent lease.Instant // until when a store that does not answer is left alone; Never: it answers
	rest   time.Duration // how long it is left alone the next time
}

const (
	sessionPoll = 200 * time.Millisecond // until the sessions ahead are first read
	proofPoll   = 20 * time.Millisecond  // how often the kernel is asked whether a process ahead has died
	firstRest   = 50 * time.Millisecond
	minPause    = time.Millisecond
)

// NewPolls is for the beginning of a wait. stale: each session is a stale read of its own.
func NewPolls(stale bool) *Polls {
	return &Polls{stale: stale, at: lease.Never, every: sessionPoll, silent: lease.Never, rest: firstRest}
}

// Sessions are the sessions to read with a round. observeAt is when the failure detector needs
// one of them; Never: it does not. If about is not 0, SessionsAt has to be called with an
// instant about that long after now.
func (p *Polls) Sessions(r *Round, observeAt, now lease.Instant) (sessions []string, about time.Duration) {
	longest := r.slowest
	switch {
	case !r.near:
		longest *= 4
	case p.stale:
		longest *= 2
	}
	if p.at == lease.Never {
		about = p.every
		if (r.notified || p.stale) && !r.near { // the waiters near the head read them for all
			about = min(r.slowest, r.ttl/4)
		}
		if p.stale && !r.near {
			p.every = longest
		}
	}
	if len(r.Sessions) > 0 && (!r.moves(now) && p.due(r, now) || observeAt != lease.Never && observeAt <= now) {
		p.every = min(p.every*3/2, longest)
		return r.Sessions, p.every
	}
	return nil, about
}

// due says whether the sessions are read with a round. They are read along with a name if possible,
// but not where a lock has just been granted, and not early where that saves nothing.
func (p *Polls) due(r *Round, now lease.Instant) bool {
	if p.at == lease.Never {
		return false
	}
	late, early := p.at.Add(p.every/2), p.at.Add(-p.every/2)
	if p.stale {
		early = p.at
	}
	return late <= now || r.polled && early <= now
}

// SessionsAt sets when the sessions are read next.
func (p *Polls) SessionsAt(at lease.Instant) { p.at = at }

// Answered notes whether the store has answered. If not, SilentUntil has to be called
// with an instant about that long after now.
func (p *Polls) Answered(ok bool) (about time.Duration) {
	p.silent = lease.Never
	if ok {
		p.rest = firstRest
		return 0
	}
	about = p.rest
	p.rest = min(p.rest*3/2, lastPoll)
	return about
}

// SilentUntil leaves the store alone until then.
func (p *Polls) SilentUntil(at lease.Instant) { p.silent = at }

// Pause is how long the poll loop rests after a round, and whether it may be woken earlier.
// observeAt is when the failure detector needs a session; kernel says that this host may learn of
// the death of a process ahead.
func (p *Polls) Pause(r *Round, observeAt lease.Instant, kernel bool, now lease.Instant) (pause time.Duration, wakes bool) {
	pause = lastPoll
	if wake := p.wake(r, observeAt, kernel, now); wake != lease.Never {
		pause = max(wake, p.silent).Sub(now)
	}
	return max(pause, minPause), p.silent == lease.Never // never without a pause
}

// wake is when the next round begins.
func (p *Polls) wake(r *Round, observeAt lease.Instant, kernel bool, now lease.Instant) lease.Instant {
	wake := r.next
	if len(r.Sessions) > 0 {
		if r.moves(now) {
			wake = sooner(wake, r.still)
		} else {
			wake = sooner(wake, p.at.Add(p.every/2))
		}
		wake = sooner(wake, observeAt)
	}
	if kernel {
		wake = sooner(wake, now.Add(proofPoll))
	}
	return wake
}

// An Await says how often the store looks for a write, and for how long.
type Await struct{ Every, Limit time.Duration }

// Await is how the store looks for a write of the name that is due, if the round reads nothing
// else; zero: it is read at once.
func (p *Polls) Await(r *Round, one Paced, observeAt lease.Instant, kernel bool, env *Env) Await {
	if !r.polled || len(r.Due) != 1 || !one.Pace.awaited(env) {
		return Await{}
	}
	limit := awaitFor
	if wake := p.wake(r, observeAt, kernel, env.Now); wake != lease.Never {
		limit = min(limit, wake.Sub(env.Now))
	}
	if limit < quickPoll {
		return Await{}
	}
	return Await{max(quickLook, env.Now.Sub(one.Pace.moved)/10), limit}
}
