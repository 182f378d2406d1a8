package lease

import (
	"maps"
	"slices"
)

// What the explorer needs: copies, so that a state can be kept while the machine goes on,
// and access to what it looks at.

// Clone is a copy that shares nothing that changes.
func (s *Session) Clone() *Session {
	c := *s
	c.attempts = slices.Clone(s.attempts)
	return &c
}

// Clone is a copy that shares nothing that changes.
func (d *Detector) Clone() *Detector {
	c := &Detector{watched: make(map[string]*watched, len(d.watched))}
	for id, w := range d.watched {
		v := *w
		c.watched[id] = &v
	}
	return c
}

// Clone is a copy that shares nothing.
func (d *Deaths) Clone() *Deaths {
	return &Deaths{void: maps.Clone(d.void), died: maps.Clone(d.died), lost: maps.Clone(d.lost)}
}

// Clone is a copy that shares nothing that changes.
func (b *Breaker) Clone() *Breaker { c := *b; return &c }

// Tombstones are the sessions that are known to be dead by a tombstone.
func (d *Deaths) Tombstones() map[string]Instant { return d.void }
