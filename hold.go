package holdfast

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// A HoldRequest asks for locks that no process keeps. A server that takes the requests of their
// owner, such as an HTTP server, enters, renews and leaves on the owner's behalf, through any
// client of the store. The other calls for a hold take its principal; an empty one skips that
// check. The zero value of a field is its default.
type HoldRequest struct {
	ID     string            // 32 hexadecimal digits, drawn by the owner; the same id finds the same hold
	Names  []string          // all or none; duplicates count once
	TTL    time.Duration     // how long the hold lives without a beat; 0: that of the client
	For    time.Duration     // not 0: nothing renews the hold, and it ends by itself after this time
	Shared bool              // any number of shared holders
	Slots  int               // most holders at once; 0 and 1: exclusive
	Reason string            // shown to those who wait, up to 200 bytes
	Labels map[string]string // shown with its claims, up to 1 KiB as JSON
	Wait   bool              // keep a place in line; else ErrHeld, and nothing is left behind
	Owner  Owner             // for people; Session is ignored
	Client string            // the principal that may enter again, renew and leave; "": anybody
}

// A Hold is the state of locks that no process keeps, as the store showed it.
type Hold struct {
	ID       string
	Names    []string // in byte order, without duplicates
	Client   string
	Owner    Owner
	Claims   []Claim // its claims in the store, in the order of Names
	Held     bool    // all of Names are held
	Position int     // its place in the queue that it waits in, 1: next; 0: it waits in none
	TTL      time.Duration
	Detached bool      // nothing renews it
	Ends     time.Time // end of a detached hold, as nearly as is known; else zero
	// Beat is the time just before the beat behind this answer was sent, with a monotonic reading.
	// The owner may believe that it holds for 0.9·(Beat - received + TTL), counted from before it
	// sent its request, which arrived at received. Zero: no beat is behind this answer. Then the
	// owner may believe only in a detached hold, until Ends; if Ends is zero, Enter again.
	Beat time.Time
	Sole bool // it was entered once, and only this client has renewed it, as far as is known

	nonce string // of that beat
}

// A HoldResult is what became of one hold in a call for several.
type HoldResult struct {
	ID   string
	Hold Hold
	Err  error // as from Enter
}

// ErrOtherHold: the id is that of a hold with other names, in another mode or of another
// principal. The error is an *OtherHoldError.
var ErrOtherHold = errors.New("the id is that of another hold")

// An OtherHoldError says how a hold differs from the one that was asked for.
type OtherHoldError struct {
	ID    string
	Field string // id, names, mode or client
}

func (e *OtherHoldError) Is(target error) bool { return target == ErrOtherHold }

func (e *OtherHoldError) Error() string {
	switch e.Field {
	case "id":
		return fmt.Sprintf("%s is the session of a running program, not a hold", e.ID)
	case "names":
		return fmt.Sprintf("hold %s has other names: draw a new id for each hold", e.ID)
	}
	return fmt.Sprintf("hold %s has another %s: draw a new id for each hold", e.ID, e.Field)
}

// A RequestError says which field of a HoldRequest cannot be accepted.
type RequestError struct {
	Field string // id, names, ttl, for, slots, reason, labels, owner or client
	Err   error
}

func (e *RequestError) Unwrap() error { return e.Err }

func (e *RequestError) Error() string { return e.Field + ": " + e.Err.Error() }

// A HoldEnd says how a hold has ended.
type HoldEnd string

const (
	HoldReleased HoldEnd = "released" // by its owner
	HoldBroken   HoldEnd = "broken"   // by force
	HoldDied     HoldEnd = "died"     // it was silent for its TTL
	HoldUnknown  HoldEnd = "unknown"  // the store knows of no such hold: it never existed, or ended long ago
)

// An OverError says how a hold has ended. That is final. errors.Is(err, ErrLost) holds for it.
type OverError struct {
	ID     string
	Why    HoldEnd
	Reason string // for people
	Name   string // of the claim that was broken
	By     Owner  // the one that broke it
}

func (e *OverError) Is(target error) bool { return target == ErrLost }

