package holdfast

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

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
		err := c.e.EachPage(ctx, driver.Sessions, after, func(ids []string) error {
			looks, err := c.e.LoadSessions(ctx, ids)
			if err != nil {
				return err
			}
			for _, id := range ids {
				s, ok := c.publicSession(id, looks[id].Rec)
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
	looks, err := c.e.LoadSessions(ctx, []string{id})
	if err != nil {
		return Session{}, false, fmt.Errorf("session %q: %w", id, err)
	}
	s, ok = c.publicSession(id, looks[id].Rec)
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
	s.Dead = s.Dead || rec.EndedAlone(s.BeatAge, 0, base.Clocks()) || !rec.Detached && c.e.Proof.Gone(id)
	return s, true
}
