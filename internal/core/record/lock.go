package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Lock is the value of a name: who holds it and who waits. An empty
// value is a free lock. It is JSON, so that a person with a database shell can
// read it. DESIGN.md has the format.
type Lock struct {
	// Next is the least token that may still be given; left out where the next
	// version is above it anyway. It outlives claims: a free record stays
	// behind with it until versions have caught up.
	Next    Token   `json:"next,omitempty"`
	Holders []Claim `json:"holders,omitempty"` // in order of their grant
	Waiters []Claim `json:"waiters,omitempty"` // first come first
	Breaks  []Break `json:"breaks,omitempty"`  // not yet copied to the audit space
}

// A Claim is one holder or waiter. Session and Nr together are the claim
// id: the session is random, and uses a number once.
type Claim struct {
	Session string `json:"session"`
	Nr      int64  `json:"nr"`
	// Slots is the most holders it tolerates at once, itself included:
	// exclusive 1, slots N, shared 0 (any number).
	Slots int `json:"slots"`
	// Token is the first token it was given. 0 in a holder means: given by the
	// write that made this version, max(version, next)+Off.
	Token   Token  `json:"token,omitempty"`
	Off     int64  `json:"off,omitempty"`
	N       int64  `json:"n,omitempty"`       // how many tokens; 0 is 1
	TTL     int64  `json:"ttl"`               // milliseconds
	Since   int64  `json:"since"`             // when it was requested: microseconds since 1970, by its owner's clock
	Granted int64  `json:"granted,omitempty"` // when: microseconds since 1970, by the clock of whoever wrote the grant; 0: not known
	Reason  string `json:"reason,omitempty"`  // why it wants the lock
	Retries int64  `json:"retries,omitempty"` // how many of its writes lost before it was in
	Set     string `json:"set,omitempty"`     // "2 of 3": part of a set that is being collected
	Labels  Labels `json:"labels,omitempty"`  // its owner may replace them in the session record
	// Election says that it is for the seat of an election, for which it may well wait for ever.
	Election bool `json:"election,omitempty"`
}

// Labels are a few words about a claim, for people.
type Labels = map[string]string

// MaxLabels is the most bytes of JSON that the labels of a claim take.
const MaxLabels = 1024

// SizeOf is how many bytes of JSON labels take.
func SizeOf(l Labels) int {
	if len(l) == 0 {
		return 0
	}
	return len(marshal(l))
}

// Tokens is how many tokens it has.
func (c Claim) Tokens() int64 { return max(c.N, 1) }

// GrantedAt is when the claim was granted, in microseconds since 1970. If an older program wrote
// the grant, the token gives the time, where the store's tokens are times. 0: not known.
func (c Claim) GrantedAt() int64 {
	const from, to = 1577836800000000, 4102444800000000 // 2020 to 2100
	if c.Granted <= 0 && c.Token >= from && c.Token < to {
		return int64(c.Token)
	}
	return max(c.Granted, 0)
}

// Has says whether t is one of the tokens that a holder was given.
func (c Claim) Has(t Token) bool { return t >= c.Token && t < c.Token+Token(c.Tokens()) }

// Is says whether the claim has this id.
func (c Claim) Is(session string, nr int64) bool { return c.Session == session && c.Nr == nr }

// A Break is the audit entry of a forced release.
type Break struct {
	Session string `json:"session"`
	Nr      int64  `json:"nr"`
	Token   Token  `json:"token,omitempty"`
	Was     Owner  `json:"was"`
	By      Owner  `json:"by"`
	Reason  string `json:"reason"`
	At      int64  `json:"at"` // microseconds since 1970
	Now     bool   `json:"now,omitempty"`
}

// String says who broke the claim, and why.
func (b Break) String() string { return brokenBy(b.By, b.Reason) }

// Bounded is the entry cut to a bounded size. Labels go first; the former owner and
// whoever broke the claim are kept.
func (b Break) Bounded() Break {
	b.Was, b.By, b.Reason = b.Was.Bounded(), b.By.Bounded(), Cut(b.Reason, MaxReason)
	return b
}

// DecodeLock reads a lock record as it stands at a version: tokens that were
// left to the version are written out, and Next is above all of them.
func DecodeLock(value []byte, version Version) (Lock, error) {
	var r Lock
	if len(value) == 0 {
		return r, nil
	}
	if !r.scan(value) {
		r = Lock{}
		if err := json.Unmarshal(value, &r); err != nil {
			return Lock{}, fmt.Errorf("not a lock record: %w", err)
		}
	}
	if err := r.check(); err != nil {
		return Lock{}, err
	}
	r.Written(version)
	if err := r.check(); err != nil {
		return Lock{}, err
	}
	return r, nil
}