func (e *OverError) Error() string { return fmt.Sprintf("hold %s is over: %s", e.ID, e.Reason) }

// check returns the request in the form in which it is entered.
func (r HoldRequest) check() (HoldRequest, error) {
	bad := func(field string, err error) (HoldRequest, error) { return r, &RequestError{field, err} }
	if !record.IsSession(r.ID) {
		return r, errBadID()
	}
	r.Names = slices.Compact(slices.Sorted(slices.Values(r.Names)))
	switch {
	case len(r.Names) == 0:
		return bad("names", errors.New("there are none"))
	case len(r.Names) > maxHoldNames:
		return bad("names", fmt.Errorf("there are %d, at most %d", len(r.Names), maxHoldNames))
	}
	for _, name := range r.Names {
		if err := checkName(name); err != nil {
			return bad("names", err)
		}
	}
	switch {
	case r.TTL != 0 && (r.TTL < MinTTL || r.TTL > MaxTTL):
		return bad("ttl", fmt.Errorf("%v is not between %v and %v", r.TTL, MinTTL, MaxTTL))
	case r.For != 0 && (r.For < MinTTL || r.For > MaxTTL):
		return bad("for", fmt.Errorf("%v is not between %v and %v", r.For, MinTTL, MaxTTL))
	case r.Slots < 0 || r.Slots > maxSlots:
		return bad("slots", fmt.Errorf("%d is not between 1 and %d", r.Slots, maxSlots))
	case r.Shared && r.Slots > 0:
		return bad("slots", errors.New("a shared hold has none"))
	case len(r.Reason) > record.MaxReason:
		return bad("reason", fmt.Errorf("has %d bytes, at most %d", len(r.Reason), record.MaxReason))
	case len(r.Client) > maxField:
		return bad("client", fmt.Errorf("has %d bytes, at most %d", len(r.Client), maxField))
	}
	r.Reason = strings.ToValidUTF8(r.Reason, "\uFFFD")
	if !r.Shared {
		r.Slots = max(r.Slots, 1)
	}
	var err error
	if r.Labels, err = checkLabels(maps.Clone(r.Labels)); err != nil {
		return bad("labels", err)
	}
	r.Owner.Session, r.Owner.Labels = "", maps.Clone(r.Owner.Labels)
	if err := (&Options{Owner: r.Owner}).check(); err != nil {
		return bad("owner", err)
	}
	return r, nil
}

// maxHoldNames keeps the record of a hold small: each beat carries its names.
const maxHoldNames = 100

// holds remembers what a client has last written or read of each hold, so that a beat or a release
// costs one call. Nothing is decided on it that the store does not confirm.
type holds struct {
	known map[string]holdRecord
	most  int // the size at which expired holds are forgotten

	ttl   time.Duration // the store's setting
	ttlAt lease.Instant // when it was asked for
}

// A holdRecord is what was last known of a hold.
type holdRecord struct {
	session record.Session
	version int64
	at      lease.Instant
	names   []record.HoldName // nil: not known
	held    bool              // names are known, and all their claims were granted
	detach  time.Duration     // HoldRequest.For
	alone   bool              // this client made the record, and nobody else has written it since
}

const (
	leastHolds = 1024
	shortQueue = 4 // most claims in a lock record that is remembered for a release
)

// remember keeps what is known of a hold.
func (c *Client) remember(id string, r holdRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.holds
	if h.known == nil {
		h.known, h.most = make(map[string]holdRecord), leastHolds
	}
	if len(h.known) >= h.most {
		for id, r := range h.known {
			if c.now().Sub(r.at) > r.session.Duration() {
				delete(h.known, id)
			}
		}
		h.most = max(leastHolds, 2*len(h.known))
	}
	h.known[id] = r
}

func (c *Client) forgetHold(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds.known, id)
}

func (c *Client) knownHold(id string) (r holdRecord, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok = c.holds.known[id]
	return r, ok
}

