package lease

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
		s.Answered(first, Outcome{Err: errors.New("no answer")}, Instant(time.Second))
		second := attempt("2", Instant(8*time.Second))
		out := Outcome{Won: true, Version: 1}
		if !test.own {
			out = Outcome{Version: 1, Record: first.Record}
		}
		if eff := s.Answered(second, out, test.at); eff.Opened != test.opens || eff.Lost == test.opens {
			t.Errorf("%s: opened %v, lost %v (%s); want opened %v", test.name, eff.Opened, eff.Lost, eff.Why, test.opens)
		}
	}
}

// A loss is the store's doing if it did not answer, and this process's if it did not run: also if
// that was in the middle of a call, which then ends as one that was not answered.
func TestCauseOfLoss(t *testing.T) {
	const ttl = 9 * time.Second
	at := func(s time.Duration) Instant { return Instant(s * time.Second) }
	none := errors.New("context deadline exceeded")
	for _, test := range []struct {
		name     string
		answered []Instant // when heartbeats that were sent at 3 s, 6 s were not answered
		asked    bool      // another is under way
		lost     Instant
		want     string
	}{
		{"not answered", []Instant{at(6), at(8)}, false, at(8), "no heartbeat answered for 8s"},
		{"no answer yet", nil, true, at(8), "no heartbeat answered for 8s"},
		{"did not run", nil, false, at(60), "this process stood still for 1m0s"},
		{"did not run during a call", nil, true, at(60), "this process stood still for 1m0s"},
		{"did not run during a call, which has failed", []Instant{at(60)}, false, at(60), "this process stood still for 1m0s"},
		{"did not run after a call that was not answered", []Instant{at(6), at(60)}, false, at(60), "no heartbeat answered for 1m0s"},
	} {
		var s Session
		s.Open()
		s.Begin(ttl)
		send := func(nonce string, now Instant) Attempt {
			s.Asking(now)
			a, _ := s.Beat(BeatOf{TTL: ttl, Nonce: nonce}, now)
			return a
		}
		s.Answered(send("1", 0), Outcome{Won: true, Version: 1}, 0)
		for i, answered := range test.answered {
			s.Answered(send("2", at(3*time.Duration(i+1))), Outcome{Err: none}, answered)
		}
		if test.asked {
			send("3", at(3))
		}
		if eff := s.Lose("", nil, test.lost); eff.Why != test.want {
			t.Errorf("%s: %s, want %s", test.name, eff.Why, test.want)
		}
	}
}
