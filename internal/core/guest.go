package core

import (
	"cmp"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Guest is a claim of a hold that waits for a name and is followed here: it is looked at and
// written along with this client's own claims on the name. It belongs to a session that is not the
// client's, and the client believes in no lock because of it.
type Guest struct {
	Claim record.Claim // as it has to be written; Session and Nr say which it is
	Enter bool         // write it if it is not there
	Tag   any          // the caller's

	// What the record shows.
	State GuestState
	Place int          // of a live waiter in the queue, 1: next
	Token record.Token // of a holder
}

// A GuestState says where a claim is.
type GuestState int8

const (
	GuestUnseen  GuestState = iota // no look has shown it yet
	GuestWaits                     // in the queue
	GuestHolds                     // it was granted
	GuestGone                      // it left the record, or never was there and will not be entered
	GuestRefused                   // the queue has no room for it
)

// fewBefore is the place in the queue from which on each change of a guest's place is reported.
const fewBefore = 8

// Invite adds a guest: it is looked at, and entered, along with the client's own claims.
func (n *Name) Invite(g *Guest, env *Env) *Effects {
	eff := n.begin()
	if n.guests == nil {
		n.guests = make(map[string][]*Guest)
	}
	n.guests[g.Claim.Session] = append(n.guests[g.Claim.Session], g)
	if _, holds, ok := n.rec.Find(g.Claim.Session, g.Claim.Nr); n.known && ok {
		n.meet(g, holds, env)
	} else {
		n.reload = n.reload || !g.Enter
	}
	eff.Work = true
	return eff
}

// Dismiss stops looking at a guest. Its claim stays.
func (n *Name) Dismiss(g *Guest) *Effects {
	eff := n.begin()
	id := g.Claim.Session
	left := n.guests[id][:0:0]
	for _, o := range n.guests[id] {
		if o != g {
			left = append(left, o)
		}
	}
	if n.guests[id] = left; len(left) == 0 {
		delete(n.guests, id)
	}
	eff.Work = true
	return eff
}

// Hosts says whether a guest of that session is here.
func (n *Name) Hosts(session string) bool { return len(n.guests[session]) > 0 }

// meet notes where the claim of a new guest is in the record.
func (n *Name) meet(g *Guest, holds bool, env *Env) {
	if holds {
		n.compareGuests(env)
		return
	}
	place := 1
	for _, w := range n.rec.Waiters {
		if w.Is(g.Claim.Session, g.Claim.Nr) {
			break
		}
		if !env.Dead(w.Session) {
			place++
		}
	}
	n.tell(g, GuestWaits, place)
	n.waits, n.waited, n.eff.News = true, true, true
}

// lookForGuests looks in the record for guests that no look has shown yet.
func (n *Name) lookForGuests(env *Env) {
	for _, guests := range n.guests {
		if !slices.ContainsFunc(guests, func(g *Guest) bool { return g.State == GuestUnseen }) {
			continue
		}
		if n.compareGuests(env) {
			n.waits, n.waited, n.eff.News = true, true, true
		}
		return
	}
}

// compareGuests finds the guests in the record, and says whether one waits. Guests that are not in
// it are gone, unless they still have to be entered.
func (n *Name) compareGuests(env *Env) (waits bool) {
	if len(n.guests) == 0 {
		return false
	}
	seen := make(map[*Guest]bool, len(n.guests))
	for _, h := range n.rec.Holders {
		for _, g := range n.guests[h.Session] {
			if g.Claim.Nr == h.Nr {
				seen[g], g.Token = true, h.Token
				n.tell(g, GuestHolds, 0)
			}
		}
	}
	place := 0
	for _, w := range n.rec.Waiters {
		if env.Dead(w.Session) {
			continue
		}
		place++
		for _, g := range n.guests[w.Session] {
			if g.Claim.Nr == w.Nr {
				seen[g], waits = true, true
				n.tell(g, GuestWaits, place)
			}
		}
	}
	for _, guests := range n.guests {
		for _, g := range guests {
			if !seen[g] && (!g.Enter || g.State != GuestUnseen) {
				n.tell(g, GuestGone, 0)
			}
		}
	}
	return waits
}

// tell notes where a guest is, and reports it if it matters soon.
func (n *Name) tell(g *Guest, state GuestState, place int) {
	news := g.State != state || place != g.Place && place <= fewBefore
	g.State, g.Place = state, place
	if news {
		n.eff.Guests = append(n.eff.Guests, g)
	}
}

// enterGuests adds the guests that have to be entered to the next record, in the order of their
// requests.
func (n *Name) enterGuests(next *record.Lock, env *Env) (changed bool) {
	for _, g := range n.toEnter() {
		if _, _, ok := next.Find(g.Claim.Session, g.Claim.Nr); ok || env.Dead(g.Claim.Session) {
			continue
		}
		if next.Full() {
			n.tell(g, GuestRefused, 0)
			continue
		}
		next.Enqueue(g.Claim)
		changed = true
	}
	if changed {
		next.Settle(env.Dead, env.Wall())
	}
	return changed
}

// toEnter are the guests that still have to be written, in the order of their requests.
func (n *Name) toEnter() (guests []*Guest) {
	for _, at := range n.guests {
		for _, g := range at {
			if g.Enter && g.State == GuestUnseen {
				guests = append(guests, g)
			}
		}
	}
	slices.SortFunc(guests, func(a, b *Guest) int {
		return cmp.Or(cmp.Compare(a.Claim.Since, b.Claim.Since), cmp.Compare(a.Claim.Session, b.Claim.Session))
	})
	return guests
}
