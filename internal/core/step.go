package core

import (
	"math/bits"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Kind is the kind of a Step.
type Kind int8

const (
	Idle         Kind = iota // there is nothing to do until another event
	NeedSession              // the client needs a session; then ask again
	AwaitSession             // for Most; then Rested
	Open                     // the session's first record goes in one call with Opening; then Answered, or Rested if there was nothing to write
	Put                      // Write; then Answered
	Load                     // the record; Saw or Looked or Unanswered, and then Loaded
	StaleLoad                // look at the record as cheaply as the store can; then StaleLoaded
	Pause                    // for a random time up to Most, or of about About; then Rested
)

// A Step is one piece of I/O that makes the record follow what is wanted. The outcome of
// each step but Idle and NeedSession has to be reported, unless it is aborted, before the
// next is asked for.
type Step struct {
	Kind   Kind
	Write  record.Write
	Most   time.Duration
	About  time.Duration
	Forget bool // Idle: nothing is left here, except perhaps an ambiguous write
	leaves bool // Put: claims are being released
	evicts []record.Eviction
}

// maxPause bounds the pause between a write that lost and the next look. After more than
// beatenOften losses in a row to writes of others, with a crowd in the record, the bound grows to
// eight times as much: hundreds would keep a database too busy to let any of them in, and a few
// need their turn soon. maxSpread bounds the pause where a crowd that writes one key has to be
// spread out at once.
const (
	maxPause    = 250 * time.Millisecond
	beatenOften = 4
	crowdOf     = 16 // claims; twice as many are a greater crowd
	maxSpread   = 4 * time.Second
)

// staleReadAfter is how old a record may be before a write, where others write as well: less
// than a write that loses takes.
const staleReadAfter = 4 * time.Millisecond

// Begin begins a driver: what the last one met with no longer counts.
func (n *Name) Begin() {
	n.enter()
	n.reset()
}

// Tried says whether a write of this driver has returned, with or without an answer.
func (n *Name) Tried() bool { return n.took > 0 }

// Next is the next step.
func (n *Name) Next(env *Env) (Step, *Effects) {
	eff := n.begin()
	n.step = n.next(env)
	return n.step, eff
}

func (n *Name) next(env *Env) Step {
	if n.rest.Kind == Pause {
		rest := n.rest
		n.rest = Step{}
		return rest
	}
	for {
		n.confirm()
		opens := false
		if n.needsSession() {
			if env.Session.ID == "" {
				return Step{Kind: NeedSession}
			}
			n.assign(env)
			opens = !env.Session.Opened
		}
		next, changed := n.plan(env)
		switch {
		case env.Stale && changed && opens && !env.Session.Opening && !n.known && n.staleRead == lease.Never:
			return Step{Kind: StaleLoad} // in a crowd a write without a look would lose
		case opens && env.Session.Opening:
			return Step{Kind: AwaitSession, Most: n.patience(env)}
		case opens:
			return Step{Kind: Open}
		case n.reload || n.stale() && !changed || n.lost > 2 && !n.reloaded && !env.Stale:
			if n.lost > 2 && !env.Stale && !n.paused {
				n.reload, n.paused = true, true
				return Step{Kind: Pause, Most: min(n.took<<min(n.lost-2, 5), maxPause<<n.crowds())}
			}
			n.reload, n.paused = false, false
			return Step{Kind: Load}
		case env.Stale && changed && n.known && (n.lost > 0 || n.waited) && env.Now.Sub(max(n.asked, n.got, n.staleRead)) > staleReadAfter:
			return Step{Kind: StaleLoad}
		case changed:
			return Step{Kind: Put, Write: n.write(next, env), leaves: len(n.releasing) > 0, evicts: n.rec.Evicted(&next, env.Dead)}
		case n.denyTries(env):
		default:
			return Step{Kind: Idle, Forget: n.Idle()}
		}
	}
}

// Abort takes back a step that was not performed.
func (n *Name) Abort() {
	if n.step.Kind == Load {
		n.reload = true
	}
	n.step = Step{}
}

// Opening is the write that goes along with the session's first record; ok is false if there
// is none.
func (n *Name) Opening(env *Env) (w record.Write, ok bool) {
	next, changed := n.plan(env)
	if !changed {
		return w, false
	}
	n.step.Write, n.step.evicts = n.write(next, env), n.rec.Evicted(&next, env.Dead)
	return n.step.Write, true
}

// Rested reports on Pause and AwaitSession, and on Open if there was nothing to write.
func (n *Name) Rested() { n.step = Step{} }

// Loaded reports on Load, after the record was handled. answered says whether the store answered.
func (n *Name) Loaded(answered bool, env *Env) {
	n.Rested()
	if n.reloaded = answered; !answered {
		n.rest = Step{Kind: Pause, About: n.backoff(env.Now)}
	}
}

// StaleLoaded reports on StaleLoad. surprise: the record has to be loaded.
func (n *Name) StaleLoaded(surprise bool, env *Env) {
	n.Rested()
	n.staleRead = env.Now
	n.reload = n.reload || surprise
}

// An Outcome says what became of a write.
type Outcome struct {
	Sent    lease.Instant // just before the call
	Won     bool
	Version record.Version
	Record  record.Lock // what it lost to
	Same    bool        // it lost to the very record that it was to follow
	Bad     error       // what it lost to cannot be read
	Err     error       // there was no answer: it may have been applied, now or later
	Busy    bool        // Err: the store answers, but too many write this key
	Cut     bool        // Err is not the store's: the caller's context had ended
}

// LockedCall is how long a single write has to take before its loss to the record that it
// was to follow is put down to a locked row. A quicker one may have lost to a record that
// was emptied before it was read.
const LockedCall = 250 * time.Millisecond

// Answered reports on Put, and on Open if there was something to write.
func (n *Name) Answered(out Outcome, env *Env) *Effects {
	eff := n.begin()
	w, put, leaves, evicts := n.step.Write, n.step.Kind == Put, n.step.leaves, n.step.evicts
	n.Rested()
	if put {
		n.took, n.reloaded = max(env.Now.Sub(out.Sent), 1), false
	}
	if out.Err == nil {
		n.ambiguousSince = lease.Never
	}
	switch {
	case out.Err != nil:
		n.ambiguous(w, evicts, out, env)
		n.rest = Step{Kind: Pause, About: n.backoff(env.Now)}
		return eff
	case out.Won:
		n.shut = 0
		n.eff.Evicted, n.evicts = append(n.eff.Evicted, evicts...), nil
		w.Next.Written(out.Version)
		n.see(w.Next, out.Version, out.Sent, env)
		n.overtaken(w.Next, out.Version)
		if put {
			n.lost, n.beaten = 0, 0
		}
		return eff
	case out.Bad != nil:
		n.refuseAll(out.Bad, env)
	default:
		n.lostTo(out, env)
	}
	if put {
		n.lost++
		n.spread(leaves, env)
	}
	return eff
}

// overtaken handles a write that has won, if a newer record was seen before its answer. A claim
// that the write entered and the newer record lacks has vanished, like one that was seen in the
// queue and has left it.
func (n *Name) overtaken(written record.Lock, version record.Version) {
	if version >= n.version {
		return
	}
	for _, g := range n.desired {
		if g.state != wanted || g.id.Nr == 0 {
			continue
		}
		_, _, was := written.Find(g.id.Session, g.id.Nr)
		if _, _, is := n.rec.Find(g.id.Session, g.id.Nr); was && !is {
			g.vanished, n.eff.Beat = true, true
		}
	}
	for _, g := range n.toEnter() {
		_, _, was := written.Find(g.Claim.Session, g.Claim.Nr)
		if _, _, is := n.rec.Find(g.Claim.Session, g.Claim.Nr); was && !is {
			n.tell(g, GuestGone, 0)
		}
	}
}

// ambiguous handles a write of unknown outcome. The claims that it may have removed are reported
// when a later record lacks them. If another client removed them, both clients report them, and the
// history lists each hold once.
func (n *Name) ambiguous(w record.Write, evicts []record.Eviction, out Outcome, env *Env) {
	if len(evicts) > 0 {
		n.evicts = evicts
	}
	if n.ambiguousSince == lease.Never {
		n.ambiguousSince = env.Now
	}
	if w.Old == record.IfEmpty {
		n.ambiguousIfEmpty = true
	} else {
		n.ambiguousAfter = w.Old
	}
	n.reload = true
	if !out.Cut {
		n.fail(out.Err, out.Busy, env)
	}
}

// lostTo handles the record that a write has lost to.
func (n *Name) lostTo(out Outcome, env *Env) {
	for _, g := range n.desired {
		if g.state == wanted && g.id.Nr != 0 {
			g.retries++
		}
	}
	n.see(out.Record, out.Version, out.Sent, env)
	n.shut++
	if !out.Same {
		n.shut, n.beaten = 0, n.beaten+1
	} else if n.shut > 1 || env.Now.Sub(out.Sent) > LockedCall {
		n.denyTries(env)
	}
}

// crowds is how many times the bound on the pause after a loss is doubled.
func (n *Name) crowds() int {
	return max(0, min(n.beaten-beatenOften, bits.Len(uint(len(n.rec.Holders)+len(n.rec.Waiters))/crowdOf), 3))
}

// spread spreads out clients whose writes meet in a store with stale reads: a loser pauses for a
// random time, from a widening range. One that gives a claim up does not: others wait for that.
func (n *Name) spread(leaves bool, env *Env) {
	if !env.Stale || leaves {
		return
	}
	wide := min(n.lost-1, 4)
	if n.lost > 8 { // a newcomer does not pause, and must not always be ahead of us
		wide = 0
	}
	n.rest = Step{Kind: Pause, Most: min(4*n.took<<wide, maxSpread)}
}
