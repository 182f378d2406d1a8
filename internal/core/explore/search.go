package explore

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A Result is what a search has found.
type Result struct {
	States, Steps, Depth int
	Took                 time.Duration
	Memory               uint64   // bytes of the heap, the most at the end of a level
	Widest, Packed       int      // states of the widest level, and the bytes that it took
	Found                string   // what is wrong; "": nothing
	Way                  []string // the actions that lead to it
	Story                []string // the same with what came of each
	Complete             bool     // every state was seen
}

func (r Result) String() string {
	s := fmt.Sprintf("%d states, %d steps, depth %d, %.1f s", r.States, r.Steps, r.Depth, r.Took.Seconds())
	if r.Memory > 0 {
		s += fmt.Sprintf(", %d MiB, the widest level %d states of %d bytes", r.Memory>>20, r.Widest, r.Packed/max(r.Widest, 1))
	}
	if !r.Complete && r.Found == "" {
		s += ", not finished"
	}
	if r.Found != "" {
		s += ": " + r.Found
	}
	return s
}

// Blocked is how a lack of progress is reported.
const Blocked = "blocked for ever"

// A level is all states at one distance from the beginning, packed, in the order in which
// they were found.
type level struct{ parts []part }

// A part is as many states of a level as one worker expands at once.
type part struct {
	packed []byte
	ends   []uint32
}

const partSize = 256

func (l *level) push(packed []byte) {
	if n := len(l.parts); n == 0 || len(l.parts[n-1].ends) == partSize {
		l.parts = append(l.parts, part{})
	}
	p := &l.parts[len(l.parts)-1]
	p.packed = append(p.packed, packed...)
	p.ends = append(p.ends, uint32(len(p.packed)))
}

func (l *level) size() (states, bytes int) {
	for _, p := range l.parts {
		states, bytes = states+len(p.ends), bytes+len(p.packed)
	}
	return states, bytes
}

// A search is one search of a world.
type search struct {
	Setup
	progress bool
	seed     maphash.Seed
	report   func(Result) // may be nil
	began    time.Time
	Result
	space
}

// Explore searches breadth first on all processors, and tells states apart by a hash of 64 bits.
// With progress it also checks that from every state a state in which all is done is reachable
// without faults. What it finds and counts does not depend on the number of processors: workers
// only expand states, and what they find is recorded in the order of the states.
func (s Setup) Explore(progress bool, report func(Result)) Result {
	x := &search{Setup: s, progress: progress, seed: maphash.MakeSeed(), report: report, began: time.Now()}
	w, err := s.Start()
	if err != nil {
		return Result{Found: err.Error()}
	}
	x.add(maphash.Bytes(x.seed, newEncoder(s).world(w)), 0, 0)
	var now level
	now.push(newPacker(s).pack(nil, w))
	for at := uint32(0); len(now.parts) > 0; x.Depth++ {
		var next level
		found := false
		if at, found = x.expand(&now, &next, at); found {
			return x.finish(at)
		}
		x.measure(&next)
		if x.Limit > 0 && len(x.parents) > x.Limit {
			return x.finish(0)
		}
		now = next
	}
	x.Complete = true
	if progress {
		if at, is := x.stuck(); is {
			x.Found = Blocked
			return x.finish(at)
		}
	}
	return x.finish(0)
}

// expand records what follows from the states of a level; at is the number of the first. It
// returns the number of the state after the level or, if it reports true, of the first state
// that is wrong.
func (x *search) expand(now, next *level, at uint32) (uint32, bool) {
	workers := runtime.GOMAXPROCS(0)
	for round := 0; round < len(now.parts); round += 16 * workers {
		parts := now.parts[round:min(round+16*workers, len(now.parts))]
		outs := make([]expansion, len(parts))
		var turn atomic.Int64
		var work sync.WaitGroup
		for range min(workers, len(parts)) {
			work.Go(func() {
				e, p := newEncoder(x.Setup), newPacker(x.Setup)
				for i := int(turn.Add(1)) - 1; i < len(parts); i = int(turn.Add(1)) - 1 {
					outs[i] = x.expandPart(parts[i], e, p)
					parts[i] = part{}
				}
			})
		}
		work.Wait()
		for i := range outs {
			var found bool
			if at, found = x.takeIn(&outs[i], next, at); found {
				return at, true
			}
			if x.Limit > 0 && len(x.parents) > x.Limit {
				return at, false
			}
		}
	}
	return at, false
}

