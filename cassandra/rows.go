package cassandra

import (
	"sync/atomic"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/seen"
)

// rowsSeen remembers which keys have rows, as far as it has room, and whether a key that it
// does not know is likely to have one. It may be wrong, which costs a transaction and nothing
// else: an update of a row that is not there is useless, and so is an insert of one that is.
type rowsSeen struct {
	keys    *seen.Set
	lastNew atomic.Bool // the last key that was not among them had no row
}

// has says whether a key was seen to have a row. The row may have been swept since.
func (r *rowsSeen) has(k driver.Key) bool { return r.keys.Has(rowID(k)) }

// add remembers a key that has a row.
func (r *rowsSeen) add(k driver.Key) { r.keys.Add(rowID(k)) }

func rowID(k driver.Key) []byte { return append([]byte{byte(k.Space)}, k.Name...) }
