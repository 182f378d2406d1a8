package lease

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Breaker ends a claim by force: exactly the one that was seen, holding or waiting. The
// revocation goes into the record of its session, and no heartbeat of that session can succeed
// without having read it. A claim that holds stays until its holder releases it, its session is
// dead, or nobody can believe in it any more. It goes together with an audit entry, in one write.
// So exclusion holds throughout, unless the break does not wait for the holder.
//
// The caller performs the step that Next names, and reports it.
type Breaker struct {
	name  string
	entry record.Break
	token record.Token // of the claim as it was seen; 0: it waited
	step  BreakKind
	holds bool    // it was seen to hold
	sent  bool    // the revocation has reached its session's record
	since Instant // when the wait for the holder began; Never: it has not
	read  Instant // when the revocation was first seen to have been read; Never: it was not
}

// NewBreaker begins to break a claim of a name. token is the claim's when it was seen; 0: it
// waited. entry is the audit entry without the token.
func NewBreaker(name string, entry record.Break, token record.Token) *Breaker {
	return &Breaker{name: name, entry: entry, token: token, step: BreakLook, since: Never, read: Never}
}

// A BreakKind is a step of a break.
type BreakKind int8

const (
	BreakDone    BreakKind = iota
	BreakGone              // the claim had gone, and was not broken
	BreakLook              // load the lock record; then Saw
	BreakRevoke            // edit the session's record by Revoke; then Revoked
	BreakObserve           // load the session's record and judge it; then Observed
	BreakPause             // rest for about pause, or until something changes; then Rested
	BreakGrace             // wait until the claims of the dead session are void; then Rested
	BreakRemove            // edit the lock record by Remove; then Removed
	BreakTrace             // load the lock record and the audit; then Traced
	BreakAudit             // add Entry to the audit; then Rested
)

// breakPoll is the longest pause between two looks at a claim that is being broken.
const breakPoll = 500 * time.Millisecond

// Next is the next step, and how long to pause if it is BreakPause.
func (b *Breaker) Next(now Instant) (step BreakKind, pause time.Duration) {
	if b.step == BreakPause {
		pause = min(FirstPoll+now.Sub(b.since)/8, breakPoll)
	}
	return b.step, pause
}

// Entry is the audit entry.
func (b *Breaker) Entry() record.Break { return b.entry }

// Waits says whether the break waits for the holder to stop, or has done so.
func (b *Breaker) Waits() bool { return b.since != Never }

// wait begins to wait for the holder.
func (b *Breaker) wait(now Instant) { b.since, b.step = now, BreakLook }

// Saw reports on BreakLook.
func (b *Breaker) Saw(rec *record.Lock) {
	claim, holds, ok := rec.Find(b.entry.Session, b.entry.Nr)
	switch {
	case b.Waits() && !ok:
		b.step = BreakRemove // which finds out how it went
	case b.Waits() && !b.sent:
		b.step = BreakRevoke
	case b.Waits():
		b.step = BreakObserve
	case !ok, b.token != 0 && !claim.Has(b.token):
		b.step = BreakGone
	default:
		b.holds, b.entry.Token, b.step = holds, claim.Token, BreakRevoke
	}
}

// Revoke adds the revocation to the record of the session, whose age by the store's clock is age.
// sent says whether the revocation is then there or the session is dead, write whether rec has to
// be written. A session may have no record yet, because its first claim can be seen before the
// record.
func (b *Breaker) Revoke(rec *record.Session, absent bool, age time.Duration) (sent, write bool, err error) {
	switch {
	case absent:
		return false, false, nil
	case rec.Dead != 0:
		return true, false, nil
	}
	// The record is written anew, but the time of a detached hold does not begin anew.
	if age >= 0 && rec.Detached {
		rec.Suspected = &record.Suspicion{By: b.entry.By.Bounded().String(), Age: rec.Age(age).Microseconds()}
	}
	for _, v := range rec.Revoked {
		if v.Name == b.name && v.Nr == b.entry.Nr { // by us, or by another who breaks it
			return true, true, nil
		}
	}
	rec.Revoked = append(rec.Revoked, record.Revocation{Name: b.name, Nr: b.entry.Nr, By: b.entry.By.Bounded(), Reason: b.entry.Reason, At: b.entry.At})
	if len(rec.Encode()) > record.MaxRecord {
		return false, false, fmt.Errorf("%d breaks of locks of %s have not been read by it yet: try again", len(rec.Revoked)-1, b.entry.Was)
	}
	return true, true, nil
}

