package explore

import (
	"errors"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// How far the shutdown of a client has come.
type shut int8

const (
	open   shut = iota
	drains      // what is held stays held, and nothing is asked for
	parts       // its claims are given back
)

var errClosed = errors.New("closed")

// shutdowns are what a client does to shut down: it refuses waiting requests, drains, gives back
// its claims, and ends its session. It may stop waiting for its claims to be gone at any time;
// where time stands still nobody would see a tombstone, so there it waits until all are gone.
func (s Setup) shutdowns(w *World, i int, who string, act act) {
	switch c := w.Clients[i]; {
	case c.Shut == open && w.Shutdowns > 0:
		act(i, who+" shuts down", true, func(x *shell) { x.shutDown() })
	case c.Shut == drains && !slices.ContainsFunc(c.Users, func(u user) bool { return u.State == holding || u.State == stopping }):
		act(i, who+" gives back its claims", false, func(x *shell) {
			x.c.Shut = parts
			x.each(func() {
				_, eff := x.q.Name.ReleaseAll(false, x.env())
				x.perform(eff)
			})
		})
	case c.Shut == parts && (!s.Still || c.quiet(w)):
		act(i, who+" ends its session", false, func(x *shell) { x.endSession() })
	}
}

// shutDown refuses waiting requests at once. What is held stays held.
func (x *shell) shutDown() {
	x.w.Shutdowns--
	x.c.Shut = drains
	before := slices.Clone(x.c.Users)
	x.each(func() {
		_, eff := x.q.Name.Close(errClosed, x.env())
		x.perform(eff)
	})
	for k := range x.c.Users {
		u := &x.c.Users[k]
		switch {
		case u.State == waiting:
			x.w.bad = "a goroutine waits for a client that shuts down"
		case before[k].State == holding && u.State != holding:
			x.w.bad = "a hold ends because its client shuts down"
		}
		u.Rounds = min(u.Rounds, 1)
		if u.State == idle {
			u.Rounds = 0
		}
	}
}

// endSession ends the session in order: without a trace if nothing of it is left or may still
// come, otherwise by a tombstone, which voids what is left.
func (x *shell) endSession() {
	c := x.c
	if c.Session == nil || !c.Session.Stop() {
		x.retire()
		return
	}
	clean := c.quiet(x.w)
	version, known := c.Session.End()
	r := x.w.row(c.Session.ID)
	switch tomb, ok := r.Record.Closed(&record.Owner{}, c.Session.TTL(), 0, x.w.clocks()); {
	case clean && known && r.Version == version:
		if slices.ContainsFunc(x.w.claims(), func(cl record.Claim) bool { return cl.Session == r.ID }) {
			x.w.bad = "a session ends without a trace, and a claim of its stands"
		}
		x.w.write(r, record.Session{})
	case ok:
		x.w.write(r, tomb)
	}
	x.retire()
}

// quiet says whether nothing of a client is left in the records or may still come.
func (c *client) quiet(w *World) bool {
	return !slices.ContainsFunc(c.Queues, func(q queue) bool {
		return q.Name.Ambiguous() || q.Write != nil || !q.Name.Idle() && !q.Name.Quiet(w.Now)
	})
}
