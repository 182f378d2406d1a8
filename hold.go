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

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/holds"
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
var ErrOtherHold = holds.ErrOther

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
func (r HoldRequest) check() (holds.Request, error) {
	bad := func(field string, err error) (holds.Request, error) {
		return holds.Request{}, &RequestError{field, err}
	}
	if err := checkIDs(r.ID); err != nil {
		return holds.Request{}, err
	}
	if !record.IsHold(r.ID) {
		return holds.Request{}, &OtherHoldError{r.ID, "id"}
	}
	r.Names = slices.Compact(slices.Sorted(slices.Values(r.Names)))
	switch {
	case len(r.Names) == 0:
		return bad("names", errors.New("there are none"))
	case len(r.Names) > maxHoldNames:
		return bad("names", fmt.Errorf("there are %d, at most %d", len(r.Names), maxHoldNames))
	}
	for _, name := range r.Names {
		if err := base.CheckName(name); err != nil {
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
	if !r.Shared {
		r.Slots = max(r.Slots, 1)
	}
	labels, err := base.CheckLabels(maps.Clone(r.Labels))
	if err != nil {
		return bad("labels", err)
	}
	r.Owner.Session, r.Owner.Labels = "", maps.Clone(r.Owner.Labels)
	if err := (&Options{Owner: r.Owner}).check(); err != nil {
		return bad("owner", err)
	}
	return holds.Request{ID: r.ID, Names: r.Names, TTL: r.TTL, For: r.For, Slots: r.Slots, Reason: strings.ToValidUTF8(r.Reason, "\uFFFD"),
		Labels: labels, Wait: r.Wait, Owner: record.Owner(r.Owner), Client: r.Client}, nil
}

func errBadID() error {
	return &RequestError{"id", errors.New("is not 32 hexadecimal digits in lower case")}
}

// maxHoldNames keeps the record of a hold small: each beat carries its names.
const maxHoldNames = 100

// publicHold is the state of a hold for people.
func publicHold(s holds.State) Hold {
	h := Hold{ID: s.ID, Names: s.Names, Client: s.Client, Owner: Owner(s.Owner), Held: s.Held, Position: s.Position,
		TTL: s.TTL, Detached: s.Detached, Ends: s.Ends, Beat: s.Beat, Sole: s.Sole, nonce: s.Nonce}
	for _, c := range s.Claims {
		cl := publicClaim(c.Claim, c.Name)
		cl.Owner, cl.TTL, cl.Detached, cl.Ends = h.Owner, h.TTL, h.Detached, h.Ends
		h.Claims = append(h.Claims, cl)
	}
	return h
}

// checkIDs refuses ids that no hold can have.
func checkIDs(ids ...string) error {
	for _, id := range ids {
		if !record.IsSession(id) {
			return errBadID()
		}
	}
	return nil
}

// ofHold makes the results of a call for a hold those for its user.
func ofHold(what string, s holds.State, err error) (Hold, error) {
	if err != nil {
		return Hold{}, fmt.Errorf("%s: %w", what, public(err))
	}
	return publicHold(s), nil
}

// Enter acquires the locks of a hold, or puts it in line, and returns its state. It does not wait:
// see Follow. The same request, sent again through any client of the store, finds the hold and
// renews it. So it may be repeated after any error, and continues where it was. If one name is
// free, Enter makes one call to the store; several names take two. It makes up for lost replies
// until ctx ends.
//
// The error is ErrHeld (a *HeldError) if others are in the way and the request does not wait;
// nothing is left behind then. It is ErrLost (an *OverError) if the hold has ended, which is final;
// ErrOtherHold (an *OtherHoldError) if the id is that of another hold; or a *RequestError. With any
// other error the outcome is unknown: the same request may be sent again.
func (c *Client) Enter(ctx context.Context, r HoldRequest) (Hold, error) {
	checked, err := r.check()
	if err != nil {
		return ofHold("enter hold", holds.State{}, err)
	}
	s, err := c.h.Enter(ctx, checked)
	return ofHold("enter hold", s, err)
}

// Beat renews holds, up to 512 in one call to the store if this client has served them before. The
// results are in the order of ids, with errors as from Enter, except ErrHeld. A hold whose id the
// store does not know is over: a beat never makes a record. A waiting hold is advanced, too; a
// detached hold is not written. An error of Beat itself means that the store was not asked.
func (c *Client) Beat(ctx context.Context, client string, ids ...string) ([]HoldResult, error) {
	err := checkIDs(ids...)
	var got []holds.Result
	if err == nil {
		got, err = c.h.Beat(ctx, client, ids...)
	}
	if err != nil {
		return nil, fmt.Errorf("beat: %w", err)
	}
	results := make([]HoldResult, len(got))
	for i, r := range got {
		if results[i] = (HoldResult{ID: r.ID, Err: public(r.Err)}); r.Err == nil {
			results[i].Hold = publicHold(r.Hold)
		}
	}
	return results, nil
}

// Extend makes a detached hold end d from now.
func (c *Client) Extend(ctx context.Context, client, id string, d time.Duration) (Hold, error) {
	err := checkIDs(id)
	if d < MinTTL || d > MaxTTL {
		err = &RequestError{"for", fmt.Errorf("%v is not between %v and %v", d, MinTTL, MaxTTL)}
	}
	var s holds.State
	if err == nil {
		s, err = c.h.Extend(ctx, client, id, d)
	}
	return ofHold("extend hold", s, err)
}

// Hold looks at a hold and writes nothing. Beat is zero in the result.
func (c *Client) Hold(ctx context.Context, client, id string) (Hold, error) {
	err := checkIDs(id)
	var s holds.State
	if err == nil {
		s, err = c.h.Hold(ctx, client, id)
	}
	return ofHold("hold", s, err)
}

// Follow renews a hold every third of its TTL, until ctx ends, and advances it while it waits. It
// yields its state at once, then after each beat and whenever the state changes; a new place far
// from the head of a queue comes with beats only. When the hold is over, the last value is an error
// as from Enter. A store that does not answer is tried again, and nothing is yielded until it does.
// When Follow ends, the hold lives on for the rest of its TTL.
func (c *Client) Follow(ctx context.Context, client, id string) iter.Seq2[Hold, error] {
	return func(yield func(Hold, error) bool) {
		err := checkIDs(id)
		if err == nil {
			err = c.h.Follow(ctx, client, id, func(s holds.State) bool { return yield(publicHold(s), nil) })
		}
		if err != nil {
			yield(Hold{}, fmt.Errorf("follow hold: %w", public(err)))
		}
	}
}

// Leave releases the locks of a hold, or leaves the line, for good: its session gets a tombstone
// and its claims are removed, in one call to the store. An Enter that arrives later is refused, at
// least for two TTLs, until the tombstone is swept. Leave may be repeated: a hold that is over is
// no error, and an id that the store does not know is closed as well. With an error other than
// ErrOtherHold the outcome is unknown.
func (c *Client) Leave(ctx context.Context, client, id string) error {
	err := checkIDs(id)
	if err == nil {
		err = c.h.Leave(ctx, client, id, false)
	}
	if err != nil {
		return fmt.Errorf("leave hold: %w", public(err))
	}
	return nil
}

// LeaveSole is Leave of a hold whose Follow has ended, if it was entered once and nobody else has
// renewed it. If another may have said that it is held, it is left alone, and ends after its TTL.
// It is for a server whose connection to the requester has ended.
func (c *Client) LeaveSole(ctx context.Context, client, id string) error {
	err := checkIDs(id)
	if err == nil {
		err = c.h.Leave(ctx, client, id, true)
	}
	if err != nil {
		return fmt.Errorf("leave hold: %w", public(err))
	}
	return nil
}

// LeaveQueue takes a hold out of its line if nobody serves it any more: it waits, and has not been
// renewed since h was returned. It is for a server whose connection to the requester has ended. If
// h is not Sole, another server may serve the hold, and beats every third of its TTL: call
// LeaveQueue half a TTL later. The session stays, and ends after its TTL.
func (c *Client) LeaveQueue(ctx context.Context, h Hold) error {
	err := checkIDs(h.ID)
	if err == nil {
		err = c.h.LeaveQueue(ctx, h.ID, h.nonce)
	}
	if err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("leave the queue: %w", public(err))
	}
	return nil
}
