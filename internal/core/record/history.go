package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// A History is the value of a name's history record: its latest holds, and sums of the
// others. It is for people, and for the success that a job has recorded: no lock is granted
// or lost because of it.
type History struct {
	Holds   []Hold   `json:"holds,omitempty"`   // newest first
	Others  Sums     `json:"others,omitzero"`   // all holds that are not listed
	Success *Success `json:"success,omitempty"` // the latest work that was said to have succeeded
	At      int64    `json:"at"`                // microseconds since 1970: when it was last written, by its writer's clock
	Seen    []string `json:"seen,omitempty"`    // ids of the latest accounts, newest first: each is merged once
}

// A Hold is an entry of a history: one hold of the name, from its grant to its end. The token
// identifies it. Times are microseconds since 1970, by the clock of whoever reported it.
type Hold struct {
	Token  Token  `json:"token"`
	N      int64  `json:"n,omitempty"` // its token is one of N, from Token on; 0: Token itself
	Owner  Owner  `json:"owner"`
	From   int64  `json:"from,omitempty"` // 0: not known
	To     int64  `json:"to"`
	Waited int64  `json:"waited,omitempty"` // microseconds, for its grant
	End    End    `json:"end"`
	By     *Owner `json:"by,omitempty"`     // who broke it, or took it over from the dead
	Reason string `json:"reason,omitempty"` // why the lock was wanted
	Why    string `json:"why,omitempty"`    // why it ended as it did
}

// An End says how a hold ended.
type End string

const (
	EndReleased  End = "released"
	EndExpired   End = "expired"    // detached: its time was over
	EndLost      End = "lost"       // its client stopped believing in it
	EndTakenOver End = "taken over" // its session was declared dead, and its claim removed
	EndBroken    End = "broken"
)

// telling ranks the ends that several clients report of one hold: the highest is kept.
func (e End) telling() int {
	return slices.Index([]End{EndLost, EndExpired, EndTakenOver, EndBroken, EndReleased}, e)
}

// Sums are totals of the holds that are not listed. Times are microseconds.
type Sums struct {
	Count  int64 `json:"count"`
	Held   int64 `json:"held"`
	Waited int64 `json:"waited"`
}

// Add adds a hold.
func (s *Sums) Add(held, waited time.Duration) {
	s.plus(Sums{1, max(held, 0).Microseconds(), max(waited, 0).Microseconds()})
}

func (s *Sums) plus(o Sums) {
	s.Count, s.Held, s.Waited = s.Count+o.Count, s.Held+o.Held, s.Waited+o.Waited
}

// A Success is work under the lock that its holder reported as successful.
type Success struct {
	Token Token `json:"token"`
	At    int64 `json:"at"` // microseconds since 1970, by the store's clock where it has one
	By    Owner `json:"by"`
}

// An Account is what a client reports about one name. Its ID is never reused, so an
// account whose answer was lost can be written again, and is merged once.
type Account struct {
	ID      string
	Holds   []Hold // in any order
	Others  Sums
	Success *Success
}

// Add adds a hold: as an entry if it is listed and there is room, else to the sums. It reports
// whether the hold became an entry.
func (a *Account) Add(h Hold, room bool) bool {
	if !room || !h.listed() {
		a.Others.plus(h.sums())
		return false
	}
	a.Holds = append(a.Holds, h)
	return true
}

// Longest is how long the longest of its listed holds was held, or waited for, or the sum of all
// others. The account with the longest is written first.
func (a *Account) Longest() (longest int64) {
	longest = a.Others.Held
	for _, h := range a.Holds {
		longest = max(longest, h.held(), h.Waited)
	}
	return longest
}

// Fold adds its listed holds to the sums, where there is no room for entries.
func (a *Account) Fold() {
	for _, h := range a.Holds {
		a.Others.plus(h.sums())
	}
	a.Holds = nil
}

// MinListed is how long a hold that ended well has to have been held or waited for to be
// listed.
const MinListed = time.Second

