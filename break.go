package holdfast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// Break ends a claim by force: exactly the one that was seen, holding or
// waiting. A holder is told through its session, so that no heartbeat of it can
// succeed without having read it; its context ends, it gives the lock back, and
// Break returns when it has, or when its session is dead (at most its TTL).
// Exclusion stands throughout. The claim goes together with an audit entry.
// ErrReleased: it had gone already.
func (c *Client) Break(ctx context.Context, claim Claim, reason string) error {
	if err := c.breakClaim(ctx, claim, reason, false); err != nil {
		return fmt.Errorf("break %q: %w", claim.Name, err)
	}
	return nil
}

// BreakNow is Break that does not wait: if the holder still runs, only the
// fence protects from then on.
func (c *Client) BreakNow(ctx context.Context, claim Claim, reason string) error {
	if err := c.breakClaim(ctx, claim, reason, true); err != nil {
		return fmt.Errorf("break %q: %w", claim.Name, err)
	}
	return nil
}

var (
	errGone  = errors.New("gone")
	errHolds = errors.New("holds")
)

func (c *Client) breakClaim(ctx context.Context, claim Claim, reason string, atOnce bool) error {
	switch {
	case reason == "":
		return errors.New("needs a reason")
	case len(reason) > core.MaxReason:
		return fmt.Errorf("reason has %d bytes, at most %d", len(reason), core.MaxReason)
	}
	if err := (Key{Names, claim.Name}).Check(); err != nil {
		return err
	}
	session, nr := claim.Owner.Session, claim.nr
	held, rec, err := c.findClaim(ctx, claim)
	if err != nil {
		return err
	}
	entry := core.Break{Session: session, Nr: nr, Was: core.Owner(claim.Owner), By: c.owner, Reason: reason, At: time.Now().UnixMicro(), Now: atOnce}
	entry.Was.Session = session
	if entry.Token = rec.Token; claim.Token != 0 && !rec.Has(core.Token(claim.Token)) {
		return &goneError{claim}
	}
	told, err := c.sendRevocation(ctx, claim, entry)
	if err != nil {
		return err
	}
	removed := false
	for {
		if held && !atOnce {
			if err := c.awaitLeave(ctx, claim, entry, told); err != nil {
				return err
			}
		}
		removed, err = c.removeClaim(ctx, claim.Name, entry, held || atOnce)
		if !errors.Is(err, errHolds) {
			break
		}
		held = true // it was granted meanwhile
	}
	if err != nil {
		return err
	}
	if !removed {
		if err := c.wasBroken(ctx, claim, entry); err != nil {
			return err
		}
	}
	c.copyAudit(ctx, claim.Name)
	return nil
}

// wasBroken looks how a claim went that another has removed: its holder,
// because it was told to, which left the audit entry; or whoever found its
// session dead, and then the entry is still to be written; or its holder
// without having been told, and then nothing was broken.
func (c *Client) wasBroken(ctx context.Context, claim Claim, entry core.Break) error {
	recs, err := c.store.Load(ctx, []Key{{Names, claim.Name}, {Audits, claim.Name}})
	if err != nil {
		return err
	}
	lock, err := lockOf(recs[0])
	if err != nil {
		return err
	}
	audit, err := decodeAudit(recs[1].Value)
	if err != nil {
		return err
	}
	if len(withoutBreaks([]core.Break{entry}, slices.Concat(lock.Breaks, audit))) == 0 {
		return nil
	}
	if !c.knownDead(entry.Session) {
		return &goneError{claim}
	}
	return c.keepAudit(ctx, claim.Name, []core.Break{entry})
}

// keepAudit adds entries to a name's audit record.
func (c *Client) keepAudit(ctx context.Context, name string, breaks []core.Break) error {
	_, err := c.update(ctx, Key{Audits, name}, "", func(r Record) ([]byte, error) {
		kept, err := decodeAudit(r.Value)
		if err != nil {
			return nil, err
		}
		return json.Marshal(mergeBreaks(kept, breaks))
	})
	return err
}

type goneError struct{ claim Claim }

func (e *goneError) Is(target error) bool { return target == ErrReleased }

func (e *goneError) Error() string {
	if e.claim.Token != 0 {
		return fmt.Sprintf("token %d has let go already", e.claim.Token)
	}
	return fmt.Sprintf("claim %s has let go already", e.claim.ID)
}

// findClaim loads a claim and says whether it holds.
func (c *Client) findClaim(ctx context.Context, claim Claim) (held bool, cl core.Claim, err error) {
	recs, err := c.store.Load(ctx, []Key{{Names, claim.Name}})
	if err != nil {
		return false, cl, err
	}
	rec, err := lockOf(recs[0])
	if err != nil {
		return false, cl, err
	}
	cl, held, ok := rec.Find(claim.Owner.Session, claim.nr)
	if !ok {
		return false, cl, &goneError{claim}
	}
	return held, cl, nil
}

// sendRevocation writes into the session that one of its claims is broken. It
// reports false if the session has no record to write into: a first claim may be
// seen before its session.
func (c *Client) sendRevocation(ctx context.Context, claim Claim, entry core.Break) (told bool, err error) {
	told = true
	_, err = c.update(ctx, Key{Sessions, claim.Owner.Session}, claim.Owner.Session, func(r Record) ([]byte, error) {
		rec, err := core.DecodeSession(r.Value)
		if err != nil {
			return nil, err
		}
		if told = len(r.Value) > 0; !told || rec.Dead != 0 {
			return nil, errGone
		}
		for _, v := range rec.Revoked {
			if v.Name == claim.Name && v.Nr == entry.Nr { // by us, or by another who breaks it
				return r.Value, nil
			}
		}
		rec.Revoked = append(rec.Revoked, core.Revocation{Name: claim.Name, Nr: entry.Nr, By: entry.By.Bounded(), Reason: entry.Reason, At: entry.At})
		value := rec.Encode()
		if len(value) > core.MaxRecord {
			return nil, fmt.Errorf("%d breaks of locks of %s have not been read by it yet: try again", len(rec.Revoked)-1, claim.Owner)
		}
		return value, nil
	})
	if errors.Is(err, errGone) {
		err = nil
	}
	return told && err == nil, err
}

