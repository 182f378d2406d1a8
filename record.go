package holdfast

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A lockRecord is the value of a name: who holds it and who waits. An empty
// value is a free lock. It is JSON, so that a person with a database shell can
// read it. DESIGN.md has the format.
type lockRecord struct {
	// Next is the least token that may still be given; left out where the next
	// version is above it anyway. It outlives claims: a free record stays
	// behind with it until versions have caught up.
	Next    int64         `json:"next,omitempty"`
	Holders []claimRecord `json:"holders,omitempty"` // in order of their grant
	Waiters []claimRecord `json:"waiters,omitempty"` // first come first
	Breaks  []breakRecord `json:"breaks,omitempty"`  // not yet copied to the audit space
}

// A claimRecord is one holder or waiter. Session and Nr together are the claim
// id: 128 random bits and a number that its session uses once.
type claimRecord struct {
	Session string `json:"session"`
	Nr      int64  `json:"nr"`
	// Slots is the most holders it tolerates at once, itself included:
	// exclusive 1, slots N, shared 0 (any number).
	Slots int `json:"slots"`
	// Token is the first token it was given. 0 in a holder means: given by the
	// write that made this version, max(version, next)+Off.
	Token   int64  `json:"token,omitempty"`
	Off     int64  `json:"off,omitempty"`
	N       int64  `json:"n,omitempty"`       // how many tokens; 0 is 1
	TTL     int64  `json:"ttl"`               // milliseconds
	Since   int64  `json:"since"`             // microseconds since 1970, by its owner's clock
	Reason  string `json:"reason,omitempty"`  // why it wants the lock
	Retries int64  `json:"retries,omitempty"` // how many of its writes lost before it was in
	Set     string `json:"set,omitempty"`     // "2 of 3": part of a set that is being collected
}

func (c claimRecord) tokens() int64 { return max(c.N, 1) }

func (c claimRecord) is(session string, nr int64) bool { return c.Session == session && c.Nr == nr }

// A breakRecord is the audit entry of a forced release.
type breakRecord struct {
	Session string `json:"session"`
	Nr      int64  `json:"nr"`
	Token   int64  `json:"token,omitempty"`
	Was     Owner  `json:"was"`
	By      Owner  `json:"by"`
	Reason  string `json:"reason"`
	At      int64  `json:"at"` // microseconds since 1970
	Now     bool   `json:"now,omitempty"`
}

// maxShown is the most bytes of JSON that an owner takes in an entry: maxBreaks of them, with
// their reasons, fit into what maxRecord leaves of a record.
const maxShown = 3000

// bounded is the entry without what would make it too large. Labels go first; whose the
// claim was and who broke it is kept.
func (b breakRecord) bounded() breakRecord {
	b.Was, b.By, b.Reason = b.Was.bounded(), b.By.bounded(), cut(b.Reason, maxReason)
	return b
}

// bounded is the owner in at most maxShown bytes of JSON.
func (o Owner) bounded() Owner {
	fits := func() bool {
		text, err := json.Marshal(o)
		return err == nil && len(text) <= maxShown
	}
	if fits() {
		return o
	}
	if o.Labels = nil; fits() {
		return o
	}
	return Owner{Session: cut(o.Session, 64), Host: cut(o.Host, 200), PID: o.PID, User: cut(o.User, 200)} // six bytes each at most
}

// A sessionRecord is the value of a session: alive, or a tombstone (Dead set),
// which is final.
type sessionRecord struct {
	Owner     *Owner       `json:"owner,omitempty"`
	TTL       int64        `json:"ttl,omitempty"`   // milliseconds
	Grace     int64        `json:"grace,omitempty"` // milliseconds
	Beat      int64        `json:"beat"`
	Nonce     string       `json:"nonce,omitempty"` // of the attempt that wrote this beat
	At        int64        `json:"at,omitempty"`    // microseconds since 1970, by its owner's clock: a hint
	Detached  bool         `json:"detached,omitempty"`
	Boot      string       `json:"boot,omitempty"` // of a detached one: the kernel it was taken under,
	Up        int64        `json:"up,omitempty"`   // and how long that had run, in microseconds
	Suspected *suspicion   `json:"suspected,omitempty"`
	Revoked   []revocation `json:"revoked,omitempty"`

	Dead int64  `json:"dead,omitempty"` // microseconds since 1970, by the burier's clock
	By   string `json:"by,omitempty"`
	Why  string `json:"why,omitempty"`
}

// A suspicion asks a session for a heartbeat. There is at most one per beat.
type suspicion struct {
	By  string `json:"by"`
	Age int64  `json:"age"` // microseconds: the beat's age by the store's clock when it was marked
}

