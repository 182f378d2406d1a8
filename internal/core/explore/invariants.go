package explore

import (
	"fmt"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core"
)

func has(in []core.Claim, c core.Claim) bool {
	return slices.ContainsFunc(in, func(o core.Claim) bool { return o.Session == c.Session && o.Nr == c.Nr })
}

// audit judges the step from one record to the next: tokens grow, nobody is overtaken, and
// nobody's claim goes while its session trusts itself, but by itself.
func (w *World) audit(by int, was, is core.LockRecord) {
	for _, h := range is.Holders {
		if has(was.Holders, h) {
			continue
		}
		if h.Token < w.MaxToken {
			w.bad = fmt.Sprintf("token %d is given, and all below %d have been", h.Token, w.MaxToken)
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
		w.MaxToken = max(w.MaxToken, h.Token+core.Token(h.Tokens()))
	}
	for _, h := range slices.Concat(was.Holders, was.Waiters) {
		if !has(is.Holders, h) && !has(is.Waiters, h) && w.trusted(h.Session, by) {
			w.bad = "dropped by another within its window"
		}
	}
}

// judge says what is wrong with a world.
func (s Setup) judge(w *World) string {
	n, least := 0, 1<<30
	for i, c := range w.Clients {
		if c.Session == nil || !c.Session.Trusted(w.Now) {
			continue
		}
		for k, u := range c.Users {
			if u.State == holding && u.Claim.Session == c.Session.ID {
				n++
				if slots := s.Users[i][k]; slots > 0 {
					least = min(least, slots)
				}
			}
		}
	}
	if n > least {
		return "two holders"
	}
	return ""
}

// exclusive says whether all goroutines want the lock for themselves.
func (s Setup) exclusive() bool {
	return !slices.ContainsFunc(slices.Concat(s.Users...), func(slots int) bool { return slots != 1 })
}

// granted judges a hold that begins.
func (x *shell) granted(g core.Grant) {
	c := x.c
	if c.Session == nil || c.Session.ID != g.Claim.Session || !c.Session.Trusted(x.w.Now) {
		x.w.bad = "granted outside the window"
	}
	if !x.exclusive() {
		return
	}
	if g.Token <= c.Last || g.Token >= x.w.MaxToken {
		x.w.bad = fmt.Sprintf("a hold has token %d after %d, and all below %d were given", g.Token, c.Last, x.w.MaxToken)
	}
	c.Last = g.Token
}

// gone judges that a claim is said to have gone.
func (x *shell) gone(g core.Gone) {
	its := func(c core.Claim) bool { return c.Nr == g.Nr && x.c.Session != nil && c.Session == x.c.Session.ID }
	in := func(r core.LockRecord) bool {
		return slices.ContainsFunc(r.Holders, its) || slices.ContainsFunc(r.Waiters, its)
	}
	if g.Void || x.c.Name.Debt() { // a debt is watched, and may bring it back
		return
	}
	if in(x.w.Lock) {
		x.w.bad = "said to be gone, and is there"
	}
	for _, o := range append(slices.Clone(x.w.Late), x.c.Write) {
		if o != nil && o.Kind == ofName && !o.Applied && o.Write.Old != core.IfEmpty && x.w.mayWin(o) && in(o.Write.Next) {
			x.w.bad = "said to be gone, and may still come"
		}
	}
}

// sent judges a write of the name: no claim of a session that is lost is new in it.
func (x *shell) sent(w core.Write) {
	rec, _ := x.c.Name.Record()
	for _, cl := range slices.Concat(w.Next.Holders, w.Next.Waiters) {
		if !has(rec.Holders, cl) && !has(rec.Waiters, cl) && (x.c.Session == nil || x.c.Session.ID != cl.Session) {
			x.w.bad = "a claim of a session that is lost is written"
		}
	}
}

// Done says whether all have had the lock as often as they wanted, and nothing is left.
func (s Setup) Done(w *World) bool {
	for _, c := range w.Clients {
		if c.Gone {
			continue
		}
		for _, u := range c.Users {
			if u.State != idle || u.Rounds > 0 {
				return false
			}
		}
		if c.Session == nil || !c.Session.Trusted(w.Now) {
			continue
		}
		for _, cl := range slices.Concat(w.Lock.Holders, w.Lock.Waiters) {
			if cl.Session == c.Session.ID {
				return false
			}
		}
	}
	return true
}
