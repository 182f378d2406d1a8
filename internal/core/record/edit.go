package record

import "time"

// Edits of records that somebody else has left behind. The caller makes the write and, if the
// write loses, edits the record that it lost to.

// Void removes the claims of dead sessions from a lock record, and empties it if nothing is left.
// now is in microseconds since 1970. claims is how many claims go; ok is false if there is nothing
// to write. Only a write that gives someone a token waits for the disk and wakes watchers.
func (r Lock) Void(version Version, dead func(session string) bool, now int64) (w Write, claims int, ok bool) {
	next := r.Clone()
	changed := next.Settle(dead, now)
	left := len(next.Holders) + len(next.Waiters)
	w = Write{Old: version, Next: next, Lazy: true}
	if next.Gives() {
		w.Lazy, w.Notify = false, Everyone
	}
	return w, len(r.Holders) + len(r.Waiters) - left, changed || left+len(next.Breaks) == 0
}

// MayEmpty says whether the record of a session may be emptied. It must be a tombstone, and a
// pass over all names, begun when the tombstone was there, must have found no claim of the
// session. And it must be two TTLs old, so that no write is under way that does not know of it.
// age is the record's age by the store's clock. If it is negative, the larger of two times
// counts: the difference of the wall clocks, whichever is behind, and known, for which this
// client has known of the death (negative: it does not). If a wall clock is wrong, a tombstone
// goes early, which Session.TooLate makes harmless.
func (r Session) MayEmpty(claims int, age, known time.Duration, t Clocks) bool {
	if age < 0 {
		age = max(t.Since(r.Dead).Abs(), known)
	}
	return r.Dead != 0 && claims == 0 && age >= 2*r.Duration()
}

// Holder returns the holder that was given a token.
func (r *Lock) Holder(t Token) (claim Claim, ok bool) {
	for _, h := range r.Holders {
		if h.Has(t) {
			claim, ok = h, true
		}
	}
	return claim, ok
}

// A TokenRelease is the outcome of releasing a detached hold by its token.
type TokenRelease int8

const (
	ReleaseInTime  TokenRelease = iota // the record is now the tombstone to write
	ReleaseLate                        // the same, but the time of the hold was over
	ReleaseOver                        // there is a tombstone, or no record: the hold has ended
	ReleaseAgain                       // the tombstone is that of this release, whose answer was lost
	ReleaseRunning                     // a process keeps the session: it is not detached
)

// Reasons in tombstones: of a hold that was released by its token, and of a session that ended in
// order.
const (
	released      = "released"
	closedInOrder = "closed"
)

// InOrder says whether a tombstone is of a session that was closed, or of a hold that was released.
func (r Session) InOrder() bool { return r.Why == closedInOrder || r.Why == released }

// ReleaseToken makes the record of a detached hold the tombstone of its release. The names of a
// hold that is released in time do not stay shut for its grace. age is the record's age by the
// store's clock.
func (r *Session) ReleaseToken(absent bool, age time.Duration, by string, t Clocks) TokenRelease {
	switch {
	case r.Dead != 0 && r.By == by && r.Why == released:
		return ReleaseAgain
	case r.Dead != 0 || absent || r.Least == LeastKept:
		return ReleaseOver
	case !r.Detached || r.Least == LeastHeld:
		return ReleaseRunning
	}
	out := ReleaseLate
	if !r.EndedAlone(r.Age(age), Margin(r.Duration()), t) {
		out, r.Grace = ReleaseInTime, 0
	}
	r.Dead, r.By, r.Why = t.Wall, by, released
	return out
}

// ExtendToken makes a detached hold, which was taken for a time, last until d from now.
// ReleaseInTime: the record has to be written; ReleaseAgain: this nonce has already written it.
func (r *Session) ExtendToken(absent bool, age, d time.Duration, nonce string, t Clocks) TokenRelease {
	switch {
	case r.Dead != 0 || absent || r.Least == LeastKept:
		return ReleaseOver
	case !r.Detached || r.Least == LeastHeld:
		return ReleaseRunning
	case r.Nonce == nonce:
		return ReleaseAgain
	case r.EndedAlone(r.Age(age), Margin(r.Duration()), t):
		return ReleaseLate
	}
	r.TTL, r.Nonce, r.At = DetachedTTL(d).Milliseconds(), nonce, t.Wall
	r.Beat++
	r.Boot, r.Up, r.Suspected = t.Boot, t.Up.Microseconds(), nil
	return ReleaseInTime
}

// Closed is the tombstone of the client's own session, which has ended in order: its claims are
// void once grace is over. ok is false if the record is a tombstone already.
func (r Session) Closed(owner *Owner, ttl, grace time.Duration, t Clocks) (tomb Session, ok bool) {
	if r.Dead != 0 {
		return r, false
	}
	return Session{Owner: owner, TTL: ttl.Milliseconds(), Grace: grace.Milliseconds() + int64(min(grace, 1)),
		Beat: r.Beat, Nonce: r.Nonce, Dead: t.Wall, By: owner.String(), Why: closedInOrder}, true
}
