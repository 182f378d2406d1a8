package models

import "slices"

const noParent = ^uint32(0)

// A graph is what a search keeps of the states it has seen: by which one each was
// first reached, and, to judge progress, which ones can follow.
type graph struct {
	fps     []uint64
	parents []uint32
	degrees []uint8
	targets queue[uint32]
}

func (g *graph) add(fp uint64, parent uint32) {
	g.fps, g.parents = append(g.fps, fp), append(g.parents, parent)
}

// from begins the steps of the next state.
func (g *graph) from() { g.degrees = append(g.degrees, 0) }

func (g *graph) edge(to uint32) {
	d := &g.degrees[len(g.degrees)-1]
	if *d == 255 {
		panic("a state has more than 255 steps")
	}
	*d++
	g.targets.push(to)
}

// way is the shortest way to a state, as fingerprints.
func (g *graph) way(i uint32) (fps []uint64) {
	for ; i != noParent; i = g.parents[i] {
		fps = append(fps, g.fps[i])
	}
	slices.Reverse(fps)
	return fps
}

// stuck returns the first of n states from which none of those that are done can
// be reached. It goes over all states, last first, until no more are found from which
// one can.
func (g *graph) stuck(n int, done []uint32) (uint32, bool) {
	good := newBits(n)
	for _, i := range done {
		good.add(i)
	}
	for changed := true; changed; {
		changed = false
		p := len(g.targets.pieces) - 1
		k := -1
		if p >= 0 {
			k = len(g.targets.pieces[p]) - 1
		}
		for i := uint32(n); i > 0; {
			i--
			was := good.has(i)
			is := was
			for range g.degrees[i] {
				if !is && good.has(g.targets.pieces[p][k]) {
					is = true
				}
				if k--; k < 0 && p > 0 {
					p--
					k = len(g.targets.pieces[p]) - 1
				}
			}
			if is && !was {
				good.add(i)
				changed = true
			}
		}
	}
	for i := range uint32(n) {
		if !good.has(i) {
			return i, true
		}
	}
	return 0, false
}
