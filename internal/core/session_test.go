package core

import (
	"errors"
	"testing"
	"time"
)

// A session opens before anybody may have declared it dead, or not at all: whatever tells
// that a first attempt stands.
func TestOpensInTime(t *testing.T) {
	const ttl = 10 * time.Second // and a margin of one
	for _, test := range []struct {
		name  string
		at    Instant // of the answer to the second attempt
		own   bool    // the second attempt won, else it lost to the first
		opens bool
	}{
		{"in time", Instant(9*time.Second - 1), true, true},
		{"late", Instant(9 * time.Second), true, false},
		{"by the first attempt, in time", Instant(9*time.Second - 1), false, true},
		{"by the first attempt, late", Instant(9 * time.Second), false, false},
	} {
		var s Session
		s.Open()
		s.Begin(ttl)
		attempt := func(nonce string, now Instant) Attempt {
			if _, ok := s.Asking(now); !ok {
				t.Fatalf("%s: nothing may be sent", test.name)
			}
			a, _ := s.Beat(BeatOf{TTL: ttl, Nonce: nonce}, now)
			return a
		}
		first := attempt("1", 0)
		s.Answered(first, SessionOutcome{Err: errors.New("no answer")}, Instant(time.Second))
		second := attempt("2", Instant(8*time.Second))
		out := SessionOutcome{Won: true, Version: 1}
		if !test.own {
			out = SessionOutcome{Version: 1, Record: first.Record}
		}
		if eff := s.Answered(second, out, test.at); eff.Opened != test.opens || eff.Lost == test.opens {
			t.Errorf("%s: opened %v, lost %v (%s); want opened %v", test.name, eff.Opened, eff.Lost, eff.Why, test.opens)
		}
	}
}