// over is the error of a hold that is over according to its record; nil: it lives.
func over(id string, r *record.Session, absent bool) error {
	e := &OverError{ID: id}
	switch r.Hold(absent) {
	case record.HoldLives:
		return nil
	case record.HoldForeign:
		return &OtherHoldError{id, "id"}
	case record.HoldUnknown:
		e.Why, e.Reason = HoldUnknown, "the store knows of no such hold"
	case record.HoldMissing:
		e.Why, e.Reason = HoldDied, "declared missing"
		if s := r.Suspected; s != nil {
			e.Reason += " by " + s.By
		}
	case record.HoldReleased:
		e.Why, e.Reason = HoldReleased, "released"
	case record.HoldDead:
		e.Why, e.Reason = HoldDied, "declared dead by "+r.By
		if r.Why != "" {
			e.Reason += " (" + r.Why + ")"
		}
	case record.HoldBroken:
		v := r.Revoked[0]
		e.Why, e.Name, e.By = HoldBroken, v.Name, Owner(v.By)
		e.Reason = v.String()
	}
	return e
}

// A Session is what the store knows of a client's session, or of a hold's.
type Session struct {
	ID        string
	Owner     Owner
	TTL       time.Duration // how long it may be silent
	BeatAge   time.Duration // since the last heartbeat, by the store's clock; negative: cannot tell
	Detached  bool          // nothing renews it
	Ends      time.Time     // end of a detached session, as nearly as is known; else zero
	Suspected bool          // a waiter has asked it for a heartbeat
	Dead      bool          // its claims are void, or go to the next who asks
	Why       string        // why it is dead, if that is recorded
	Names     []string      // of a hold: the names of its claims
	Client    string        // of a hold: its principal
}

// Sessions yields all sessions of the store, dead ones included until they are swept, in the order
// of their ids, a page at a time.
func (c *Client) Sessions(ctx context.Context) iter.Seq2[Session, error] {
	return c.SessionsAfter(ctx, "")
}

// SessionsAfter is Sessions for the ids that come after a given id: the next page of a list.
func (c *Client) SessionsAfter(ctx context.Context, after string) iter.Seq2[Session, error] {
	return func(yield func(Session, error) bool) {
		stopped := errors.New("stopped")
		err := c.eachPage(ctx, driver.Sessions, after, func(ids []string) error {
			looks, err := c.loadSessions(ctx, ids)
			if err != nil {
				return err
			}
			for _, id := range ids {
				s, ok := c.publicSession(id, looks[id].rec)
				if ok && !yield(s, nil) {
					return stopped
				}
			}
			return nil
		})
		if err != nil && err != stopped {
			yield(Session{}, fmt.Errorf("sessions: %w", err))
		}
	}
}

// Session returns one session of the store. ok is false if it has no record, because it ended in
// order or was swept.
func (c *Client) Session(ctx context.Context, id string) (s Session, ok bool, err error) {
	looks, err := c.loadSessions(ctx, []string{id})
	if err != nil {
		return Session{}, false, fmt.Errorf("session %q: %w", id, err)
	}
	s, ok = c.publicSession(id, looks[id].rec)
	return s, ok, nil
}

// publicSession is a session record for people. ok is false if there is none that can be read.
func (c *Client) publicSession(id string, r driver.Record) (s Session, ok bool) {
	rec, err := record.DecodeSession(r.Value)
	if err != nil || len(r.Value) == 0 {
		return s, false
	}
	s = Session{ID: id, TTL: rec.Duration(), BeatAge: max(rec.Age(r.Age), -1), Detached: rec.Detached,
		Suspected: rec.Suspected != nil && !rec.Detached, Dead: rec.Dead != 0, Why: rec.Why, Names: rec.Names, Client: rec.Client}
	if rec.Owner != nil {
		s.Owner = Owner(*rec.Owner)
	}
	s.Owner.Session = id
	if s.Detached && s.BeatAge >= 0 {
		s.Ends = time.Now().Add(s.TTL - Margin(s.TTL) - s.BeatAge)
	}
	s.Dead = s.Dead || rec.EndedAlone(s.BeatAge, 0, clocks()) || !rec.Detached && c.proof.Gone(id)
	return s, true
}
