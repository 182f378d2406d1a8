package holdfast

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/engine"
)

// An Owner says whose a claim is, for people: no decision is based on it.
type Owner struct {
	Session string            `json:"session,omitempty"` // random; the identity that decides
	Name    string            `json:"name,omitempty"`    // what its operator calls it: an instance, a pod, a node
	Host    string            `json:"host,omitempty"`
	PID     int               `json:"pid,omitempty"`
	User    string            `json:"user,omitempty"`
	Program string            `json:"program,omitempty"`
	Address string            `json:"address,omitempty"` // of the host: the source address of its default route
	Device  string            `json:"device,omitempty"`  // the terminal that the process was started from, as in who(1)
	Started time.Time         `json:"started,omitzero"`  // when the process started, by its own clock
	Labels  map[string]string `json:"labels,omitempty"`
}

// String is "user@host (pid 4711)", or "name (user@host, pid 4711)", or as much of it as is
// known.
func (o Owner) String() string { return record.Owner(o).String() }

// A Claim is one holder or waiter of a name as the store showed it.
//
// The goroutines of a process queue in memory, and one claim stands for several in a row: a lock
// that is handed on within a process keeps its claim. So Requested, Granted, Waited and Retries are
// those of the claim, from its first request to its grant by the store, and the time since Granted
// is how long the process has held the lock.
type Claim struct {
	ID          string            // the session's first eight digits and a number: 8f3ac1d2-1
	Name        string            // of the lock
	Slots       int               // most holders it tolerates at once: 1 exclusive, N slots, 0 any number (shared)
	Token       int64             // fencing token; 0 while waiting
	Owner       Owner             // as much as its session record tells
	Reason      string            // why it wants the lock
	Requested   time.Time         // when, by its owner's clock; zero: not known
	Granted     time.Time         // when, by the clock of whoever wrote the grant; zero: it waits, or not known
	Waited      time.Duration     // from Requested to Granted, or until now while it waits
	Retries     int64             // how many of its writes lost before one won
	Labels      map[string]string // see Labels and Lock.SetLabels; not to be changed
	TTL         time.Duration     // how long its session may be silent
	BeatAge     time.Duration     // since the last heartbeat, by the store's clock; negative: cannot tell
	Detached    bool              // nothing renews it, and it ends by itself (AcquireFor)
	Ends        time.Time         // end of a detached claim, as nearly as is known; else zero
	Kept        bool              // it was released, and MinHold keeps the name shut until KeptUntil
	KeptUntil   time.Time         // until when MinHold keeps the name shut, as nearly as is known; else zero
	Suspected   bool              // a waiter has asked it for a heartbeat
	SuspectedBy string            // who
	Silent      bool              // silent for its TTL, by the store's clock or else the wall clocks: probably dead
	Dead        bool              // known to be dead: goes to the next who asks
	Collecting  string            // part of a set that is not complete: "2 of 3"
	Election    bool              // it is for the seat of an Election, and may wait for ever
	Own         bool              // it is this client's

	nr int64
}

// FullID is ID with all digits of the session. ID may not be unique among the claims of a name: the
// id of a hold is drawn by its owner, who can make it begin like another's.
func (c Claim) FullID() string {
	_, nr, _ := strings.Cut(c.ID, "-")
	return c.Owner.Session + "-" + nr
}

// Mode is "exclusive", "shared" or "slots N".
func (c Claim) Mode() string { return mode(c.Slots) }

func mode(slots int) string {
	switch slots {
	case 0:
		return "shared"
	case 1:
		return "exclusive"
	}
	return fmt.Sprintf("slots %d", slots)
}

// Info is what the store knows of a name.
type Info struct {
	Name string
	// Version is the version of the name's lock record. It grows, for ever, with each
	// change of the record. If nobody holds the name, equal versions mean that nobody has
	// held it in between. A lock that passes within a process leaves it as it is. 0: never
	// locked, or long ago.
	Version int64
	Holders []Claim       // in order of their grant
	Waiters []Claim       // first come first
	Breaks  []BrokenClaim // forced releases, newest first
}

// A BrokenClaim is the record of a forced release.
type BrokenClaim struct {
	Token  int64 // of the claim that was broken; 0 if it was waiting
	Was    Owner // whose it was
	By     Owner // the one that broke it
	Reason string
	At     time.Time // by the breaker's clock
	Now    bool      // BreakNow: its holder was not waited for
}

// A TokenGate lets a resource without transactions refuse writers that have lost
// their lock. The resource keeps it with its data. The zero value is ready.
type TokenGate struct {
	Any       int64 `json:"any"`       // highest token seen
	Exclusive int64 `json:"exclusive"` // highest token of an exclusive holder seen
}

