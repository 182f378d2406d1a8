package core

import (
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// SawStale handles a record from a stale read, if it is newer than the known one and can
// follow from it. bad: it cannot be read. It reports whether the record has to be loaded,
// because the writes of others cannot have led to it.
func (n *Name) SawStale(rec record.Lock, version record.Version, bad error, env *Env) (load bool, eff *Effects) {
	eff = n.begin()
	if version > n.version {
		if bad != nil || !n.GoesOn(&rec, env) {
			return true, eff
		}
		n.see(rec, version, n.asked, env) // not as fresh as a load
	}
	n.Answers()
	return false, eff
}
