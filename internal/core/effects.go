package core

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// An Env is what is true of the client at the moment of an event.
type Env struct {
	Now      lease.Instant
	Wall     func() int64 // microseconds since 1970, for people
	Session  lease.View
	Grace    time.Duration
	Answers  bool                      // the store has answered this client before
	Notified bool                      // it notifies of writes
	Stale    bool                      // it has cheap stale reads, and writes of one key that meet there delay each other
	Tells    bool                      // notifications carry the record
	Awaits   bool                      // it can await a write
	NewClaim func() int64              // a claim number that this client has not used before
	Dead     func(session string) bool // its claims are void
}

func (e *Env) ours(session string) bool { return session != "" && session == e.Session.ID }

// trusts says whether a session is the client's, and its window is open.
func (e *Env) trusts(session string) bool { return e.ours(session) && e.Now < e.Session.Until }

func (e *Env) ttl() time.Duration {
	if e.Session.TTL > 0 {
		return e.Session.TTL
	}
	return record.DefaultTTL
}

// A Request is one goroutine that wants the lock. It is the caller's, and not changed here.
type Request struct {
	Slots    int
	Try      bool // do not queue
	Reason   string
	Labels   record.Labels
	Set      string
	Election bool // for the seat of an election
	Tag      any  // the caller's
}

// Effects are what the caller has to do after an event. They are valid until the next event
// of the same Name.
type Effects struct {
	Granted []Grant
	Refused []Refusal
	Queued  []*Request        // have joined the queue
	Lost    []Loss            // holds that ended without having been released
	Gone    []Gone            // claims that Release has named
	Evicted []record.Eviction // other clients' holders that our writes have removed
	Guests  []*Guest          // guests of which the record shows something new
	News    bool              // the record is no longer the same
	Beat    bool              // the session has to send a heartbeat at once
	Work    bool              // the record may not be what is desired: reconcile it
	Tick    lease.Instant     // when Tick has to be called; Never: no need
}

// A Grant turns a request into a hold.
type Grant struct {
	Request *Request
	Claim   ClaimID
	Token   record.Token
	Reason  string        // of the claim: that of the request that it was made for
	Labels  record.Labels // likewise
	At      lease.Instant
}

// A ClaimID names a claim.
type ClaimID struct {
	Session string
	Nr      int64
}

// A Refusal ends a request. Silent says that Err comes from a call that was not answered.
type Refusal struct {
	Request *Request
	Err     error
	Silent  bool
}

// A Loss ends a hold.
type Loss struct {
	Token  record.Token
	Why    string
	Err    error
	Broken *record.Break // the break, if that is why
}

// Gone says that a claim is confirmed gone, or Void with its session.
type Gone struct {
	Nr   int64
	Void bool
}

// A Held is the error of a request that was not granted.
type Held struct {
	Record record.Lock
	Self   bool // it was decided here: this very client holds it
	Here   bool // it was decided here, without a look
	Locked bool // a transaction in the database keeps the record locked
	Full   bool // the queue has no more room
}

func (e *Held) Error() string { return "held" }

// A Broken is the error of a request whose claim was broken while it waited.
type Broken struct{ Why string }

func (e *Broken) Error() string { return e.Why }

// begin empties the effects of the last event.
func (n *Name) begin() *Effects {
	n.enter()
	e := &n.eff
	if len(e.Granted)+len(e.Refused)+len(e.Queued)+len(e.Lost)+len(e.Gone) > 0 {
		clear(e.Granted)
		clear(e.Refused)
		clear(e.Queued)
		e.Granted, e.Refused, e.Queued, e.Lost, e.Gone = e.Granted[:0], e.Refused[:0], e.Queued[:0], e.Lost[:0], e.Gone[:0]
	}
	clear(e.Guests)
	e.Guests = e.Guests[:0]
	e.Evicted = nil
	e.News, e.Beat, e.Work, e.Tick = false, false, false, lease.Never
	return e
}

func (n *Name) refuse(r *Request, err error) {
	n.eff.Refused = append(n.eff.Refused, Refusal{Request: r, Err: err})
}

// tick asks for a call of Tick at an instant, or earlier.
func (n *Name) tick(at lease.Instant) {
	if n.eff.Tick == lease.Never || at < n.eff.Tick {
		n.eff.Tick = at
	}
}
