package holds

import (
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A removal is what a write for a hold removes from a record.
type removal struct {
	name    string
	version record.Version // that the write follows
	gone    []record.Eviction
	tomb    record.Session // of the hold, if the write releases its locks
}

// removes is what a write removes from the record of a name; tomb is empty unless it releases the
// locks of the hold.
func (x *holdCall) removes(n *record.HoldName, next *record.Lock, tomb record.Session) removal {
	c := x.c
	c.Mu.Lock()
	defer c.Unlock()
	ends := func(session string) bool { return session == x.id && tomb.Dead != 0 || c.HasTombstone(session) }
	return removal{n.Name, n.Version, n.Record.Evicted(next, ends), tomb}
}

// removed notes what a write has removed.
func (x *holdCall) removed(r removal) {
	c := x.c
	c.Mu.Lock()
	defer c.Unlock()
	var others []record.Eviction
	for _, e := range r.gone {
		if e.Claim.Session == x.id {
			c.Ended(r.name, e.Claim.Ended(r.tomb, e.Broken, c.Owner, time.Now().UnixMicro()))
		} else {
			others = append(others, e)
		}
	}
	c.Evicted(r.name, others)
}

// removedLate notes what unanswered writes have removed, once a later record shows that the claims
// are gone.
func (x *holdCall) removedLate(n *record.HoldName) {
	x.removals = slices.DeleteFunc(x.removals, func(r removal) bool {
		if r.name != n.Name || r.version == n.Version {
			return false
		}
		r.gone = slices.DeleteFunc(r.gone, func(e record.Eviction) bool {
			_, _, ok := n.Record.Find(e.Claim.Session, e.Claim.Nr)
			return ok
		})
		x.removed(r)
		return true
	})
}
