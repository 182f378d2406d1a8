package explore

import (
	"fmt"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

func has(in []record.Claim, c record.Claim) bool {
	return slices.ContainsFunc(in, func(o record.Claim) bool { return o.Session == c.Session && o.Nr == c.Nr })
}

// audit checks the step from one record to the next: tokens grow, nobody is overtaken, and
// while a session trusts itself only its own writes remove its claims.
func (w *World) audit(s Setup, name, by int, session string, was, is record.Lock) {
	l := &w.Locks[name]
	for _, h := range is.Holders {
		if has(was.Holders, h) {
			continue
		}
		if h.Token < l.MaxToken {
			w.bad = fmt.Sprintf("token %d is given, and all below %d have been", h.Token, l.MaxToken)
		}
		for _, q := range was.Waiters {
			if q.Session == h.Session && q.Nr == h.Nr {
				break
			}
			if has(is.Waiters, q) {
				w.bad = "overtaken"
			}
		}
	}
	fresh := false
	for _, q := range is.Waiters {
		old := has(was.Waiters, q)
		if fresh && old {
			w.bad = "overtaken in the queue"
		}
		fresh = fresh || !old
	}
	for _, h := range is.Holders {
		l.MaxToken = max(l.MaxToken, h.Token+record.Token(h.Tokens()))
	}
	for _, h := range slices.Concat(was.Holders, was.Waiters) {
		if !has(is.Holders, h) && !has(is.Waiters, h) {
			w.dropped(s, by, session == h.Session, h, has(was.Holders, h))
		}
	}
}

// dropped checks the removal of a claim; its: by a write of its own session.
func (w *World) dropped(s Setup, by int, its bool, h record.Claim, held bool) {
	broken := w.Break.Nr == h.Nr && w.Break.Session == h.Session
	switch {
	case by == byBreaker:
		if w.believes(h) {
			w.bad = "broken while it is held"
		}
	case w.trusted(h.Session, by):
		w.bad = "dropped by another within its window"
	}
	if !held {
		return
	}
	ended := lease.Never
	switch {
	case !its && by != byBreaker:
		ended = w.ended(h.Session)
	case broken && w.Break.Ends != lease.Never:
		if ended = w.Break.Ends; w.Break.Stopped != lease.Never {
			ended = min(ended, w.Break.Stopped)
		}
	}
	switch {
	case ended == lease.Never || w.Now >= ended.Add(ticks(s.Grace)):
	case broken && (its || by == byBreaker):
		w.bad = "a claim that was broken goes too early"
	default:
		w.bad = "taken over within its grace"
	}
}

// believes says whether a goroutine holds the lock by a claim, and may do so.
func (w *World) believes(h record.Claim) bool {
	return w.trusted(h.Session, -1) && slices.ContainsFunc(w.Clients, func(c *client) bool {
		return slices.ContainsFunc(c.Users, func(u user) bool {
			return u.State == holding && u.Claim == (core.ClaimID{Session: h.Session, Nr: h.Nr})
		})
	})
}

// ended is when trust in a session ended or will end; Never: it was never trusted, or nobody asks.
func (w *World) ended(session string) lease.Instant {
	for _, c := range w.Clients {
		if c.Session != nil && c.Session.ID == session {
			return c.Session.Until()
		}
	}
	for _, e := range w.Ends {
		if e.Session == session {
			return e.At
		}
	}
	return lease.Never
}

// wrong says what is wrong with a world that follows was.
func (s Setup) wrong(was, w *World) string {
	for name := range w.Locks {
		if s.crowded(w, name) {
			return "two holders"
		}
	}
	for i, c := range w.Clients {
		before := was.Clients[i].Session
		if before != nil && c.Session != nil && before.ID == c.Session.ID && before.Opened() && !before.Trusted(was.Now) && c.Session.Trusted(w.Now) {
			return "a window that was over is open again"
		}
		if c.Session != nil && c.Session.Opened() && !(before != nil && before.ID == c.Session.ID && before.Opened()) && was.find(c.Session.ID).Died {
			return "a session opens that was declared dead"
		}
		for k := range c.Sets {
			if bad := s.wrongSet(c, &c.Sets[k], s.members(i, k)); bad != "" {
				return bad
			}
		}
		for session := range c.Deaths.Tombstones() {
			if !w.find(session).Died {
				return "taken for dead, and no tombstone stands"
			}
		}
	}
	return ""
}

// crowded says whether more goroutines believe in a lock than one of them tolerates.
func (s Setup) crowded(w *World, name int) bool {
	n, least := 0, 1<<30
	for i, c := range w.Clients {
		if c.Session == nil || !c.Session.Trusted(w.Now) {
			continue
		}
		for k, u := range c.Users {
			if u.Name == name && u.State == holding && u.Claim.Session == c.Session.ID {
				n++
				if slots := s.Users[i][k]; slots > 0 {
					least = min(least, slots)
				}
			}
		}
	}
	return n > least
}

// exclusive says whether all goroutines want the lock for themselves.
func (s Setup) exclusive() bool {
	return !slices.ContainsFunc(slices.Concat(s.Users...), func(slots int) bool { return slots != 1 })
}

// granted checks a hold that begins.
func (x *shell) granted(g core.Grant) {
	c := x.c
	if c.Shut != open {
		x.w.bad = "granted by a client that shuts down"
	}
	if c.Session == nil || c.Session.ID != g.Claim.Session || !c.Session.Trusted(x.w.Now) {
		x.w.bad = "granted outside the window"
	}
	if !x.exclusive() {
		return
	}
	if l := x.lock(); g.Token <= x.q.Last || g.Token >= l.MaxToken {
		x.w.bad = fmt.Sprintf("a hold has token %d after %d, and all below %d were given", g.Token, x.q.Last, l.MaxToken)
	}
	x.q.Last = g.Token
}

// gone checks a claim that is reported gone.
func (x *shell) gone(g core.Gone) {
	its := func(c record.Claim) bool { return c.Nr == g.Nr && x.c.Session != nil && c.Session == x.c.Session.ID }
	in := func(r record.Lock) bool {
		return slices.ContainsFunc(r.Holders, its) || slices.ContainsFunc(r.Waiters, its)
	}
	if g.Void || x.q.Name.Ambiguous() { // an ambiguous write is watched, and may bring it back
		return
	}
	if in(x.lock().Record) {
		x.w.bad = "said to be gone, and is there"
	}
	for _, o := range append(slices.Clone(x.w.Late), x.q.Write) {
		if o != nil && o.Kind == ofName && o.Name == x.n && !o.Applied && o.Write.Old != record.IfEmpty && x.w.mayWin(o) && in(o.Write.Next) {
			x.w.bad = "said to be gone, and may still come"
		}
	}
}

// sent checks a write of the name: it adds no claim of a lost session.
func (x *shell) sent(w record.Write) {
	rec, _ := x.q.Name.Record()
	for _, cl := range slices.Concat(w.Next.Holders, w.Next.Waiters) {
		if !has(rec.Holders, cl) && !has(rec.Waiters, cl) && (x.c.Session == nil || x.c.Session.ID != cl.Session) {
			x.w.bad = "a claim of a session that is lost is written"
		}
		if b := x.w.Break; b.Removed && cl.Is(b.Session, b.Nr) && !has(rec.Holders, cl) && !has(rec.Waiters, cl) && x.Ambiguous == 0 {
			x.w.bad = "a claim that was broken is asked for again"
		}
	}
}

// Done says whether all have had the lock as often as they wanted, and nothing is left.
func (s Setup) Done(w *World) bool {
	for _, c := range w.Clients {
		if c.Gone || c.Alone && !c.Session.Trusted(w.Now) {
			continue
		}
		if c.wants() {
			return false
		}
		if c.Session == nil || !c.Session.Trusted(w.Now) {
			continue
		}
		if slices.ContainsFunc(w.claims(), func(cl record.Claim) bool { return cl.Session == c.Session.ID }) {
			return false
		}
	}
	return !s.Sweeps || w.swept()
}