// A revocation tells a session that one of its claims was broken. No beat can
// succeed without having read it.
type revocation struct {
	Name   string `json:"name"`
	Nr     int64  `json:"nr"`
	By     Owner  `json:"by"`
	Reason string `json:"reason"`
	At     int64  `json:"at"`
}

// settingRecord is the value of the setting "ttl".
type settingRecord struct {
	TTL int64 `json:"ttl"` // milliseconds
}

// decodeLock reads a lock record as it stands at a version: tokens that were
// left to the version are written out, and Next is above all of them.
func decodeLock(value []byte, version int64) (lockRecord, error) {
	var r lockRecord
	if len(value) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return lockRecord{}, fmt.Errorf("not a lock record: %w", err)
	}
	if err := r.check(); err != nil {
		return lockRecord{}, err
	}
	r.written(version)
	if err := r.check(); err != nil {
		return lockRecord{}, err
	}
	return r, nil
}

// maxToken is above all numbers of a lock record, so that no sum of them overflows.
const maxToken = 1 << 61

var errNumber = errors.New("not a lock record: a number is out of range")

// check refuses numbers that no client writes: tokens would go back over them.
func (r *lockRecord) check() error {
	all := uint64(r.Next)
	for _, claims := range [][]claimRecord{r.Holders, r.Waiters} {
		for _, c := range claims {
			all |= uint64(c.Token) | uint64(c.Off) | uint64(c.N) | uint64(c.Slots)
		}
	}
	if all >= maxToken { // negative ones are too
		return errNumber
	}
	return nil
}

// written turns a record that was just written into what a reader of that
// version sees.
func (r *lockRecord) written(version int64) {
	base := max(version, r.Next)
	for i := range r.Holders {
		h := &r.Holders[i]
		if h.Token == 0 {
			h.Token, h.Off = base+h.Off, 0
		}
		r.Next = max(r.Next, h.Token+h.tokens())
	}
}

// encode is the value that shall follow version old. It is empty if there is
// nothing to say: no claim, no audit entry, and every token given so far lies
// below the version of any later grant, which is old+2 at least.
func (r lockRecord) encode(old int64) []byte {
	if len(r.Holders)+len(r.Waiters)+len(r.Breaks) == 0 && r.Next <= old+2 {
		return nil
	}
	if r.Next <= old+1 {
		r.Next = 0
	}
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // only plain fields
	}
	return value
}

func (r lockRecord) clone() lockRecord {
	r.Holders = slices.Clone(r.Holders)
	r.Waiters = slices.Clone(r.Waiters)
	r.Breaks = slices.Clone(r.Breaks)
	return r
}

// find returns the claim and whether it holds.
func (r *lockRecord) find(session string, nr int64) (claim claimRecord, holds, ok bool) {
	for _, h := range r.Holders {
		if h.is(session, nr) {
			return h, true, true
		}
	}
	for _, w := range r.Waiters {
		if w.is(session, nr) {
			return w, false, true
		}
	}
	return claimRecord{}, false, false
}

func decodeSession(value []byte) (sessionRecord, error) {
	var r sessionRecord
	if len(value) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return r, fmt.Errorf("not a session record: %w", err)
	}
	const most = 2 * int64(MaxTTL/time.Millisecond) // a detached one has its time and a margin
	switch {
	case r.TTL < 0 || r.TTL > most || r.Grace < 0 || r.Grace > most:
		return sessionRecord{}, fmt.Errorf("not a session record: TTL %d ms, grace %d ms", r.TTL, r.Grace)
	case r.Suspected != nil && (r.Suspected.Age < -maxAge || r.Suspected.Age > maxAge):
		return sessionRecord{}, fmt.Errorf("not a session record: marked when its beat was %d µs old", r.Suspected.Age)
	}
	return r, nil
}

// maxAge is what can be added up as a time.Duration, in microseconds.
const maxAge = 1 << 52

func (r sessionRecord) encode() []byte {
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // only plain fields
	}
	return value
}

// age is that of the beat by the store's clock, from that of its record; negative: not
// known.
func (r sessionRecord) age(ofRecord time.Duration) time.Duration {
	if ofRecord >= 0 && r.Suspected != nil {
		return ofRecord + time.Duration(r.Suspected.Age)*time.Microsecond
	}
	return ofRecord
}

func (r sessionRecord) ttl() time.Duration { return time.Duration(r.TTL) * time.Millisecond }

// sameBeat says whether two records show one and the same heartbeat.
func (r sessionRecord) sameBeat(o sessionRecord) bool { return r.Beat == o.Beat && r.Nonce == o.Nonce }
