package models

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"reflect"
	"strings"
	"time"
	"unsafe"
)

// A Model is a world: where it begins, what can happen next, what must never
// be, and what must always remain possible. S is a state, of a fixed size and without
// gaps: integers and arrays of them.
type Model[S comparable] struct {
	Init []S
	// Next calls emit with each state that can follow s, and the step to it.
	Next func(s S, emit func(Step, S))
	// Bad says what is wrong with a state, "" if nothing is.
	Bad func(s S) string
	// Done says whether all is well and at its end. From every state such a one has to be
	// reachable by steps that are no faults. nil: progress is not judged.
	Done func(s S) bool
	// Show tells a state to people. It may be nil.
	Show func(s S) string
	// Limit is how many states are looked at at most; 0: all.
	Limit int
}

// A Step is who did what.
type Step struct {
	Who   string
	What  string
	Fault bool // progress may not rely on it
}

func (s Step) String() string {
	if s.Who == "" {
		return s.What
	}
	if strings.HasPrefix(s.What, "'") {
		return s.Who + s.What
	}
	return s.Who + " " + s.What
}

// A Result is what came of a search.
type Result struct {
	States, Transitions int
	Depth               int
	Seconds             float64
	Found               string   // what was violated; "" if nothing was
	Trace               []string // the shortest way there
	Complete            bool     // all states were seen
}

func (r Result) String() string {
	s := fmt.Sprintf("%d states, %d transitions, depth %d, %.1f s", r.States, r.Transitions, r.Depth, r.Seconds)
	if r.Found != "" {
		s += ": " + r.Found
	}
	return s
}

// Stuck is what a lack of progress is found as.
const Stuck = "blocked for ever"

// Explore searches breadth first, one state after the other in an order that is
// always the same, until all are seen or a violation is found, and judges progress.
func (m Model[S]) Explore() (r Result) {
	mustBeFlat[S]()
	began := time.Now()
	defer func() { r.Seconds = time.Since(began).Seconds() }()
	seen := newTable()
	var g graph
	var now, next queue[S]
	n := uint32(0)
	found := func(i uint32, what string) Result {
		r.States, r.Found, r.Trace = int(n), what, m.trace(g.way(i))
		return r
	}
	for _, s := range m.Init {
		fp := fingerprint(&s)
		if _, fresh := seen.insert(fp, n); fresh {
			g.add(fp, noParent)
			n++
			now.push(s)
			if bad := m.Bad(s); bad != "" {
				return found(n-1, bad)
			}
		}
	}
	at := uint32(0) // the state that is looked at
	var broken string
	emit := func(step Step, s S) {
		if broken != "" {
			return
		}
		r.Transitions++
		fp := fingerprint(&s)
		i, fresh := seen.insert(fp, n)
		if m.Done != nil && !step.Fault && i != at {
			g.edge(i)
		}
		if !fresh {
			return
		}
		g.add(fp, at)
		n++
		next.push(s)
		broken = m.Bad(s)
	}
	var done []uint32
	for !now.empty() {
		if m.Limit > 0 && int(n) > m.Limit {
			r.States = int(n)
			return r
		}
		for p, states := range now.pieces {
			for i := range states {
				if m.Done != nil {
					g.from()
					if m.Done(states[i]) {
						done = append(done, at)
					}
				}
				m.Next(states[i], emit)
				if broken != "" {
					r.Depth++
					return found(n-1, broken)
				}
				at++
			}
			now.pieces[p] = nil
		}
		now, next = next, queue[S]{}
		if !now.empty() {
			r.Depth++
		}
	}
	r.States, r.Complete = int(n), true
	if m.Done != nil {
		if i, stuck := g.stuck(int(n), done); stuck {
			return found(i, Stuck)
		}
	}
	return r
}

// trace goes the way again that fingerprints show, and tells its steps.
func (m Model[S]) trace(way []uint64) (steps []string) {
	var s S
	for _, init := range m.Init {
		if fingerprint(&init) == way[0] {
			s = init
		}
	}
	if m.Show != nil {
		steps = append(steps, "at first: "+m.Show(s))
	}
	for _, fp := range way[1:] {
		there := false
		var to S
		m.Next(s, func(step Step, t S) {
			if !there && fingerprint(&t) == fp {
				there, to = true, t
				line := step.String()
				if m.Show != nil {
					line = fmt.Sprintf("%-60s %s", line, m.Show(t))
				}
				steps = append(steps, strings.TrimRight(line, " "))
			}
		})
		if !there {
			return append(steps, "(the way is lost: Next is not a function of the state)")
		}
		s = to
	}
	return steps
}

// mustBeFlat panics if a state could have bytes that its value does not say.
func mustBeFlat[S any]() {
	var sum func(t reflect.Type) uintptr
	sum = func(t reflect.Type) uintptr {
		switch t.Kind() {
		case reflect.Struct:
			var n uintptr
			for i := range t.NumField() {
				n += sum(t.Field(i).Type)
			}
			return n
		case reflect.Array:
			return uintptr(t.Len()) * sum(t.Elem())
		case reflect.Bool, reflect.Int8, reflect.Uint8, reflect.Int16, reflect.Uint16, reflect.Int32, reflect.Uint32, reflect.Int64, reflect.Uint64:
			return t.Size()
		}
		panic(fmt.Sprintf("a state has a %v", t))
	}
	if t := reflect.TypeFor[S](); sum(t) != t.Size() {
		panic(fmt.Sprintf("%v has gaps: %d bytes for %d", t, t.Size(), sum(t)))
	}
}

// fingerprint is 64 bits that stand for a state, the same in every run; never 0.
func fingerprint[S comparable](s *S) uint64 {
	b := unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
	h := uint64(len(b))*0x9e3779b97f4a7c15 + 0xa0761d6478bd642f
	for len(b) >= 8 {
		hi, lo := bits.Mul64(binary.LittleEndian.Uint64(b)^0xe7037ed1a0b428db, h^0x8ebc6af09c88c6e3)
		h = hi ^ lo ^ bits.RotateLeft64(h, 29)
		b = b[8:]
	}
	tail := uint64(len(b))
	for _, c := range b {
		tail = tail<<8 | uint64(c)
	}
	hi, lo := bits.Mul64(tail^0x589965cc75374cc3, h^0x1d8e4e27c47d124f)
	h = hi ^ lo ^ bits.RotateLeft64(h, 31)
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	h ^= h >> 32
	return max(h, 1)
}
