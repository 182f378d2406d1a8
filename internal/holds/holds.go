// Package holds serves holds: locks that no process keeps, which a server enters, renews and leaves on
// behalf of their owners. Package holdfast describes what is promised of them.
package holds

import (
	"errors"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/engine"
)

// A Keeper serves holds.
type Keeper struct {
	*engine.Engine
	kept     remembered
	renewals renewals
}

// New makes the keeper of the holds that are served through a client.
func New(e *engine.Engine) *Keeper {
	c := &Keeper{Engine: e}
	e.Renew = c.beatNow
	return c
}

// A Request asks for locks that no process keeps. It has been checked.
type Request struct {
	ID       string
	Names    []string // in byte order, without duplicates
	TTL, For time.Duration
	Slots    int // 0: shared
	Reason   string
	Labels   record.Labels
	Wait     bool
	Owner    record.Owner
	Client   string
}

// A State is the state of a hold, as the store showed it. Package holdfast describes it.
type State struct {
	ID, Client           string
	Names                []string
	Owner                record.Owner
	Claims               []Claim // in the order of Names
	Held, Detached, Sole bool
	Position             int
	TTL                  time.Duration
	Ends, Beat           time.Time
	Nonce                string // of that beat
}

// A Claim is a claim with the name that it is on.
type Claim struct {
	Name string
	record.Claim
}

// A Result is what became of one hold in a call for several.
type Result struct {
	ID   string
	Hold State
	Err  error
}

// Errors of a call for a hold: that of an OtherError, and that of extending a hold that lives by its
// beats.
var (
	ErrOther       = errors.New("the id is that of another hold")
	ErrNotDetached = errors.New("the hold lives by its beats")
)

// An OtherError says how a hold differs from the one that was asked for.
type OtherError struct{ ID, Field string }

func (e *OtherError) Is(target error) bool { return target == ErrOther }

func (e *OtherError) Error() string { return ErrOther.Error() }

// How a hold has ended.
const (
	endReleased = "released"
	endBroken   = "broken"
	endDied     = "died"
	endUnknown  = "unknown"
)

// An OverError says how a hold has ended.
type OverError struct {
	ID, Why, Reason string
	Name            string // of the claim that was broken
	By              record.Owner
}

func (e *OverError) Is(target error) bool { return target == record.ErrLost }

func (e *OverError) Error() string { return e.Reason }

// over is the error of a hold that is over according to its record; nil: it lives.
func over(id string, r *record.Session, absent bool) error {
	e := &OverError{ID: id}
	switch r.Hold(absent) {
	case record.HoldLives:
		return nil
	case record.HoldForeign:
		return &OtherError{id, "id"}
	case record.HoldUnknown:
		e.Why, e.Reason = endUnknown, "the store knows of no such hold"
	case record.HoldMissing:
		e.Why, e.Reason = endDied, "declared missing"
		if s := r.Suspected; s != nil {
			e.Reason += " by " + s.By
		}
	case record.HoldReleased:
		e.Why, e.Reason = endReleased, "released"
	case record.HoldDead:
		e.Why, e.Reason = endDied, "declared dead by "+r.By
		if r.Why != "" {
			e.Reason += " (" + r.Why + ")"
		}
	case record.HoldBroken:
		v := r.Revoked[0]
		e.Why, e.Name, e.By = endBroken, v.Name, v.By
		e.Reason = v.String()
	}
	return e
}
