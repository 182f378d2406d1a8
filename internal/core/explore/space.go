package explore

import (
	"math/bits"
	"slices"
)

// A space is what a search has seen: for each state how it was reached, and which states follow
// from it without faults. States are numbered in the order in which they were found.
type space struct {
	seen    table
	parents []uint32
	acts    []uint16 // which of the parent's actions
	starts  []uint32 // where a state's targets begin
	targets []uint32
	done    []uint32
}

// add returns the number of a state, and whether it is new.
func (p *space) add(hash uint64, parent uint32, act uint16) (id uint32, fresh bool) {
	id, fresh = p.seen.add(hash, uint32(len(p.parents)))
	if fresh {
		p.parents, p.acts = append(p.parents, parent), append(p.acts, act)
	}
	return id, fresh
}

// way is how a state was reached.
func (p *space) way(at uint32) (acts []uint16) {
	for ; at != 0; at = p.parents[at] {
		acts = append(acts, p.acts[at])
	}
	slices.Reverse(acts)
	return acts
}

// stuck finds the first state from which no state in which all is done can be reached. It
// goes over all states, last first, until it finds no more from which one can be reached.
func (p *space) stuck() (uint32, bool) {
	p.starts = append(p.starts, uint32(len(p.targets)))
	good := make([]bool, len(p.starts)-1)
	for _, d := range p.done {
		good[d] = true
	}
	for changed := true; changed; {
		changed = false
		for i := len(good) - 1; i >= 0; i-- {
			if !good[i] && slices.ContainsFunc(p.targets[p.starts[i]:p.starts[i+1]], func(t uint32) bool { return good[t] }) {
				good[i], changed = true, true
			}
		}
	}
	at := slices.Index(good, false)
	return uint32(max(at, 0)), at >= 0
}

// A table maps hashes to numbers. It is open-addressed, with sixteen to thirty bytes for each hash.
type table struct {
	n      int
	hashes []uint64 // 0: free
	ids    []uint32
}

// find returns the slot where a hash is or would be.
func (t *table) find(hash uint64) (slot uint64, known bool) {
	mask := uint64(len(t.hashes) - 1)
	for slot = hash & mask; ; slot = (slot + 1) & mask {
		switch t.hashes[slot] {
		case hash:
			return slot, true
		case 0:
			return slot, false
		}
	}
}

// has says whether a hash is there. Other goroutines may call it at the same time, but not add.
func (t *table) has(hash uint64) bool {
	_, known := t.find(max(hash, 1))
	return known
}

func (t *table) add(hash uint64, id uint32) (_ uint32, fresh bool) {
	if t.n >= len(t.hashes)/4*3 {
		t.grow()
	}
	hash = max(hash, 1)
	slot, known := t.find(hash)
	if !known {
		t.n++
		t.hashes[slot], t.ids[slot] = hash, id
	}
	return t.ids[slot], !known
}

func (t *table) grow() {
	old := *t
	n := 1 << max(bits.Len(uint(len(old.hashes))), 10)
	t.hashes, t.ids = make([]uint64, n), make([]uint32, n)
	for i, h := range old.hashes {
		if h != 0 {
			slot, _ := t.find(h)
			t.hashes[slot], t.ids[slot] = h, old.ids[i]
		}
	}
}
