package explore

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// A Result is what a search has found.
type Result struct {
	States, Steps, Depth int
	Took                 time.Duration
	Found                string   // what is wrong; "": nothing
	Story                []string // how it comes about
	Complete             bool     // there is no state that was not looked at
}

func (r Result) String() string {
	s := fmt.Sprintf("%d states, %d steps, depth %d, %.1f s", r.States, r.Steps, r.Depth, r.Took.Seconds())
	if !r.Complete && r.Found == "" {
		s += ", not finished"
	}
	if r.Found != "" {
		s += ": " + r.Found
	}
	return s
}

func (s Setup) encoder() *encoder {
	return &encoder{longest: tick * core.Instant(s.TTL+1), turns: slices.ContainsFunc(s.Users, func(u []int) bool { return len(u) > 1 })}
}

// A space is what a search has seen: for each state how it was come to, and where one gets to
// from it without faults.
type space struct {
	seen            map[uint64]uint32
	parents         []uint32
	acts            []uint16
	starts, targets []uint32
	done            []uint32
}

// Explore searches breadth first, states being told apart by a hash of 64 bits. With progress
// it also judges that from every state one is reachable, without faults, in which all is done.
func (s Setup) Explore(progress bool) (r Result) {
	began := time.Now()
	seed, e := maphash.MakeSeed(), s.encoder()
	key := func(w *World) uint64 { return maphash.Bytes(seed, e.world(s, w)) }
	p := &space{seen: map[uint64]uint32{}}
	now := []*World{New(s)}
	p.seen[key(now[0])] = 0
	p.parents, p.acts = append(p.parents, 0), append(p.acts, 0)
	finish := func(found string, at uint32) Result {
		r.States, r.Took, r.Found = len(p.parents), time.Since(began), found
		if found != "" {
			r.Story = s.story(p, at)
		}
		return r
	}
	for at := uint32(0); len(now) > 0; r.Depth++ {
		var next []*World
		for i, w := range now {
			now[i] = nil
			p.starts = append(p.starts, uint32(len(p.targets)))
			if progress && s.Done(w) {
				p.done = append(p.done, at)
			}
			bad, n := "", uint16(0)
			s.Next(w, func(_ string, fault bool, v *World) {
				r.Steps++
				n++
				if bad != "" {
					return
				}
				h := key(v)
				id, old := p.seen[h]
				if !old {
					id = uint32(len(p.parents))
					p.seen[h] = id
					p.parents, p.acts = append(p.parents, at), append(p.acts, n-1)
					next = append(next, v)
					bad = v.bad
				}
				if progress && !fault && id != at {
					p.targets = append(p.targets, id)
				}
			})
			if bad != "" {
				return finish(bad, uint32(len(p.parents)-1))
			}
			if at++; s.Limit > 0 && len(p.parents) > s.Limit {
				return finish("", 0)
			}
		}
		now = next
	}
	r.Complete = true
	if progress {
		p.starts = append(p.starts, uint32(len(p.targets)))
		if at, is := p.stuck(); is {
			return finish("blocked for ever", at)
		}
	}
	return finish("", 0)
}

// stuck finds the first state from which none that is done can be reached.
func (p *space) stuck() (uint32, bool) {
	n := len(p.starts) - 1
	in := make([]uint32, n+1)
	for _, t := range p.targets {
		in[t+1]++
	}
	for i := range n {
		in[i+1] += in[i]
	}
	from := make([]uint32, len(p.targets))
	fill := slices.Clone(in)
	for i := range n {
		for _, t := range p.targets[p.starts[i]:p.starts[i+1]] {
			from[fill[t]] = uint32(i)
			fill[t]++
		}
	}
	good := make([]bool, n)
	todo := slices.Clone(p.done)
	for _, d := range p.done {
		good[d] = true
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, q := range from[in[i]:in[i+1]] {
			if !good[q] {
				good[q] = true
				todo = append(todo, q)
			}
		}
	}
	at := slices.Index(good, false)
	return uint32(max(at, 0)), at >= 0
}

// story goes the way to a state again.
func (s Setup) story(p *space, at uint32) (steps []string) {
	var way []uint16
	for ; at != 0; at = p.parents[at] {
		way = append(way, p.acts[at])
	}
	slices.Reverse(way)
	w := New(s)
	for _, a := range way {
		n := uint16(0)
		var to *World
		s.Next(w, func(what string, _ bool, v *World) {
			if n == a {
				to = v
				steps = append(steps, fmt.Sprintf("%-36s %s", what, v))
			}
			n++
		})
		w = to
	}
	return steps
}

// Walk goes n random ways of so many steps each, in worlds that are too large to be searched.
// Faults are rarer than the rest.
func (s Setup) Walk(seed uint64, n, steps int) (r Result) {
	began := time.Now()
	for k := range uint64(n) {
		r.States++
		var story []string
		random := rand.New(rand.NewPCG(seed, k))
		for w := New(s); len(story) < steps; {
			var to *World
			var what string
			sum := 0.0
			s.Next(w, func(label string, fault bool, v *World) {
				weight := 1.0
				if fault {
					weight = 0.15
				}
				if v.bad != "" && r.Found == "" {
					r.Found = fmt.Sprintf("%s (seed %d, walk %d)", v.bad, seed, k)
					r.Story = append(slices.Clone(story), fmt.Sprintf("%-36s %s", label, v))
				}
				if sum += weight; random.Float64()*sum < weight {
					to, what = v, label
				}
			})
			if to == nil || r.Found != "" {
				break
			}
			story = append(story, fmt.Sprintf("%-36s %s", what, to))
			r.Steps++
			w = to
		}
		if r.Found != "" {
			break
		}
	}
	r.Took = time.Since(began)
	return r
}