// Revoked reports on BreakRevoke.
func (b *Breaker) Revoked(sent bool, now Instant) {
	b.sent = sent
	switch {
	case b.Waits():
		b.step = BreakObserve
	case b.holds && !b.entry.Now:
		b.wait(now)
	default:
		b.step = BreakRemove
	}
}

// Observed reports on BreakObserve: what was seen of the session, and whether it is known to be
// dead. A TTL and the grace after the session was seen to have read the revocation, nobody
// believes in the claim any more, even if it has not left. A session that never gets a record is
// declared dead like any other.
func (b *Breaker) Observed(s Sighting, dead bool) {
	if dead {
		b.step = BreakGrace
		return
	}
	if b.step = BreakPause; s.Record.Least == record.LeastKept {
		b.step = BreakRemove // nobody believes in it any more
		return
	}
	if read := b.sent && len(s.Record.Revoked) == 0 && !s.Absent; !read {
		return
	}
	if b.read == Never {
		b.read = s.Got
	}
	ttl := max(s.Record.Duration(), record.MinTTL)
	if s.Asked.Sub(b.read) >= ttl+time.Duration(s.Record.Grace)*time.Millisecond {
		b.step = BreakRemove
	}
}

// Unanswered reports that the store did not answer, and returns whether the break goes on:
// while it waits for the holder it asks again after a pause.
func (b *Breaker) Unanswered() (goesOn bool) {
	looks := b.step == BreakLook || b.step == BreakRevoke || b.step == BreakObserve
	if !b.Waits() || !looks {
		return false
	}
	b.step = BreakPause
	return true
}

// Rested reports on BreakPause, BreakGrace and BreakAudit.
func (b *Breaker) Rested() {
	switch b.step {
	case BreakPause:
		b.step = BreakLook
	case BreakGrace:
		b.step = BreakRemove
	case BreakAudit:
		b.step = BreakDone
	}
}

// A Removal says what became of the claim that was to be removed.
type Removal int8

const (
	Removed    Removal = iota // rec has to be written
	WasGone                   // it is not in the record
	StillHolds                // and its holder was not waited for
)

// Remove takes the claim out of a lock record, with its audit entry, and settles the record.
func (b *Breaker) Remove(rec *record.Lock, dead func(session string) bool, now int64) Removal {
	claim, holds, ok := rec.Find(b.entry.Session, b.entry.Nr)
	switch {
	case !ok:
		return WasGone
	case holds && !b.holds && !b.entry.Now:
		return StillHolds
	}
	rec.Drop(func(c record.Claim) bool { return c.Is(b.entry.Session, b.entry.Nr) })
	entry := b.entry
	entry.Token = claim.Token
	rec.AddBreak(entry)
	rec.Settle(dead, now)
	return Removed
}

// Removed reports on BreakRemove.
func (b *Breaker) Removed(r Removal, now Instant) {
	switch r {
	case Removed:
		b.step = BreakDone
	case WasGone:
		b.step = BreakTrace
	case StillHolds: // it has been granted since
		b.holds = true
		b.wait(now)
	}
}

// DiedOf says whether a session has died without having read the revocation of the claim.
func (b *Breaker) DiedOf(tomb record.Session) bool {
	return tomb.Dead != 0 && slices.ContainsFunc(tomb.Revoked, func(v record.Revocation) bool { return v.Name == b.name && v.Nr == b.entry.Nr })
}

// Traced reports on BreakTrace: why the claim had gone. If the audit entry is there, the holder
// obeyed the revocation, or another breaker was quicker. If the session is dead, the claim was
// removed for that, and the entry still has to be written. Otherwise the holder released the claim
// without having read the revocation, and nothing was broken.
func (b *Breaker) Traced(rec *record.Lock, audit record.Audit, dead bool) {
	switch {
	case b.entry.In(rec.Breaks) || b.entry.In(audit):
		b.step = BreakDone
	case dead:
		b.step = BreakAudit
	default:
		b.step = BreakGone
	}
}
