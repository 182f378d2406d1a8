package cassandra

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/holdfast-lock/holdfast/driver"
)

// rowsSeen remembers which keys have rows, as far as it has room, and whether a key that it
// does not know is likely to have one. It may be wrong, which costs a transaction and nothing
// else: an update of a row that is not there is useless, and so is an insert of one that is.
type rowsSeen struct {
	seed    maphash.Seed
	marks   [4096]atomic.Uint64
	lastNew atomic.Bool // the last key that was not among them had no row
}

// has says whether a key was seen to have a row. The row may have been swept since.
func (r *rowsSeen) has(k driver.Key) bool {
	mark, at := r.at(k)
	return at.Load() == mark
}

// add remembers a key that has a row, in the place of another if need be.
func (r *rowsSeen) add(k driver.Key) {
	mark, at := r.at(k)
	at.Store(mark)
}

func (r *rowsSeen) at(k driver.Key) (mark uint64, at *atomic.Uint64) {
	mark = maphash.Comparable(r.seed, k)
	return mark, &r.marks[mark%uint64(len(r.marks))]
}
