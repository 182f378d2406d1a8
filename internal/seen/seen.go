// Package seen remembers what was seen, as far as there is room.
package seen

import (
	"hash/maphash"
	"sync/atomic"
)

// A Set remembers ids. It may forget one when it remembers another, and now and then it reports
// one that it has not seen. The zero value cannot be used: see New.
type Set struct {
	seed  maphash.Seed
	marks [4096]atomic.Uint64
}

// New returns a set that has seen none.
func New() *Set { return &Set{seed: maphash.MakeSeed()} }

// Has says whether an id was seen.
func (s *Set) Has(id []byte) bool {
	mark, at := s.at(id)
	return at.Load() == mark
}

// Add remembers an id, in the place of another if need be.
func (s *Set) Add(id []byte) {
	mark, at := s.at(id)
	at.Store(mark)
}

func (s *Set) at(id []byte) (mark uint64, at *atomic.Uint64) {
	mark = maphash.Bytes(s.seed, id)
	return mark, &s.marks[mark%uint64(len(s.marks))]
}
