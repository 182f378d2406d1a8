package holdfast

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// AcquireFor takes a lock that no process keeps alive. It ends by itself at Claim.Ends, or by
// ReleaseToken. Ends is d after the write that detached the lock was sent. If the store answers
// that write so late that more than a tenth of d, or a second, is over, it is sent again, twice at
// most. AcquireFor is for scripts that wrap no command; a program does better with Acquire, whose
// context ends with the lock. d is at least 1s. The options are those of Acquire.
func (c *Client) AcquireFor(ctx context.Context, name string, d time.Duration, opts ...Option) (Claim, error) {
	if d < MinTTL || d > MaxTTL {
		return Claim{}, fmt.Errorf("acquire %q: a hold for %v is not between %v and %v", name, d, MinTTL, MaxTTL)
	}
	got, session, left, err := c.e.AcquireFor(ctx, c.request(ctx, name, opts), d)
	if err != nil {
		return Claim{}, err
	}
	claim := publicClaim(got, name)
	claim.Owner = Owner(c.e.Owner)
	claim.Owner.Session = session
	claim.TTL, claim.Detached, claim.Ends = record.DetachedTTL(d), true, time.Now().Add(left)
	return claim, nil
}

// ReleaseToken releases a lock that was taken with AcquireFor. ErrReleased: the lock had
// already ended, and what was done since was not protected. The lock of a running program is
// refused; that takes Break.
func (c *Client) ReleaseToken(ctx context.Context, name string, token int64) error {
	if err := c.releaseToken(ctx, name, token); err != nil {
		return fmt.Errorf("release %q: %w", name, err)
	}
	c.e.SweepsToo()
	return nil
}

func (c *Client) releaseToken(ctx context.Context, name string, token int64) error {
	if err := base.CheckName(name); err != nil {
		return err
	}
	if c.e.Opts.ReadOnly {
		return base.ErrReadOnly
	}
	recs, err := c.e.Store.Load(ctx, []driver.Key{driver.Names.Key(name)}, driver.Fresh)
	if err != nil {
		return err
	}
	rec, err := base.LockOf(recs[0])
	if err != nil {
		return err
	}
	mine, ok := rec.Holder(record.Token(token))
	if !ok {
		return c.noHold(ctx, name, token)
	}
	ended, err := c.endDetached(ctx, mine.Session, token)
	if err != nil {
		return err
	}
	var removed []record.Eviction
	_, err = c.e.Update(ctx, driver.Names.Key(name), driver.Everyone, func(r driver.Record) ([]byte, error) {
		rec, err := base.LockOf(r)
		if err != nil {
			return nil, err
		}
		c.e.Mu.Lock()
		defer c.e.Mu.Unlock()
		before := rec.Clone()
		if !rec.Settle(c.e.IsDead, time.Now().UnixMicro()) {
			return nil, base.ErrUnchanged
		}
		removed = before.Evicted(&rec, c.e.HasTombstone)
		return rec.Encode(record.Version(r.Version)), nil
	})
	if err != nil {
		return err
	}
	c.e.Mu.Lock()
	c.e.Evicted(name, removed)
	c.e.Unlock()
	if ended {
		return &goneError{claim: Claim{Token: token}}
	}
	e := base.Event{Name: name, Token: token, Slots: mine.Slots, Detached: true}
	if granted := timeOf(mine.GrantedAt()); !granted.IsZero() {
		e.Held = max(time.Since(granted), 0)
	}
	base.Emit(ctx, c.e.Trace.Returned, e)
	return nil
}

// noHold is the error for a token that does not hold a name. The history tells whether it ever did.
func (c *Client) noHold(ctx context.Context, name string, token int64) error {
	h, err := c.History(ctx, name)
	known := err == nil && slices.ContainsFunc(h.Holds, func(p PastHold) bool { return p.Token == token })
	return &goneError{claim: Claim{Token: token}, unknown: !known}
}

