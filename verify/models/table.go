package models

// A table numbers fingerprints. It is open-addressed, in shards that grow one at a time, so
// that a state needs little more than twelve bytes.
type table struct{ shards [256]shard }

type shard struct {
	n   int
	fps []uint64 // 0: free
	at  []uint32
}

func newTable() *table { return &table{} }

// insert adds a fingerprint with a number. It returns the number that the
// fingerprint has, and whether it is new.
func (t *table) insert(fp uint64, number uint32) (uint32, bool) {
	s := &t.shards[fp>>56]
	if s.n >= len(s.fps)/4*3 {
		s.grow()
	}
	mask := uint64(len(s.fps) - 1)
	for i := fp & mask; ; i = (i + 1) & mask {
		switch s.fps[i] {
		case fp:
			return s.at[i], false
		case 0:
			s.fps[i] = fp
			s.n++
			s.at[i] = number
			return number, true
		}
	}
}

func (s *shard) grow() {
	fps, at := s.fps, s.at
	n := max(64, 2*len(fps))
	s.fps, s.at = make([]uint64, n), make([]uint32, n)
	mask := uint64(n - 1)
	for j, fp := range fps {
		if fp == 0 {
			continue
		}
		i := fp & mask
		for s.fps[i] != 0 {
			i = (i + 1) & mask
		}
		s.fps[i] = fp
		s.at[i] = at[j]
	}
}

// A queue is what a breadth-first search has still to look at, in pieces, so that it
// grows without copying.
type queue[S any] struct{ pieces [][]S }

const piece = 2048

func (q *queue[S]) push(s S) {
	if n := len(q.pieces); n == 0 || len(q.pieces[n-1]) == piece {
		q.pieces = append(q.pieces, make([]S, 0, piece))
	}
	last := &q.pieces[len(q.pieces)-1]
	*last = append(*last, s)
}

func (q *queue[S]) empty() bool { return len(q.pieces) == 0 }

// A bitset is a set of numbers.
type bitset []uint64

func newBits(n int) bitset { return make(bitset, n/64+1) }

func (b bitset) has(i uint32) bool { return b[i/64]>>(i%64)&1 == 1 }
func (b bitset) add(i uint32)      { b[i/64] |= 1 << (i % 64) }
