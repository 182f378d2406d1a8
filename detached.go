package holdfast

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"

	"github.com/holdfast-lock/holdfast/driver"
)

// AcquireFor takes a lock that no process keeps alive: it ends by itself at
// Claim.Ends, or by ReleaseToken. Ends is d after the write that left the lock alone
// was sent: at most a tenth of d, and a second, before d from now. AcquireFor is for
// scripts that wrap no command; a program does better with Acquire, whose context
// ends with the lock. d is at least 1s. The options are those of Acquire.
func (c *Client) AcquireFor(ctx context.Context, name string, d time.Duration, opts ...Option) (Claim, error) {
	if d < MinTTL || d > MaxTTL {
		return Claim{}, fmt.Errorf("acquire %q: a hold for %v is not between %v and %v", name, d, MinTTL, MaxTTL)
	}
	if r := c.newRequest(ctx, name, opts); r.least > 0 {
		return Claim{}, fmt.Errorf("acquire %q: %w", name, errNoMinHold)
	}
	c.mu.Lock()
	closing := c.end.closing
	c.mu.Unlock()
	if closing {
		return Claim{}, fmt.Errorf("acquire %q: %w", name, ErrClosed)
	}
	settings := c.opts
	settings.RuntimeDir = os.DevNull // its process may end
	sub, err := New(c.bare(), &settings)
	if err != nil {
		return Claim{}, err
	}
	sub.detaches = true
	l, err := sub.Acquire(ctx, name, opts...)
	if err != nil {
		sub.Close()
		return Claim{}, err
	}
	claim := l.claim()
	left, err := l.sess.leaveAlone(ctx, d)
	if err != nil {
		l.Release(context.WithoutCancel(ctx))
		sub.Close()
		return Claim{}, fmt.Errorf("acquire %q for %v: %w", name, d, err)
	}
	claim.Owner = Owner(sub.owner)
	claim.Owner.Session = l.sess.id
	claim.TTL, claim.Detached, claim.Ends = core.DetachedTTL(d), true, time.Now().Add(left)
	sub.halt()
	return claim, nil
}

// leaveAlone sends the session's last heartbeat, which keeps it for d, and ends
// nothing in the store. An answer that comes late leaves less than d: then one more
// is sent. It returns how much is left.
func (s *session) leaveAlone(ctx context.Context, d time.Duration) (left time.Duration, err error) {
	c := s.c
	for range 3 {
		c.mu.Lock()
		s.life.Detach(d)
		s.alone = make(chan struct{})
		alone := s.alone
		c.mu.Unlock()
		signal(s.wake)
		select {
		case <-alone:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-s.idle:
		}
		if left = s.left(); left >= d-min(d/10, time.Second) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.life.Over() || left <= 0 {
		return 0, errors.New("lost: " + s.life.Why())
	}
	s.life.End()
	close(s.ended)
	return left, nil
}

// ReleaseToken gives back a lock that was taken with AcquireFor. ErrReleased: it
// had ended, and what was done since was not protected. The lock of a running
// program is refused; that takes Break.
func (c *Client) ReleaseToken(ctx context.Context, name string, token int64) error {
	if err := c.releaseToken(ctx, name, token); err != nil {
		return fmt.Errorf("release %q: %w", name, err)
	}
	return nil
}

func (c *Client) releaseToken(ctx context.Context, name string, token int64) error {
	if err := checkName(name); err != nil {
		return err
	}
	if c.opts.ReadOnly {
		return ErrReadOnly
	}
	gone := &goneError{Claim{Token: token}}
	recs, err := c.store.Load(ctx, []driver.Key{driver.Names.Key(name)}, driver.Fresh)
	if err != nil {
		return err
	}
	rec, err := lockOf(recs[0])
	if err != nil {
		return err
	}
	mine, ok := rec.Holder(core.Token(token))
	if !ok {
		return gone
	}
	ended, err := c.endDetached(ctx, mine.Session, token)
	if err != nil {
		return err
	}
	var removed []core.Eviction
	_, err = c.update(ctx, driver.Names.Key(name), driver.Everyone, func(r driver.Record) ([]byte, error) {
		rec, err := lockOf(r)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		before := rec.Clone()
		if !rec.Settle(c.isDead, time.Now().UnixMicro()) {
			return nil, errUnchanged
		}
		removed = before.Evicted(&rec, c.buried)
		return rec.Encode(core.Version(r.Version)), nil
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.evicted(name, removed)
	c.mu.Unlock()
	if ended {
		return gone
	}
	e := Event{Name: name, Token: token, Slots: mine.Slots, Detached: true}
	if granted := timeOf(mine.GrantedAt()); !granted.IsZero() {
		e.Held = max(time.Since(granted), 0)
	}
	emit(ctx, c.trace.Released, e)
	return nil
}

// endDetached writes the tombstone of the session of a detached hold, and reports whether the
// hold had ended before.
func (c *Client) endDetached(ctx context.Context, session string, token int64) (ended bool, err error) {
	var tomb core.SessionRecord
	var age time.Duration
	_, err = c.update(ctx, driver.Sessions.Key(session), driver.Everyone, func(r driver.Record) ([]byte, error) {
		s, err := core.DecodeSession(r.Value)
		if err != nil {
			return nil, err
		}
		out := s.ReleaseToken(len(r.Value) == 0, r.Age, c.owner.String(), clocks())
		tomb, age = s, r.Age
		switch out {
		case core.ReleaseRunning:
			return nil, fmt.Errorf("token %d belongs to a running program, %s: it gives it back itself, or break it", token, s.Owner)
		case core.ReleaseAgain:
			return nil, errUnchanged
		case core.ReleaseOver:
			ended = true
			return nil, errUnchanged
		}
		ended, age = out == core.ReleaseLate, -1
		return s.Encode(), nil
	})
	switch {
	case err != nil:
		return false, err
	case tomb.Dead == 0:
		return true, &goneError{Claim{Token: token}} // without a record it is observed as others are
	}
	c.knowDead(session, tomb, age)
	return ended, nil
}