// listed says whether a hold becomes an entry; otherwise it is only counted.
func (h Hold) listed() bool {
	least := MinListed.Microseconds()
	return h.End != EndReleased || h.From == 0 || h.held() >= least || h.Waited >= least
}

func (h Hold) held() int64 {
	if h.From == 0 {
		return 0
	}
	return max(h.To-h.From, 0)
}

func (h Hold) sums() Sums { return Sums{1, h.held(), h.Waited} }

// Bounds of a history record. A listed hold takes about 190 bytes; holdSize bounds the mean of
// all of them, so that 32 of them never take more than 8 KiB.
const (
	MaxHistory = 128 // most holds that a name keeps
	holdSize   = 256
	maxTold    = 100 // bytes of a reason
	maxSeen    = 8
)

// DecodeHistory reads a history record.
func DecodeHistory(value []byte) (History, error) {
	var h History
	if len(value) == 0 || h.scan(value) {
		return h, nil
	}
	h = History{}
	if err := json.Unmarshal(value, &h); err != nil {
		return History{}, fmt.Errorf("not a history record: %w", err)
	}
	return h, nil
}

// Encode is the value of the record.
func (h History) Encode() []byte { return marshal(h) }

// Merge adds an account. most bounds the holds that the record lists; with 0 only the success is
// added. now is the time by a wall clock. It reports false if the account was merged before,
// or has nothing to add.
func (h History) Merge(a Account, most int, now int64) (next History, changed bool) {
	if slices.Contains(h.Seen, a.ID) {
		return h, false
	}
	h.Holds, h.Seen = slices.Clone(h.Holds), append([]string{a.ID}, h.Seen...)
	h.Seen = h.Seen[:min(len(h.Seen), maxSeen)]
	h.At = now
	if s := a.Success; s != nil && (h.Success == nil || s.Token > h.Success.Token) {
		kept := *s
		kept.By = kept.By.Brief()
		h.Success = &kept
	}
	if most <= 0 {
		return h, a.Success != nil
	}
	h.Others.plus(a.Others)
	for _, hold := range a.Holds {
		h.list(hold.bounded())
	}
	slices.SortStableFunc(h.Holds, func(a, b Hold) int { return cmp.Compare(b.Token, a.Token) })
	size := 0
	for i := range h.Holds {
		size += len(marshal(h.Holds[i]))
		if i == most || size > most*holdSize {
			for _, old := range h.Holds[i:] {
				h.Others.plus(old.sums())
			}
			h.Holds = h.Holds[:i:i]
			break
		}
	}
	return h, true
}

// list adds a hold, or merges it with an entry of the same hold: its client may have reported
// that it was lost, and another client that it was taken over.
func (h *History) list(hold Hold) {
	i := slices.IndexFunc(h.Holds, func(o Hold) bool { return o.same(hold) })
	if i < 0 {
		h.Holds = append(h.Holds, hold)
		return
	}
	h.Holds[i] = both(h.Holds[i], hold)
}

// same says whether two entries are of one hold. Whoever takes a claim over knows which tokens
// it had, not which of them was in use.
func (h Hold) same(o Hold) bool {
	in := func(a, b Hold) bool {
		return b.N > 1 && a.Token >= b.Token && a.Token < b.Token+Token(b.N) && a.End != EndReleased
	}
	return h.Token == o.Token || in(h, o) || in(o, h)
}

// both merges two reports of one hold: its times come from the one that saw it end first, which
// is its own client's, and its end from the one that knows more about it.
func both(a, b Hold) Hold {
	if b.To < a.To || b.To == a.To && a.N > 1 {
		a, b = b, a
	}
	if a.From == 0 {
		a.From, a.Waited = b.From, b.Waited
	}
	a.Reason = cmp.Or(a.Reason, b.Reason)
	if a.Owner.Host == "" {
		a.Owner = b.Owner
	}
	if b.End.telling() > a.End.telling() {
		a.End, a.By, a.Why = b.End, b.By, b.Why
	}
	return a
}