// ExtendToken makes a lock that was taken with AcquireFor end d after the extending write was sent,
// and returns the claim with its new Ends. d is at least 1s. ErrReleased: the lock had already
// ended, and nothing was extended. ErrLost: the lock is being broken, and its end is unchanged. The
// lock of a running program is refused: the program renews it itself.
func (c *Client) ExtendToken(ctx context.Context, name string, token int64, d time.Duration) (Claim, error) {
	claim, err := c.extendToken(ctx, name, token, d)
	if err != nil {
		return Claim{}, fmt.Errorf("extend %q: %w", name, err)
	}
	return claim, nil
}

func (c *Client) extendToken(ctx context.Context, name string, token int64, d time.Duration) (Claim, error) {
	if err := base.CheckName(name); err != nil {
		return Claim{}, err
	}
	switch {
	case c.e.Opts.ReadOnly:
		return Claim{}, base.ErrReadOnly
	case d < record.MinTTL || d > record.MaxTTL:
		return Claim{}, fmt.Errorf("a hold for %v is not between %v and %v", d, record.MinTTL, record.MaxTTL)
	}
	recs, err := c.e.Store.Load(ctx, []driver.Key{driver.Names.Key(name)}, driver.Fresh)
	if err != nil {
		return Claim{}, err
	}
	rec, err := base.LockOf(recs[0])
	if err != nil {
		return Claim{}, err
	}
	mine, ok := rec.Holder(record.Token(token))
	if !ok {
		return Claim{}, c.noHold(ctx, name, token)
	}
	nonce := c.e.NewNonce()
	first, sent := lease.Never, lease.Never // before the first and the latest write: an unanswered one may be the one that stands
	_, err = c.e.Update(ctx, driver.Sessions.Key(mine.Session), driver.Everyone, func(r driver.Record) ([]byte, error) {
		s, err := record.DecodeSession(r.Value)
		if err != nil {
			return nil, err
		}
		if len(s.Revoked) > 0 && s.Dead == 0 { // the breaker waits for its end
			return nil, &LostError{Name: name, Token: token, Reason: s.Revoked[0].String()}
		}
		switch s.ExtendToken(len(r.Value) == 0, r.Age, d, nonce, base.Clocks()) {
		case record.ReleaseRunning:
			return nil, fmt.Errorf("token %d belongs to a running program, %s, which renews it itself", token, s.Owner)
		case record.ReleaseAgain:
			sent = first
			return nil, base.ErrUnchanged
		case record.ReleaseOver, record.ReleaseLate:
			return nil, &goneError{claim: Claim{Token: token}}
		}
		if sent = c.e.Now(); first == lease.Never {
			first = sent
		}
		return s.Encode(), nil
	})
	if err != nil {
		return Claim{}, err
	}
	claim, err := c.holder(ctx, name, token)
	if err != nil {
		return Claim{}, err
	}
	left := d - c.e.Now().Sub(sent)
	if left <= 0 {
		return Claim{}, &goneError{claim: claim}
	}
	claim.Ends = time.Now().Add(left)
	return claim, nil
}

// endDetached writes the tombstone of the session of a detached hold, and reports whether the
// hold had ended before.
func (c *Client) endDetached(ctx context.Context, session string, token int64) (ended bool, err error) {
	var tomb record.Session
	var age time.Duration
	_, err = c.e.Update(ctx, driver.Sessions.Key(session), driver.Everyone, func(r driver.Record) ([]byte, error) {
		s, err := record.DecodeSession(r.Value)
		if err != nil {
			return nil, err
		}
		out := s.ReleaseToken(len(r.Value) == 0, r.Age, c.e.Owner.String(), base.Clocks())
		tomb, age = s, r.Age
		switch out {
		case record.ReleaseRunning:
			return nil, fmt.Errorf("token %d belongs to a running program, %s: it gives it back itself, or break it", token, s.Owner)
		case record.ReleaseAgain:
			return nil, base.ErrUnchanged
		case record.ReleaseOver:
			ended = true
			return nil, base.ErrUnchanged
		}
		ended, age = out == record.ReleaseLate, -1
		return s.Encode(), nil
	})
	switch {
	case err != nil:
		return false, err
	case tomb.Dead == 0:
		return true, &goneError{claim: Claim{Token: token}} // without a record it is observed as others are
	}
	c.e.KnowDead(session, tomb, age)
	return ended, nil
}
