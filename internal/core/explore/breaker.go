package explore

import (
	"fmt"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// byBreaker marks a write as that of somebody who breaks a claim.
const byBreaker = -2

// breaker is what somebody who breaks a claim does. Each call takes no time, and one that reads
// goes straight on to the next.
func (s Setup) breaker(w *World, act act) {
	b := w.Breaker
	if b == nil {
		for n := range w.Locks {
			s.breaks(w, n, act)
		}
		return
	}
	switch step, _ := b.Next(w.Now); step {
	case lease.BreakDone, lease.BreakGone:
	case lease.BreakGrace:
		if w.Now >= w.Break.Void {
			act(-1, "the breaker has waited for the grace", false, func(x *shell) { x.w.Breaker.Rested() })
		}
	case lease.BreakLook, lease.BreakObserve, lease.BreakPause:
		act(-1, "the breaker looks", false, func(x *shell) { x.breakerLooks() })
	case lease.BreakRevoke:
		act(-1, "the breaker revokes", false, func(x *shell) { x.breakerRevokes() })
	case lease.BreakRemove:
		act(-1, "the breaker removes the claim", false, func(x *shell) { x.breakerRemoves() })
	default:
		act(-1, "the breaker finds out how it went", false, func(x *shell) { x.breakerTraces(step) })
	}
}

// breaks begins to break a claim of a name.
func (s Setup) breaks(w *World, n int, act act) {
	for _, c := range slices.Concat(w.Locks[n].Record.Holders, w.Locks[n].Record.Waiters) {
		if w.Break.Left > 0 {
			act(-1, fmt.Sprintf("%s.%d is to be broken", c.Session, c.Nr), true, func(x *shell) {
				x.w.Break.Left--
				x.w.Break.Name, x.w.Break.Session, x.w.Break.Nr = n, c.Session, c.Nr
				x.w.Breaker = lease.NewBreaker(nameOf(n), record.Break{Session: c.Session, Nr: c.Nr, Reason: "test"}, c.Token)
			})
		}
	}
}

// breakerLooks reads until there is something to write, or to wait for.
func (x *shell) breakerLooks() {
	w, b := x.w, x.w.Breaker
	for {
		switch step, _ := b.Next(w.Now); step {
		case lease.BreakPause:
			b.Rested()
		case lease.BreakLook:
			b.Saw(&w.Locks[w.Break.Name].Record)
		case lease.BreakObserve:
			r := w.find(w.Break.Session)
			dead := r.Record.Dead != 0
			if dead {
				w.Break.Void = w.Now.Add(ticks(int(r.Record.Grace / 1000)))
			}
			b.Observed(lease.Sighting{Record: r.Record, Absent: absent(r.Record), Version: r.Version, Age: -1, Asked: w.Now, Got: w.Now}, dead)
			return
		default:
			return
		}
	}
}

func (x *shell) breakerRevokes() {
	r := x.w.row(x.w.Break.Session)
	next := r.Record
	next.Revoked = slices.Clone(next.Revoked)
	sent, write, err := x.w.Breaker.Revoke(&next, absent(r.Record), x.age(x.w, *r))
	if err != nil {
		x.w.bad = err.Error()
	}
	if write {
		x.w.write(r, next)
	}
	x.w.Breaker.Revoked(sent, x.w.Now)
	x.w.prune()
}

func (x *shell) breakerRemoves() {
	w := x.w
	l := &w.Locks[w.Break.Name]
	next := l.Record.Clone()
	r := w.Breaker.Remove(&next, x.breakerKnowsDead, 1)
	if r == lease.Removed {
		w.Break.Removed = true
		w.store(x.Setup, w.Break.Name, byBreaker, "", l.Version, next)
		w.prune()
	}
	w.Breaker.Removed(r, w.Now)
}

// breakerKnowsDead: the breaker knows only of the death of the session whose claim it breaks.
func (x *shell) breakerKnowsDead(session string) bool {
	b := x.w.Break
	return session == b.Session && b.Void != lease.Never && x.w.Now >= b.Void
}

func (x *shell) breakerTraces(step lease.BreakKind) {
	if step == lease.BreakTrace {
		x.w.Breaker.Traced(&x.w.Locks[x.w.Break.Name].Record, nil, x.breakerKnowsDead(x.w.Break.Session))
	} else {
		x.w.Breaker.Rested()
	}
}
