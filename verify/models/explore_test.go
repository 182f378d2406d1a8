package models

import (
	"slices"
	"testing"
)

// wheels are three counters of five places that turn one at a time.
var wheels = Model[[3]uint8]{
	Init: [][3]uint8{{}},
	Bad:  func([3]uint8) string { return "" },
	Next: func(s [3]uint8, emit func(Step, [3]uint8)) {
		for i := range s {
			t := s
			t[i] = (t[i] + 1) % 5
			emit(Step{Who: names[i], What: "turns"}, t)
		}
	},
}

func TestEveryStateOnce(t *testing.T) {
	if r := wheels.Explore(); r.States != 125 || r.Transitions != 375 || r.Depth != 12 || !r.Complete || r.Found != "" {
		t.Errorf("%v, want 125 states, 375 transitions, depth 12, all of them", r)
	}
}

func TestShortestWay(t *testing.T) {
	m := wheels
	m.Bad = func(s [3]uint8) string {
		if s == [3]uint8{1, 0, 2} {
			return "there"
		}
		return ""
	}
	r := m.Explore()
	if want := []string{"A turns", "C turns", "C turns"}; r.Found != "there" || !slices.Equal(slices.Sorted(slices.Values(r.Trace)), want) {
		t.Errorf("found %q by %q, want it by %q in some order", r.Found, r.Trace, want)
	}
}

func TestProgress(t *testing.T) {
	m := wheels
	m.Done = func(s [3]uint8) bool { return s == [3]uint8{4, 4, 4} }
	if r := m.Explore(); r.Found != "" {
		t.Errorf("wheels that turn for ever: %v", r)
	}
	next := m.Next
	m.Next = func(s [3]uint8, emit func(Step, [3]uint8)) { // a wheel sticks at 3, but for a fault
		next(s, func(step Step, t [3]uint8) {
			step.Fault = s[1] == 3 && t[1] == 4
			emit(step, t)
		})
	}
	if r := m.Explore(); r.Found != Stuck || len(r.Trace) != 0 {
		t.Errorf("a wheel that sticks: %v by %q, want it stuck from the first", r, r.Trace)
	}
}

func TestStatesWithGapsAreRefused(t *testing.T) {
	type gap struct {
		a uint8
		b uint16
	}
	defer func() {
		if recover() == nil {
			t.Error("a state with a gap was taken")
		}
	}()
	Model[gap]{Init: []gap{{1, 2}}}.Explore()
}
