package holdfast

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/internal/holds"
	"github.com/holdfast-lock/holdfast/internal/printable"
)

// Errors to branch on, with errors.Is. The caller's own ctx.Err() and the
// store's errors stay in the chain.
var (
	// ErrHeld: the lock was not obtained because others hold it or wait before
	// us. The error is a *HeldError, which names them.
	ErrHeld = base.ErrHeld
	// ErrLost: the lock was held and no longer is, without Release. It is final. The error of
	// a lock is a *LostError, which says why. Other errors that are ErrLost: a waiting claim was
	// broken, a hold is over (an *OverError), or a fence or a TokenGate refused a token.
	ErrLost = record.ErrLost
	// ErrReleased: the lock, or the claim to be broken, has been released.
	ErrReleased = base.ErrReleased
	// ErrNoSuchHold: neither the record nor the history of the name shows that the token held it.
	// The error is also ErrReleased.
	ErrNoSuchHold = errors.New("no such hold")
	// ErrClosed: the client is closed.
	ErrClosed = base.ErrClosed
	// ErrReadOnly: the client has Options.ReadOnly. Nothing was written.
	ErrReadOnly = base.ErrReadOnly
)

// A HeldError says who was in the way. errors.Is(err, ErrHeld) holds for it.
type HeldError struct {
	Name    string
	Holders []Claim // in order of their grant
	Waiters []Claim // those who wait before us, first come first
	// Self is set if this very client holds the name, which is not reentrant.
	Self bool
	// Locked is set if a transaction in the database keeps the name's record locked: a
	// fence before its commit, or a transaction that was prepared. Until it ends nobody
	// can take the lock or give it back.
	Locked bool
	// Full is set if a request that would wait, or hold beside others, was refused because the
	// record of the name has no more room. That is so with about 3,000 claims, and earlier with
	// long reasons and labels.
	Full bool
	Err  error // nil, or the ctx.Err() that ended the wait
}

// public turns an error that names claims by their records into one that a user can read.
func public(err error) error {
	switch e := err.(type) {
	case *engine.Held:
		return publicHeld(e)
	case *holds.OtherError:
		return &OtherHoldError{e.ID, e.Field}
	case *holds.OverError:
		return &OverError{e.ID, HoldEnd(e.Why), e.Reason, e.Name, Owner(e.By)}
	}
	if err == holds.ErrNotDetached {
		return &RequestError{"for", err}
	}
	return err
}

func publicHeld(h *engine.Held) *HeldError {
	e := &HeldError{Name: h.Name, Self: h.Self, Locked: h.Locked, Full: h.Full, Err: h.Err}
	for _, cl := range h.Holders {
		e.Holders = append(e.Holders, publicClaim(cl, h.Name))
	}
	for _, cl := range h.Waiters {
		e.Waiters = append(e.Waiters, publicClaim(cl, h.Name))
	}
	if h.Looks != nil {
		fill(h.C, h.Looks, e.Holders, e.Waiters)
	}
	return e
}

func (e *HeldError) Is(target error) bool { return target == ErrHeld }

func (e *HeldError) Unwrap() error { return e.Err }

func (e *HeldError) Error() string {
	var b strings.Builder
	if e.Err != nil {
		fmt.Fprintf(&b, "%v: ", e.Err)
	}
	switch {
	case e.Self && len(e.Holders) > 0 && e.Holders[0].Slots != 1:
		fmt.Fprintf(&b, "held by this process%s", e.Holders[0].heldFor())
		if more := len(e.Holders) - 1; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
	case e.Self && len(e.Holders) > 0:
		b.WriteString("held by this process" + e.Holders[0].heldFor() + " (locks are not reentrant)")
	case len(e.Holders) > 0 && e.Holders[0].Kept:
		fmt.Fprintf(&b, "kept until %s, %s has released it", e.Holders[0].KeptUntil.Format(time.TimeOnly), printable.Escape(e.Holders[0].Owner.String()))
	case len(e.Holders) > 0:
		b.WriteString("held by " + printable.Escape(e.Holders[0].Owner.String()) + e.Holders[0].heldFor() + e.Holders[0].life())
		if more := len(e.Holders) - 1; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
		if e.Holders[0].Reason != "" {
			b.WriteString(": " + printable.Escape(e.Holders[0].Reason))
		}
	default:
		b.WriteString("held")
	}
	if len(e.Waiters) > 0 {
		fmt.Fprintf(&b, ", %d waiting before us", len(e.Waiters))
	}
	if e.Full {
		b.WriteString("; the queue is full")
	}
	if e.Locked {
		b.WriteString("; a transaction in the database keeps its record locked")
	}
	return b.String()
}

// heldFor is " for 2s", the time since the grant, or "" if that is not known.
func (c Claim) heldFor() string {
	if c.Granted.IsZero() {
		return ""
	}
	return " for " + record.Short(time.Since(c.Granted))
}

// life says how long ago a claim's session sent a heartbeat, and how long it may be silent.
func (c Claim) life() string {
	switch {
	case c.Detached || c.Dead || c.TTL <= 0:
		return ""
	case !c.KeptUntil.IsZero():
		return " and at least until " + c.KeptUntil.Format(time.TimeOnly)
	case c.BeatAge < 0:
		return fmt.Sprintf(" (TTL %s)", record.Short(c.TTL))
	}
	return fmt.Sprintf(" (last heartbeat %s ago, TTL %s)", record.Short(c.BeatAge), record.Short(c.TTL))
}

// A LostError says how a lock was lost. errors.Is(err, ErrLost) holds for it.
type LostError struct {
	Name   string // of the lock, or of what a lease of package state or claims is for
	Token  int64  // 0: it has none
	Reason string // for people: nothing is decided on it
	Err    error  // what kept the heartbeats from being answered, or nil
}

func (e *LostError) Is(target error) bool { return target == ErrLost }

func (e *LostError) Unwrap() error { return e.Err }

func (e *LostError) Error() string {
	s := e.Cause()
	switch {
	case e.Token != 0:
		return fmt.Sprintf("%q (token %d) lost: %s", e.Name, e.Token, s)
	case e.Name != "":
		return fmt.Sprintf("%q lost: %s", e.Name, s)
	}
	return "lost: " + s
}

// Cause is the reason with the error behind it, without what was lost.
func (e *LostError) Cause() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Err.Error()
}
