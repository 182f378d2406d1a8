package record

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A Session is the value of a session: alive, or a tombstone (Dead set),
// which is final.
type Session struct {
	Owner     *Owner       `json:"owner,omitempty"`
	TTL       int64        `json:"ttl,omitempty"`   // milliseconds
	Grace     int64        `json:"grace,omitempty"` // milliseconds
	Beat      int64        `json:"beat"`
	Nonce     string       `json:"nonce,omitempty"` // of the attempt that wrote this beat
	At        int64        `json:"at,omitempty"`    // microseconds since 1970, by its owner's clock: a hint
	Detached  bool         `json:"detached,omitempty"`
	Boot      string       `json:"boot,omitempty"` // of a detached one: the kernel it was taken under,
	Up        int64        `json:"up,omitempty"`   // and how long that had run, in microseconds
	Least     Least        `json:"least,omitempty"`
	Suspected *Suspicion   `json:"suspected,omitempty"`
	Revoked   []Revocation `json:"revoked,omitempty"`
	Names     []string     `json:"names,omitempty"`  // of a hold: where its claims are, in byte order
	Client    string       `json:"client,omitempty"` // of a hold: the principal that may renew and end it
	Whole     bool         `json:"whole,omitempty"`  // of a hold of several names: it has all, and gives none back before its end
	Labels    ClaimLabels  `json:"labels,omitempty"` // in place of those in the claims

	Dead int64  `json:"dead,omitempty"` // microseconds since 1970, by its writer's clock
	By   string `json:"by,omitempty"`
	Why  string `json:"why,omitempty"`
}

// ClaimLabels are the changed labels of claims, by claim number.
type ClaimLabels = map[int64]Labels

// Least marks a detached session whose names stay shut until its time is over, whatever becomes
// of the process that took the lock (MinHold).
type Least string

const (
	LeastHeld Least = "held" // that process sends heartbeats, and may believe in the lock
	LeastKept Least = "kept" // it has released the lock, and no longer believes in it
)

// A Suspicion asks a session for a heartbeat. There is at most one per beat.
type Suspicion struct {
	By  string `json:"by"`
	Age int64  `json:"age"` // microseconds: the beat's age by the store's clock when it was marked
}

// A Revocation tells a session that one of its claims was broken. No beat can
// succeed without having read it.
type Revocation struct {
	Name   string `json:"name"`
	Nr     int64  `json:"nr"`
	By     Owner  `json:"by"`
	Reason string `json:"reason"`
	At     int64  `json:"at"`
}

// String says who broke the claim, and why.
func (r Revocation) String() string { return brokenBy(r.By, r.Reason) }

func brokenBy(by Owner, reason string) string { return fmt.Sprintf("broken by %s: %s", by, reason) }

// DecodeSession reads a session record.
func DecodeSession(value []byte) (Session, error) {
	var r Session
	if len(value) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(value, &r); err != nil {
		return r, fmt.Errorf("not a session record: %w", err)
	}
	const most = 2 * int64(MaxTTL/time.Millisecond) // a detached one has its time and a margin
	switch {
	case r.TTL < 0 || r.TTL > most || r.Grace < 0 || r.Grace > most:
		return Session{}, fmt.Errorf("not a session record: TTL %d ms, grace %d ms", r.TTL, r.Grace)
	case r.Suspected != nil && (r.Suspected.Age < -maxAge || r.Suspected.Age > maxAge):
		return Session{}, fmt.Errorf("not a session record: marked when its beat was %d µs old", r.Suspected.Age)
	}
	return r, nil
}

// maxAge bounds ages, in microseconds, so that they can be added up as a time.Duration.
const maxAge = 1 << 52

// Encode returns the value of the record.
func (r Session) Encode() []byte {
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // only plain fields
	}
	return value
}

// Age is the beat's age by the store's clock, from the age of its record; negative: not
// known.
func (r Session) Age(ofRecord time.Duration) time.Duration {
	if ofRecord >= 0 && r.Suspected != nil {
		return ofRecord + time.Duration(r.Suspected.Age)*time.Microsecond
	}
	return ofRecord
}

// Duration is the TTL: how long the session may be silent.
func (r Session) Duration() time.Duration { return time.Duration(r.TTL) * time.Millisecond }

// SameBeat says whether two records show one and the same heartbeat.
func (r Session) SameBeat(o Session) bool { return r.Beat == o.Beat && r.Nonce == o.Nonce }

// EndedAlone says whether the time of a detached hold is over, or will be once within has
// passed; age is its age by the store's clock. Other clocks have to agree, so that a step of
// that clock ends no hold early: the wall clocks, which may be wrong by the margin, and this
// kernel's if the hold was taken under it.
func (r Session) EndedAlone(age, within time.Duration, t Clocks) bool {
	ttl := r.Duration()
	holds := ttl - Margin(ttl)
	if !r.Detached || age < ttl-within || t.Since(r.At) < holds {
		return false
	}
	return r.Boot == "" || r.Boot != t.Boot || t.Up-time.Duration(r.Up)*time.Microsecond >= holds
}

// SeemsDead says whether a session has been silent for its TTL, by the store's clock or, where
// it has none, by the wall clocks. That is a hint: no session is declared dead because of it.
func (r Session) SeemsDead(age time.Duration, t Clocks) bool {
	if age = r.Age(age); age < 0 {
		age = t.Since(r.At)
	}
	return r.Dead == 0 && r.TTL > 0 && age >= r.Duration()
}

// DetachedTTL is the TTL whose trust window is d.
func DetachedTTL(d time.Duration) time.Duration {
	return max(d*10/9, min(d+time.Second, d*4/3)) + time.Millisecond
}

// IsHold says whether a text is the id of a hold, which its owner draws: 32 hexadecimal digits.
func IsHold(id string) bool {
	if len(id) != 32 {
		return false
	}
	for _, r := range id {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') {
			return false
		}
	}
	return true
}

// ofProgram ends the id of a program's session in place of the last digit. So it is never that of a
// hold: whoever enters a hold draws its id, could take one from a list, and its claims would pass
// for those of the program.
const ofProgram = "p"

// ProgramID is the id of a program's session, from 128 random bits.
func ProgramID(random [16]byte) string {
	return hex.EncodeToString(random[:])[:31] + ofProgram
}

// IsSession says whether a text is the id of a session, so that text from other programs in a
// record never becomes a path.
func IsSession(id string) bool {
	digits, program := strings.CutSuffix(id, ofProgram)
	if program {
		digits += "0"
	}
	return IsHold(digits)
}