// awaitLeave waits until a revoked claim has left, or may be removed: its
// session is dead, or has read the revocation a TTL ago, so that its belief
// ended long since. A session that could not be told yet is told once it is
// there; if it never comes it is judged like a dead one.
func (c *Client) awaitLeave(ctx context.Context, claim Claim, entry core.Break, told bool) error {
	session, nr := claim.Owner.Session, entry.Nr
	hint := make(chan struct{}, 1)
	defer c.subscribe(hint, Key{Names, claim.Name}, Key{Sessions, session})()
	began := c.now()
	absentSince := core.Never
	for {
		recs, err := c.store.Load(ctx, []Key{{Names, claim.Name}})
		if err == nil {
			rec, err := lockOf(recs[0])
			if err != nil {
				return err
			}
			if _, _, ok := rec.Find(session, nr); !ok {
				return nil
			}
			if !told {
				told, err = c.sendRevocation(ctx, claim, entry)
			}
			looks := map[string]sighting(nil)
			if err == nil {
				looks, err = c.loadSessions(ctx, []string{session})
			}
			if err == nil {
				s := looks[session]
				if c.judgeAll(ctx, looks, claim.Name) {
					return c.awaitGrace(ctx, session)
				}
				if c.knownDead(session) {
					return c.awaitGrace(ctx, session)
				}
				sess, err := core.DecodeSession(s.rec.Value)
				if err != nil {
					return err
				}
				ttl := max(time.Duration(sess.TTL)*time.Millisecond, MinTTL)
				read := told && len(sess.Revoked) == 0 && len(s.rec.Value) > 0
				if read && absentSince == core.Never {
					absentSince = s.got
				}
				if read && s.asked.Sub(absentSince) >= ttl+time.Duration(sess.Grace)*time.Millisecond {
					return nil
				}
			}
		}
		if !c.doze(ctx, hint, min(firstPoll+c.now().Sub(began)/8, lastPoll/2)) {
			why := context.Cause(ctx)
			if why == nil {
				why = ErrClosed
			}
			return fmt.Errorf("%w: %s has been told to stop but has not let go yet", why, claim.Owner)
		}
	}
}

func (c *Client) awaitGrace(ctx context.Context, session string) error {
	c.mu.Lock()
	from, ok := c.deaths.Tombstone(session)
	wait := from.Sub(c.now())
	c.mu.Unlock()
	if !ok || wait <= 0 {
		return nil
	}
	t := c.machine.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// removeClaim takes a claim out of a record, with its audit entry in the same
// write. It reports false if it had gone, and errHolds if it holds and may not
// be removed from there.
func (c *Client) removeClaim(ctx context.Context, name string, entry core.Break, mayHold bool) (removed bool, err error) {
	_, err = c.update(ctx, Key{Names, name}, Everyone, func(r Record) ([]byte, error) {
		removed = false
		rec, err := lockOf(r)
		if err != nil {
			return nil, err
		}
		cl, holds, ok := rec.Find(entry.Session, entry.Nr)
		switch {
		case !ok:
			return nil, errGone
		case holds && !mayHold:
			return nil, errHolds
		}
		rec.Drop(func(cl core.Claim) bool { return cl.Is(entry.Session, entry.Nr) })
		entry.Token = cl.Token
		rec.AddBreak(entry)
		c.mu.Lock()
		rec.Settle(c.isDead)
		c.mu.Unlock()
		removed = true
		return rec.Encode(core.Version(r.Version)), nil
	})
	if errors.Is(err, errGone) {
		err = nil
	}
	return removed, err
}

// copyAudit moves audit entries from a lock record to the audit space, so that
// the record can become empty again. Anyone may; what fails is done later.
func (c *Client) copyAudit(ctx context.Context, name string) error {
	recs, err := c.store.Load(ctx, []Key{{Names, name}})
	if err != nil {
		return err
	}
	rec, err := lockOf(recs[0])
	if err != nil || len(rec.Breaks) == 0 {
		return err
	}
	if err := c.keepAudit(ctx, name, rec.Breaks); err != nil {
		return err
	}
	copied := rec.Breaks
	_, err = c.update(ctx, Key{Names, name}, "", func(r Record) ([]byte, error) {
		rec, err := lockOf(r)
		if err != nil {
			return nil, err
		}
		n := len(rec.Breaks)
		rec.Breaks = withoutBreaks(rec.Breaks, copied)
		c.mu.Lock()
		settled := rec.Settle(c.isDead)
		c.mu.Unlock()
		if len(rec.Breaks) == n && !settled {
			return nil, errGone
		}
		return rec.Encode(core.Version(r.Version)), nil
	})
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

func withoutBreaks(breaks, copied []core.Break) (left []core.Break) {
	for _, b := range breaks {
		known := false
		for _, k := range copied {
			known = known || k.Session == b.Session && k.Nr == b.Nr
		}
		if !known {
			left = append(left, b)
		}
	}
	return left
}