// Admit lets a writer in and remembers its token, or refuses it with ErrLost. It
// refuses an exclusive token below the highest seen, and a shared one (any number
// of slots above one counts as shared) below the highest exclusive one.
func (f *TokenGate) Admit(token int64, shared bool) error {
	limit := f.Any
	if shared {
		limit = f.Exclusive
	}
	if token < limit || token <= 0 {
		return &staleTokenError{token, limit}
	}
	f.Any = max(f.Any, token)
	if !shared {
		f.Exclusive = max(f.Exclusive, token)
	}
	return nil
}

type staleTokenError struct{ token, seen int64 }

func (e *staleTokenError) Is(target error) bool { return target == ErrLost }

func (e *staleTokenError) Error() string {
	return fmt.Sprintf("token %d is too old: %d has been here", e.token, e.seen)
}

// claimID is the public form of a claim id.
func claimID(session string, nr int64) string {
	return fmt.Sprintf("%s-%d", session[:min(len(session), 8)], nr)
}

// publicClaim is a claim record for people, without what only its session knows.
func publicClaim(c record.Claim, name string) Claim {
	cl := Claim{
		ID: claimID(c.Session, c.Nr), Name: name, Slots: c.Slots, Token: int64(c.Token),
		Owner: Owner{Session: c.Session}, Reason: c.Reason, Requested: timeOf(c.Since),
		Retries: c.Retries, Labels: c.Labels,
		TTL: time.Duration(c.TTL) * time.Millisecond, BeatAge: -1, Collecting: c.Set, Election: c.Election, nr: c.Nr,
	}
	until := time.Now()
	if c.Token != 0 {
		until = timeOf(c.GrantedAt())
		cl.Granted = until
	}
	if !until.IsZero() && !cl.Requested.IsZero() {
		cl.Waited = max(until.Sub(cl.Requested), 0)
	}
	return cl
}

// timeOf is a time in a record, in microseconds since 1970. It is zero if µs is not positive, or
// the year is above 9999.
func timeOf(µs int64) time.Time {
	if t := time.UnixMicro(µs); µs > 0 && t.Year() < 10000 {
		return t
	}
	return time.Time{}
}

// A reading is what a session's record says of its claims.
type reading struct {
	rec             record.Session
	ours, readable  bool
	age             time.Duration
	dead, seemsDead bool
}

func newReading(c *engine.Engine, id string, look base.SessionRead) *reading {
	r := &reading{ours: c.Owns(id)}
	if len(look.Rec.Value) == 0 {
		return r
	}
	rec, err := record.DecodeSession(look.Rec.Value)
	if err != nil {
		return r
	}
	r.rec, r.readable, r.age = rec, true, max(rec.Age(look.Rec.Age), -1)
	r.dead = rec.Dead != 0 || rec.EndedAlone(r.age, 0, base.Clocks()) || !rec.Detached && c.Proof.Gone(id)
	r.seemsDead = rec.SeemsDead(look.Rec.Age, base.Clocks())
	return r
}

// fill adds what sessions say of their claims. Each session is read once, however many claims it
// has.
func fill(c *engine.Engine, looks map[string]base.SessionRead, claims ...[]Claim) {
	readings := make(map[string]*reading, len(looks))
	for _, some := range claims {
		for i := range some {
			id := some[i].Owner.Session
			r := readings[id]
			if r == nil {
				r = newReading(c, id, looks[id])
				readings[id] = r
			}
			r.fill(&some[i])
		}
	}
}

// fill adds to a claim what its session says.
func (r *reading) fill(cl *Claim) {
	cl.Own = r.ours
	if !r.readable {
		return
	}
	rec := &r.rec
	if rec.Owner != nil {
		id := cl.Owner.Session
		cl.Owner = Owner(*rec.Owner)
		cl.Owner.Session = id
	}
	if labels, ok := rec.Labels[cl.nr]; ok {
		cl.Labels = labels
	}
	cl.TTL = time.Duration(rec.TTL) * time.Millisecond
	cl.Detached, cl.Kept = rec.Detached && rec.Least != record.LeastHeld, rec.Least == record.LeastKept
	cl.BeatAge = r.age
	if rec.Suspected != nil && !rec.Detached {
		cl.Suspected, cl.SuspectedBy = true, rec.Suspected.By
	}
	switch {
	case rec.Dead != 0:
	case rec.Least != "" && cl.BeatAge < 0:
		cl.KeptUntil = time.UnixMicro(rec.At).Add(cl.TTL)
	case rec.Least != "":
		cl.KeptUntil = time.Now().Add(cl.TTL - cl.BeatAge)
	case rec.Detached && cl.BeatAge >= 0:
		cl.Ends = time.Now().Add(cl.TTL - Margin(cl.TTL) - cl.BeatAge)
	}
	if cl.Kept {
		cl.Ends = cl.KeptUntil
	}
	cl.Dead, cl.Silent = r.dead, !r.dead && r.seemsDead
}