// bounded is the entry with its owners and texts cut to a bounded size.
func (h Hold) bounded() Hold {
	h.Owner = h.Owner.Brief()
	if h.By != nil {
		by := h.By.Brief()
		h.By = &by
	}
	h.Reason, h.Why = Cut(h.Reason, maxTold), Cut(h.Why, maxTold)
	return h
}

// Ended is the entry of a claim that was removed because its session is dead, or because it
// was broken. tomb is the record of the session, empty if it is gone; by is who removed the
// claim, at now by a wall clock.
func (c Claim) Ended(tomb Session, broken *Break, by Owner, now int64) Hold {
	h := Hold{Token: c.Token, Owner: Owner{Session: c.Session}, From: c.GrantedAt(), To: now, End: EndTakenOver, By: &by, Reason: c.Reason}
	if c.Tokens() > 1 {
		h.N = c.N
	}
	if h.From > 0 {
		h.Waited = max(h.From-c.Since, 0)
	}
	if tomb.Owner != nil {
		h.Owner = *tomb.Owner
	}
	if tomb.Dead != 0 {
		h.To, h.Why = tomb.Dead, tomb.Why
	}
	switch {
	case broken != nil:
		h.To, h.End, h.By, h.Why = broken.At, EndBroken, &broken.By, broken.Reason
		if broken.Was.Host != "" {
			h.Owner = broken.Was
		}
	case tomb.Detached:
		over := tomb.At + (tomb.Duration() - Margin(tomb.Duration())).Microseconds()
		h.By, h.End, h.Why = nil, EndExpired, ""
		if tomb.Why == released && tomb.Dead < over {
			h.End = EndReleased
		} else {
			h.To = min(h.To, over)
		}
	case tomb.InOrder():
		h.By, h.End, h.Why = nil, EndReleased, ""
	}
	return h
}

// IsTime says whether a version is a time of the store's clock, in microseconds since 1970.
func (v Version) IsTime() bool {
	const year1990 = 631152000000000
	return v >= year1990
}

// Evicted are the holders that the next record lacks, and whose session is dead or whose break
// is in the next record: whoever wrote that record adds them to the history.
func (r *Lock) Evicted(next *Lock, dead func(session string) bool) (gone []Eviction) {
	kept := next.Holders
	for _, c := range r.Holders {
		if len(kept) > 0 && kept[0].Is(c.Session, c.Nr) { // mostly unchanged, and in the same order
			kept = kept[1:]
			continue
		}
		if c.Token == 0 {
			continue
		}
		if _, _, ok := next.Find(c.Session, c.Nr); ok {
			continue
		}
		i := slices.IndexFunc(next.Breaks, func(b Break) bool { return c.Is(b.Session, b.Nr) })
		switch {
		case i >= 0:
			b := next.Breaks[i]
			gone = append(gone, Eviction{c, &b})
		case dead(c.Session):
			gone = append(gone, Eviction{Claim: c})
		}
	}
	return gone
}

// An Eviction is the claim of a holder that another client has removed.
type Eviction struct {
	Claim  Claim
	Broken *Break // nil: its session is dead
}

// HistoryIdle is how long a history is kept when nothing is added to it; SuccessIdle is for one
// with a success, by which a job runs at most once per period.
const (
	HistoryIdle = 30 * 24 * time.Hour
	SuccessIdle = 400 * 24 * time.Hour
)

// MayEmpty says whether a history may be swept, because nothing was added to it for idle. age is
// the record's age by the store's clock; if it is negative, the wall clock counts. idle is at most
// HistoryIdle, and less where there are very many histories.
func (h History) MayEmpty(age, idle time.Duration, t Clocks) bool {
	if age < 0 {
		age = t.Since(h.At)
	}
	if h.Success != nil {
		idle = SuccessIdle
	}
	return age >= idle
}

// Brief is the owner as a history keeps it: what fits in a line.
func (o Owner) Brief() Owner {
	return Owner{Name: Cut(o.Name, 64), Host: Cut(o.Host, 64), PID: o.PID, User: Cut(o.User, 32), Program: Cut(o.Program, 32)}
}