// An expansion is what follows from the states of a part.
type expansion struct {
	steps  []successor
	counts []int // steps of each state
	done   []bool
	packed []byte
}

type successor struct {
	hash     uint64
	fault    bool
	from, to uint32 // packed
	bad      string
}

// expandPart runs in several goroutines at a time, and only reads what was seen.
func (x *search) expandPart(of part, e *encoder, p *packer) (out expansion) {
	mine := make(map[uint64]bool)
	from := uint32(0)
	for _, end := range of.ends {
		w := p.unpack(of.packed[from:end])
		from = end
		n := len(out.steps)
		x.Next(w, func(_ string, fault bool, v *World) {
			s := successor{hash: maphash.Bytes(x.seed, e.world(v)), fault: fault, bad: v.bad}
			if !mine[s.hash] && !x.seen.has(s.hash) {
				mine[s.hash] = true
				s.from = uint32(len(out.packed))
				out.packed = p.pack(out.packed, v)
				s.to = uint32(len(out.packed))
			}
			out.steps = append(out.steps, s)
		})
		out.counts = append(out.counts, len(out.steps)-n)
		out.done = append(out.done, x.progress && x.Done(w))
	}
	return out
}

// takeIn adds what follows from the states of a part. It returns as expand does.
func (x *search) takeIn(out *expansion, next *level, at uint32) (uint32, bool) {
	steps := out.steps
	for i, n := range out.counts {
		if x.progress {
			x.starts = append(x.starts, uint32(len(x.targets)))
			if out.done[i] {
				x.done = append(x.done, at)
			}
		}
		for act, s := range steps[:n] {
			x.Steps++
			id, fresh := x.add(s.hash, at, uint16(act))
			if fresh {
				if s.bad != "" {
					x.Found = s.bad
					return id, true
				}
				next.push(out.packed[s.from:s.to])
			}
			if x.progress && !s.fault && id != at {
				x.targets = append(x.targets, id)
			}
		}
		steps = steps[n:]
		if at++; x.Limit > 0 && len(x.parents) > x.Limit {
			break
		}
	}
	return at, false
}

// measure notes what a level takes, and reports.
func (x *search) measure(l *level) {
	if n, bytes := l.size(); n > x.Widest {
		x.Widest, x.Packed = n, bytes
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	x.Memory = max(x.Memory, m.HeapInuse)
	if x.States, x.Took = len(x.parents), time.Since(x.began); x.report != nil {
		x.report(x.Result)
	}
}

// finish is the result, with the way to a state if something is wrong there.
func (x *search) finish(at uint32) Result {
	x.States, x.Took = len(x.parents), time.Since(x.began)
	if x.Found != "" {
		x.tell(x.way(at))
	}
	return x.Result
}

// tell replays a way.
func (x *search) tell(way []uint16) {
	w, _ := x.Start()
	for _, act := range way {
		n := uint16(0)
		var to *World
		x.Next(w, func(what string, _ bool, v *World) {
			if n == act {
				to = v
				x.Way = append(x.Way, what)
				x.Story = append(x.Story, story(what, v))
			}
			n++
		})
		w = to
	}
}

func story(what string, w *World) string { return fmt.Sprintf("%-36s %s", what, w) }

func newEncoder(s Setup) *encoder {
	return &encoder{longest: s.longest(), ages: s.Ages, alone: s.Detach > 0,
		turns: s.turns(), sweeps: s.Sweeps}
}
