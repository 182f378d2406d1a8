package explore

import (
	"fmt"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// breaker is who writes for somebody that breaks a claim.
const breaker = -2

// breaker is what somebody does who breaks a claim: it writes a revocation into the session,
// and removes the claim when its holder cannot believe in it any more. Each is done at one
// instant.
func (s Setup) breaker(w *World, act act) {
	b := &w.Break
	if b.Nr == 0 {
		if b.Left == 0 {
			return
		}
		for _, c := range slices.Concat(w.Lock.Holders, w.Lock.Waiters) {
			if r := w.find(c.Session); !absent(r.Record) && r.Record.Dead == 0 {
				act(-1, fmt.Sprintf("%s.%d is to be broken", c.Session, c.Nr), true, func(x *shell) { x.w.revoke(c) })
			}
		}
		return
	}
	claim, holds, there := w.Lock.Find(b.Session, b.Nr)
	row := w.find(b.Session)
	if !there || b.Removed {
		return
	}
	read := len(row.Record.Revoked) == 0 && !absent(row.Record)
	if holds && read && b.Read == core.Never && row.Record.Dead == 0 {
		act(-1, "the breaker sees that it was read", false, func(x *shell) { x.w.Break.Read = x.w.Now })
	}
	if !holds || b.Read != core.Never && w.Now.Sub(b.Read) >= row.Record.Duration()+ticks(s.Grace) {
		act(-1, "the breaker removes the claim", false, func(x *shell) { x.w.remove(s, claim) })
	}
}

// revoke writes into a session that one of its claims is broken.
func (w *World) revoke(c core.Claim) {
	w.Break.Left--
	w.Break.Session, w.Break.Nr = c.Session, c.Nr
	r := w.row(c.Session)
	next := r.Record
	next.Revoked = append(slices.Clone(next.Revoked), core.Revocation{Nr: c.Nr, Reason: "test"})
	w.write(r, next)
	w.Late = slices.DeleteFunc(w.Late, func(o *op) bool { return !w.mayWin(o) })
}

// remove takes the claim out of the record.
func (w *World) remove(s Setup, c core.Claim) {
	w.Break.Removed = true
	next := w.Lock.Clone()
	next.Drop(func(o core.Claim) bool { return o.Is(c.Session, c.Nr) })
	next.AddBreak(core.Break{Session: c.Session, Nr: c.Nr, Token: c.Token, Reason: "test"})
	next.Settle(func(string) bool { return false })
	w.store(s, breaker, "", next.Stored(w.LockV, w.LockV+1))
	w.Late = slices.DeleteFunc(w.Late, func(o *op) bool { return !w.mayWin(o) })
}
