package holdfast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Break ends by force the claim with this token, as Show and the command show it, and no other. If
// goroutines of a process share the claim, or follow each other in it, then the claim's token is
// that of the first of them, and all who hold by the claim lose. The revocation is written
// into the holder's session record, so that no heartbeat of the session can succeed
// without having read it. Then the holder's context ends and the holder releases the
// lock. Break returns when the claim is gone: the holder has released it, or Break has removed
// it, because its session is dead or a TTL has passed since the revocation was read; both after
// the grace, if there is one. Exclusion stands throughout. The claim is removed together with an
// audit entry.
// ErrReleased: the hold had already ended.
func (c *Client) Break(ctx context.Context, name string, token int64, reason string) error {
	return c.breakHolder(ctx, name, token, reason, false)
}

// BreakNow is Break without the wait: if the holder still runs, only the fence protects
// from then on.
func (c *Client) BreakNow(ctx context.Context, name string, token int64, reason string) error {
	return c.breakHolder(ctx, name, token, reason, true)
}

// BreakWaiter ends a waiting claim, one of the waiters that Show returned: it has no
// token yet. If it has been granted since, it is broken like that of a holder.
func (c *Client) BreakWaiter(ctx context.Context, waiter Claim, reason string) error {
	return c.BreakClaim(ctx, waiter, BreakOptions{Reason: reason})
}

// BreakOptions say how a claim is broken.
type BreakOptions struct {
	Reason string // shown to its holder and kept; between 1 and 200 bytes
	Now    bool   // do not wait for the holder, like BreakNow
	By     Owner  // on whose behalf, for the record; without Name, Host and User: this client's owner
}

// BreakClaim ends by force a claim that Show returned: that of a holder as Break does,
// that of a waiter as BreakWaiter does.
func (c *Client) BreakClaim(ctx context.Context, claim Claim, opts BreakOptions) error {
	by := Owner(c.e.Owner)
	if opts.By.Name != "" || opts.By.Host != "" || opts.By.User != "" {
		by = opts.By
		by.Session, by.Labels = "", maps.Clone(by.Labels)
		if err := (&Options{Owner: by}).check(); err != nil {
			return fmt.Errorf("break %q: %w", claim.Name, err)
		}
	}
	if err := c.breakClaim(ctx, claim, by, opts.Reason, opts.Now); err != nil {
		return fmt.Errorf("break %q: %w", claim.Name, err)
	}
	return nil
}

func (c *Client) breakHolder(ctx context.Context, name string, token int64, reason string, atOnce bool) error {
	err := checkReason(reason)
	if err == nil && c.e.Opts.ReadOnly {
		err = ErrReadOnly
	}
	if err == nil {
		var claim Claim
		if claim, err = c.holder(ctx, name, token); err == nil {
			err = c.breakClaim(ctx, claim, Owner(c.e.Owner), reason, atOnce)
		}
	}
	if err != nil {
		return fmt.Errorf("break %q: %w", name, err)
	}
	return nil
}

// checkReason refuses a reason that cannot be kept.
func checkReason(reason string) error {
	switch {
	case reason == "":
		return errors.New("needs a reason")
	case len(reason) > record.MaxReason:
		return fmt.Errorf("reason has %d bytes, at most %d", len(reason), record.MaxReason)
	}
	return nil
}

// holder returns the claim that holds with this token, or ErrReleased if there is none.
func (c *Client) holder(ctx context.Context, name string, token int64) (Claim, error) {
	info, err := c.Show(ctx, name)
	if err != nil {
		return Claim{}, err
	}
	for _, h := range info.Holders {
		if h.Token == token {
			return h, nil
		}
	}
	return Claim{}, &goneError{claim: Claim{Token: token}}
}