// maxToken is above all numbers of a lock record, so that no sum of them overflows.
const maxToken = 1 << 61

var errNumber = errors.New("not a lock record: a number is out of range")

// check refuses numbers that no client writes: with them tokens could overflow and fall.
func (r *Lock) check() error {
	all := uint64(r.Next)
	for _, claims := range [][]Claim{r.Holders, r.Waiters} {
		for _, c := range claims {
			all |= uint64(c.Token) | uint64(c.Off) | uint64(c.N) | uint64(c.Slots)
		}
	}
	if all >= maxToken { // negative ones are too
		return errNumber
	}
	return nil
}

// Written turns a record that was just written into what a reader of that
// version sees.
func (r *Lock) Written(version Version) {
	base := max(Token(version), r.Next)
	for i := range r.Holders {
		h := &r.Holders[i]
		if h.Token == 0 {
			h.Token, h.Off = base+Token(h.Off), 0
		}
		r.Next = max(r.Next, h.Token+Token(h.Tokens()))
	}
}

// vanishes says whether a record that is to follow version old needs no value.
func (r *Lock) vanishes(old Version) bool {
	return len(r.Holders)+len(r.Waiters)+len(r.Breaks) == 0 && r.Next <= Token(old)+2
}

// Stored is what readers see once r has followed old: DecodeLock of Encode, without the
// bytes.
func (r Lock) Stored(old, version Version) Lock {
	if r.vanishes(old) {
		return Lock{}
	}
	if r.Next <= Token(old)+1 {
		r.Next = 0
	}
	r.Holders = slices.Clone(r.Holders)
	r.Written(version)
	return r
}

// Clone is a copy that shares nothing with r.
func (r Lock) Clone() Lock {
	r.Holders = slices.Clone(r.Holders)
	r.Waiters = slices.Clone(r.Waiters)
	r.Breaks = slices.Clone(r.Breaks)
	return r
}

// Find returns the claim and whether it holds.
func (r *Lock) Find(session string, nr int64) (claim Claim, holds, ok bool) {
	for _, h := range r.Holders {
		if h.Is(session, nr) {
			return h, true, true
		}
	}
	for _, w := range r.Waiters {
		if w.Is(session, nr) {
			return w, false, true
		}
	}
	return Claim{}, false, false
}

// MaxValue is the size in bytes of the largest value that every store keeps; MaxReason
// bounds a reason.
const (
	MaxValue  = 1 << 20
	MaxReason = 200
)

// MaxRecord bounds the size of a record's claims: a claim beyond it is refused. It has room for
// about 3,000 claims without reasons and labels. The rest of a record is for audit entries.
const MaxRecord = MaxValue * 7 / 8

// Full says whether a record has no room for another claim.
func (r *Lock) Full() bool {
	if len(r.Holders)+len(r.Waiters) < MaxRecord/(claimSize+6*MaxReason+MaxLabels) {
		return false // however long their reasons and labels are
	}
	size := 0
	for _, claims := range [][]Claim{r.Holders, r.Waiters} {
		for _, c := range claims {
			size += claimSize + textSize(c.Reason)
			for key, value := range c.Labels {
				size += textSize(key) + textSize(value) + len(`"":"",`)
			}
		}
	}
	return size > MaxRecord
}

// claimSize is the most that a claim takes in a record, without its reason and its labels.
const claimSize = 300

// textSize is the most that a text takes in JSON.
func textSize(s string) int {
	size := len(s) + 5*strings.Count(s, "<") + 5*strings.Count(s, ">") + 5*strings.Count(s, "&")
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r > 0x2000 }) {
		size += 5 * len(s) // escaped, the most that can be
	}
	return size
}

// MaxBreaks is the most audit entries that a name keeps.
const MaxBreaks = 16

// AddBreak adds an audit entry, in place of the oldest where there is no more room.
func (r *Lock) AddBreak(b Break) {
	r.Breaks = append(r.Breaks, b.Bounded())
	if n := len(r.Breaks) - MaxBreaks; n > 0 {
		r.Breaks = slices.Delete(r.Breaks, 0, n)
	}
}
