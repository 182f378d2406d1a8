package core

import (
	"iter"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Pace: when the names that a client waits for are read, and the sessions ahead of it.
//
// Where the store notifies, a grant is notified, and polls are only a fallback: a name is
// polled when its queue should have moved on long ago, then less and less often, down to every
// two seconds (with the default TTL) near the head and every six far from it. Elsewhere polls
// depend on the place in the queue: the n-th waiter first polls when its turn could have come
// if those ahead were quick, or could be near if they were as usual. It polls again after 3 ms,
// and from then on after a seventh of the time since the queue last moved. So a wait is longer
// than it has to be by about a seventh, and by 2.5 s at most (slowest, and a quarter more), and a
// crowd, or a long wait, polls seldom. Only the first poll comes later than that if the queue
// suddenly moves faster. The record of a crowd costs more to read, so it is read less often.
//
// Where the store can await a write, the next in line uses that while its queue has moved
// within the last quarter of a second, and otherwise polls like the others.
//
// The sessions ahead are read where a queue stands still: a queue that moves is not held up by the
// dead, and the store's clock tells later how long they have been silent. Without such a clock they
// are read from the beginning.
const (
	quickPoll = 3 * time.Millisecond
	lastPoll  = time.Second            // and more with a long TTL, see slowest
	calm      = 100 * time.Millisecond // how long a queue may stand still before it is polled although notifications come
	firstPace = 10 * time.Millisecond  // until the queue is seen to move
	nearHead  = 3                      // a waiter with fewer live waiters ahead is near the head
	crowdStep = 3 * time.Millisecond   // between the reads of waiters that are all notified
	crowdPoll = 25 * time.Microsecond  // added to quickPoll for each claim beyond record.Few
	quickHold = 8 * time.Millisecond   // in a queue that moves faster, the holder does not look
	nextAhead = 1                      // with fewer live waiters ahead, the store awaits the write
	quickLook = 2 * time.Millisecond   // between looks at first; then a tenth of the time stood still
	awaitFor  = 50 * time.Millisecond  // how long a store awaits a write at most
	awaitEnd  = 5 * awaitFor           // how long a queue may have stood still to be awaited
)

// slowest is the longest time between polls of a name whose queue does not move.
func (e *Env) slowest() time.Duration { return min(max(e.ttl()/8, lastPoll), 2*lastPoll) }

// A Pace is where a client is in the queue of a name, how fast the queue moves, and when the
// name is read next. A nil Pace is that of a name that has never waited.
type Pace struct {
	readAt lease.Instant // when it is read because of a notification; Never
	pollAt lease.Instant // when it is read without one; Never: not known yet

	ahead  int           // live waiters before our first
	first  ClaimID       // the first holder's claim
	token  record.Token  // and its token
	moved  lease.Instant // when one of these was seen to change; Never: does not wait
	held   time.Duration // how long the first holder had it when that was seen
	pace   time.Duration // how long the queue takes to move on by one, when it is quick; 0: has never waited
	crowd  int           // all waiters
	stands bool          // the latest poll has found the queue unchanged
	saw    bool          // it was seen to move since the latest poll
	awaits bool          // the store can await a write of this name, and no other name waits
	clock  int64         // the store's, when the record was last seen, in microseconds since 1970; 0: not known
}

// NewPace is the pace of a name whose queue moved on by one in quick when it was left; 0: it
// has never waited.
func NewPace(quick time.Duration) *Pace {
	return &Pace{readAt: lease.Never, pollAt: lease.Never, moved: lease.Never, pace: quick}
}

// Quick is how long the queue takes to move on by one, when it is quick; 0: not known.
func (p *Pace) Quick() time.Duration {
	if p == nil {
		return 0
	}
	return p.pace
}

// Clock notes what the store's clock shows, from a record that the store has just returned. A store
// that counts its versions shows none.
func (p *Pace) Clock(version record.Version, age time.Duration) {
	if p.Quick() == 0 {
		return
	}
	if p.clock = 0; age >= 0 && version.IsTime() {
		p.clock = int64(version) + age.Microseconds()
	}
}

// Follow notes the position in the queue after the record has changed. If that calls for
// a first poll, it returns about how long until then, and PollAt has to be called.
func (p *Pace) Follow(n *Name, env *Env) (about time.Duration) {
	if !n.Waits() {
		if p != nil && p.moved != lease.Never {
			p.granted(n, env)
			p.moved = lease.Never
		}
		return 0
	}
	if p.pace == 0 {
		p.pace = firstPace
	}
	ahead, first, token := n.Before(env), ClaimID{}, record.Token(0)
	if len(n.rec.Holders) > 0 {
		h := n.rec.Holders[0]
		first, token = ClaimID{h.Session, h.Nr}, h.Token
	}
	held := time.Duration(0)
	if p.clock != 0 {
		held = min(max(time.Duration(p.clock-int64(token))*time.Microsecond, 0), time.Second)
	}
	switch {
	case p.moved == lease.Never:
		p.pollAt = lease.Never
	case ahead < p.ahead:
		// One late client must not make all others late as well: where the store has a
		// clock, tokens tell when the lock was granted and not when that was seen, and the
		// pace grows slowly.
		p.learn(token, p.ahead-ahead, env)
	case ahead == p.ahead && first == p.first:
		return 0
	}
	p.stands, p.saw, p.crowd = false, true, len(n.rec.Waiters)
	p.ahead, p.first, p.token, p.moved, p.held = ahead, first, token, env.Now, held
	if p.pollAt == lease.Never {
		about = p.every(env)
	}
	return about
}

// learn notes that the queue has moved on by that many places, to a holder with that token.
func (p *Pace) learn(token record.Token, by int, env *Env) {
	took := env.Now.Sub(p.moved)
	if p.clock != 0 {
		took = min(took, time.Duration(token-p.token)*time.Microsecond)
	}
	took = max(took, 0) / time.Duration(by)
	p.pace = min(max(took, time.Millisecond), p.pace*3/2)
}

// granted notes that our claim does not wait any more. If it was granted, how long that took
// counts as well: a client that sleeps past its turn sees no other move of the queue.
//
// Where a holder is not notified of new waiters, it reads the record once: by then the previous
// holder is in line again, and a release that starts from an older record loses.
func (p *Pace) granted(n *Name, env *Env) {
	for _, h := range n.rec.Holders {
		if !env.ours(h.Session) {
			continue
		}
		if h.Token > p.token {
			p.learn(h.Token, p.ahead+1, env)
		}
		if !env.Notified && !env.Stale && p.pace >= quickHold {
			p.readAt = env.Now.Add(p.pace / 4)
		}
		return
	}
}

// stillAt is when a queue that does not move counts as standing still, see Round.moves. ttl is the
// shortest TTL of a session ahead.
func (p *Pace) stillAt(ttl time.Duration, env *Env) lease.Instant {
	longest := min(ttl/4, 2*env.slowest())
	switch {
	case p.clock == 0:
		return p.moved
	case p.stands:
		return p.moved.Add(min(calm+4*p.pace, longest))
	}
	return p.moved.Add(longest)
}

// PollAt sets when the name is polled, if it waits.
func (p *Pace) PollAt(at lease.Instant) {
	if p.Quick() > 0 {
		p.pollAt = at
	}
}

// every is how long to leave between two polls of the name.
func (p *Pace) every(env *Env) time.Duration {
	still, rest := env.Now.Sub(p.moved), time.Duration(p.ahead)*p.pace
	switch {
	case env.Notified && p.ahead < nearHead:
		return min(max(calm+rest*4, still/2), env.slowest())
	case env.Notified:
		return min(max(calm+rest*4, still/2), 3*env.slowest())
	}
	could := time.Duration(p.ahead+1)*p.pace*11/20 - p.held - still // when it could be our turn
	if p.awaited(env) {
		return max(could, 0)
	}
	quick := quickPoll + time.Duration(max(p.crowd-record.Few, 0))*crowdPoll
	return min(max(quick, still/7, could), env.slowest())
}

// awaited says whether the store looks for a write of the name when the name is due. The wait may
// have ended since then.
func (p *Pace) awaited(env *Env) bool {
	return p != nil && p.awaits && p.ahead < nextAhead && env.Now.Sub(p.moved) < awaitEnd
}

// Draws is how many draws there are for Polled.
const Draws = 512

// Polled sets when the name is polled again. draw is one of Draws: names with the same pace
// and the same draw are polled at the same moment.
func (p *Pace) Polled(n *Name, draw int64, env *Env) {
	if p.Quick() == 0 || !n.Waits() {
		return
	}
	p.stands, p.saw = !p.saw, false
	every := p.every(env)
	p.pollAt = env.Now.Add(every*3/4 + every*time.Duration(draw)/(2*Draws))
}

// Loads says whether a name is loaded although a stale read gives no reason for it.
func (p *Pace) Loads(n *Name, env *Env) bool {
	return !n.known || env.Now.Sub(n.asked) > p.loadEvery(env)
}

// loadEvery is how often a name is loaded, whatever stale reads show: until then, a write
// whose writer died before completing it may go unseen. In a long wait loads are rare, and
// prolong it by a seventh at most.
func (p *Pace) loadEvery(env *Env) time.Duration {
	ttl := env.ttl()
	if p == nil || p.moved == lease.Never {
		return ttl
	}
	return max(ttl, min(env.Now.Sub(p.moved)/7, 4*ttl))
}

// NotifiedAt is when the name is read because of a notification for everyone: at once by the
// first in the queue, by each of the others a little later, so that a crowd does not read all
// at once. A holder that hands over in memory reads before it does so again. Never: nothing
// has to be read, or it is read as early anyway.
func (p *Pace) NotifiedAt(n *Name, env *Env) lease.Instant {
	if n.Waits() {
		at := env.Now.Add(time.Duration(min(n.Before(env), 60)) * crowdStep)
		if p.readAt != lease.Never && p.readAt <= at {
			return lease.Never
		}
		return at
	}
	if n.HandsOn() {
		return env.Now
	}
	return lease.Never
}

// ReadAt sets when the name is read because of a notification.
func (p *Pace) ReadAt(at lease.Instant) { p.readAt = at }

// Before is how many live waiters are ahead of our first, or of the first guest.
func (n *Name) Before(env *Env) (before int) {
	for _, w := range n.rec.Waiters {
		if env.ours(w.Session) || n.Hosts(w.Session) {
			return before
		}
		if !env.Dead(w.Session) {
			before++
		}
	}
	return before
}

// A Paced is a name with its pace; nil: it does not wait, and nothing was notified.
type Paced struct {
	Key  string
	Name *Name
	Pace *Pace
}

// Ahead says whether a session has a claim at one of the names where we wait.
func Ahead(names iter.Seq[Paced], session string) bool {
	its := func(cl record.Claim) bool { return cl.Session == session }
	for p := range names {
		if rec := &p.Name.rec; p.Name.Waits() && (slices.ContainsFunc(rec.Holders, its) || slices.ContainsFunc(rec.Waiters, its)) {
			return true
		}
	}
	return false
}