func (c *Client) breakClaim(ctx context.Context, claim Claim, by Owner, reason string, atOnce bool) error {
	if c.e.Opts.ReadOnly {
		return ErrReadOnly
	}
	if err := checkReason(reason); err != nil {
		return err
	}
	if err := (driver.Names.Key(claim.Name)).Check(); err != nil {
		return err
	}
	if claim.nr == 0 { // it was put together from its fields
		session, nr, ok := strings.Cut(claim.ID, "-")
		n, err := strconv.ParseInt(nr, 10, 64)
		if !ok || err != nil || n <= 0 || session == "" || !strings.HasPrefix(claim.Owner.Session, session) {
			return fmt.Errorf("%q is not the id of a claim of session %q", claim.ID, claim.Owner.Session)
		}
		claim.nr = n
	}
	entry := record.Break{Session: claim.Owner.Session, Nr: claim.nr, Was: record.Owner(claim.Owner), By: record.Owner(by), Reason: reason, At: time.Now().UnixMicro(), Now: atOnce}
	b := lease.NewBreaker(claim.Name, entry, record.Token(claim.Token))
	var changed chan struct{}
	for {
		if b.Waits() && changed == nil {
			changed = make(chan struct{}, 1)
			defer c.e.Subscribe(changed, driver.Names.Key(claim.Name), driver.Sessions.Key(entry.Session))()
		}
		step, pause := b.Next(c.e.Now())
		var err error
		switch step {
		case lease.BreakDone:
			base.Emit(ctx, c.e.Trace.Broken, base.Event{Name: claim.Name, Token: claim.Token, Slots: claim.Slots, Session: entry.Session, Reason: reason})
			c.e.CopyAudit(ctx, claim.Name)
			return nil
		case lease.BreakGone:
			return &goneError{claim: claim}
		case lease.BreakPause:
			if !c.e.Doze(ctx, changed, pause) {
				why := context.Cause(ctx)
				if why == nil {
					why = ErrClosed
				}
				return fmt.Errorf("%w: %s was asked to stop but has not let go yet", why, claim.Owner)
			}
			b.Rested()
		default:
			err = c.breakStep(ctx, b, step, claim.Name)
		}
		if err != nil {
			return err
		}
	}
}

// breakStep performs a step of a break and reports it.
func (c *Client) breakStep(ctx context.Context, b *lease.Breaker, step lease.BreakKind, name string) error {
	entry := b.Entry()
	switch step {
	case lease.BreakLook:
		return c.lookForBreak(ctx, b, name)
	case lease.BreakRevoke:
		sent, err := c.sendRevocation(ctx, b, entry.Session)
		if err != nil {
			return unanswered(b, err)
		}
		b.Revoked(sent, c.e.Now())
	case lease.BreakObserve:
		return c.observeForBreak(ctx, b, name)
	case lease.BreakGrace:
		if err := c.awaitGrace(ctx, entry.Session); err != nil {
			return err
		}
		b.Rested()
	case lease.BreakRemove:
		return c.removeClaim(ctx, b, name)
	case lease.BreakTrace:
		return c.traceBreak(ctx, b, name)
	case lease.BreakAudit:
		if err := c.e.KeepAudit(ctx, name, []record.Break{entry}); err != nil {
			return err
		}
		b.Rested()
	}
	return nil
}

// unanswered reports an unanswered call. The error that it returns, if any, ends the break.
func unanswered(b *lease.Breaker, err error) error {
	if b.Unanswered() {
		return nil
	}
	return err
}

type goneError struct {
	claim   Claim
	unknown bool // it may never have been there
}

func (e *goneError) Is(target error) bool {
	return target == ErrReleased || e.unknown && target == ErrNoSuchHold
}

func (e *goneError) Error() string {
	if e.unknown {
		return fmt.Sprintf("token %d does not hold it, and is not known to have", e.claim.Token)
	}
	if e.claim.Token != 0 {
		return fmt.Sprintf("token %d has let go already", e.claim.Token)
	}
	return fmt.Sprintf("claim %s has let go already", e.claim.ID)
}

func (c *Client) lookForBreak(ctx context.Context, b *lease.Breaker, name string) error {
	recs, err := c.e.Store.Load(ctx, []driver.Key{driver.Names.Key(name)}, driver.Fresh)
	if err != nil {
		return unanswered(b, err)
	}
	rec, err := base.LockOf(recs[0])
	if err != nil {
		return err
	}
	b.Saw(&rec)
	return nil
}

// sendRevocation writes into a session's record that one of its claims is broken.
func (c *Client) sendRevocation(ctx context.Context, b *lease.Breaker, session string) (sent bool, err error) {
	_, err = c.e.Update(ctx, driver.Sessions.Key(session), session, func(r driver.Record) ([]byte, error) {
		rec, err := record.DecodeSession(r.Value)
		if err != nil {
			return nil, err
		}
		write := false
		if sent, write, err = b.Revoke(&rec, len(r.Value) == 0, r.Age); err != nil {
			return nil, err
		}
		if !write {
			return nil, base.ErrUnchanged
		}
		return rec.Encode(), nil
	})
	return sent && err == nil, err
}

// observeForBreak looks at the session whose claim is broken, and whether it is dead.
func (c *Client) observeForBreak(ctx context.Context, b *lease.Breaker, name string) error {
	session := b.Entry().Session
	looks, err := c.e.LoadSessions(ctx, []string{session})
	if err != nil {
		return unanswered(b, err)
	}
	s := looks[session]
	if died := c.e.Detect(ctx, looks, name); died || c.e.KnownDead(session) {
		b.Observed(lease.Sighting{}, true)
		return nil
	}
	rec, err := record.DecodeSession(s.Rec.Value)
	if err != nil {
		return err
	}
	b.Observed(lease.Sighting{Record: rec, Absent: len(s.Rec.Value) == 0, Asked: s.Asked, Got: s.Got}, false)
	return nil
}

// awaitGrace waits until the claims of a dead session are void.
func (c *Client) awaitGrace(ctx context.Context, session string) error {
	c.e.Mu.Lock()
	from, ok := c.e.Deaths.Tombstone(session)
	wait := from.Sub(c.e.Now())
	c.e.Mu.Unlock()
	if !ok || wait <= 0 {
		return nil
	}
	t := c.e.Machine.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// removeClaim takes a claim out of a record, with its audit entry in the same write.
func (c *Client) removeClaim(ctx context.Context, b *lease.Breaker, name string) error {
	var r lease.Removal
	var gone []record.Eviction
	_, err := c.e.Update(ctx, driver.Names.Key(name), driver.Everyone, func(stored driver.Record) ([]byte, error) {
		rec, err := base.LockOf(stored)
		if err != nil {
			return nil, err
		}
		c.e.Mu.Lock()
		before := rec.Clone()
		r = b.Remove(&rec, c.e.IsDead, time.Now().UnixMicro())
		gone = before.Evicted(&rec, c.e.HasTombstone)
		c.e.Mu.Unlock()
		if r != lease.Removed {
			return nil, base.ErrUnchanged
		}
		return rec.Encode(record.Version(stored.Version)), nil
	})
	if err == nil {
		b.Removed(r, c.e.Now())
		c.e.Mu.Lock()
		c.e.Evicted(name, gone)
		c.e.Unlock()
	}
	return err
}

// traceBreak finds out how a claim ended that another client has removed.
func (c *Client) traceBreak(ctx context.Context, b *lease.Breaker, name string) error {
	session := b.Entry().Session
	recs, err := c.e.Store.Load(ctx, []driver.Key{driver.Names.Key(name), driver.Audits.Key(name), driver.Sessions.Key(session)}, driver.Fresh)
	if err != nil {
		return err
	}
	rec, err := base.LockOf(recs[0])
	if err != nil {
		return err
	}
	audit, err := record.DecodeAudit(recs[1].Value)
	if err != nil {
		return err
	}
	tomb, err := record.DecodeSession(recs[2].Value)
	b.Traced(&rec, audit, c.e.KnownDead(session) || err == nil && b.DiedOf(tomb))
	return nil
}
