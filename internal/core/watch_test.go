package core

import (
	"slices"
	"testing"
	"time"
)

// What the store is asked for, and when that begins anew.
func TestWatchBegins(t *testing.T) {
	for _, test := range []struct {
		name    string
		session string
		all     bool
		asked   []string
		then    string
		thenAll bool
		anew    bool
	}{
		{"the same session", "s", false, []string{"s"}, "s", false, false},
		{"another session", "s", false, []string{"s"}, "t", false, true},
		{"no session any more", "s", false, []string{"s"}, "", false, false},
		{"the first session", "", false, []string{}, "s", false, true},
		{"from now on all", "s", false, []string{"s"}, "s", true, true},
		{"all is enough for a session", "s", true, nil, "t", false, false},
	} {
		var w Watch
		if start, anew := w.Need(test.session, test.all, 0); !start || anew {
			t.Errorf("%s: at first: start %v, anew %v", test.name, start, anew)
		}
		if start, anew := w.Need("other", true, 0); start || anew {
			t.Errorf("%s: before it has begun: start %v, anew %v", test.name, start, anew)
		}
		if asked := w.Begin(test.session, test.all); !slices.Equal(asked, test.asked) || (asked == nil) != (test.asked == nil) {
			t.Errorf("%s: asked for %v", test.name, asked)
		}
		if start, anew := w.Need(test.then, test.thenAll, 0); start || anew != test.anew {
			t.Errorf("%s: then: start %v, anew %v", test.name, start, anew)
		}
		w.Stop()
		if start, _ := w.Need(test.session, test.all, 0); !start {
			t.Errorf("%s: does not start again", test.name)
		}
	}
}

// When nobody needs a watch that costs.
func TestWatchIdle(t *testing.T) {
	for _, test := range []struct {
		name                string
		costs, polling, all bool
		after               time.Duration // it was last needed
		want                bool
	}{
		{"long unneeded", true, false, false, watchIdle + 1, true},
		{"needed a moment ago", true, false, false, watchIdle, false},
		{"the poll loop runs", true, true, false, time.Hour, false},
		{"somebody watches a key", true, false, true, time.Hour, false},
		{"costs nothing", false, false, false, time.Hour, false},
	} {
		w := Watch{Costs: test.costs}
		w.Need("s", false, ms(1000))
		if got := w.Idle(test.polling, test.all, ms(1000).Add(test.after)); got != test.want {
			t.Errorf("%s: idle %v", test.name, got)
		}
	}
}

// How long it takes until a watch that failed begins again.
func TestWatchEnded(t *testing.T) {
	type end struct {
		anew   bool
		lasted time.Duration
		want   time.Duration
	}
	failed := func(want time.Duration) end { return end{false, 0, want} }
	for _, test := range []struct {
		name string
		ends []end
	}{
		{"ever longer", []end{failed(100 * time.Millisecond), failed(200 * time.Millisecond), failed(400 * time.Millisecond)}},
		{"ten seconds at most", []end{failed(watchRest), failed(2 * watchRest), failed(4 * watchRest), failed(8 * watchRest), failed(16 * watchRest),
			failed(32 * watchRest), failed(64 * watchRest), failed(longestOff), failed(longestOff)}},
		{"after a good while as at first", []end{failed(watchRest), failed(2 * watchRest), {false, 61 * time.Second, watchRest}, failed(2 * watchRest)}},
		{"begun anew", []end{failed(watchRest), failed(2 * watchRest), {true, 0, 0}, failed(watchRest)}},
	} {
		var w Watch
		w.Need("s", false, 0)
		for i, e := range test.ends {
			if got := w.Ended(e.anew, e.lasted); got != e.want {
				t.Errorf("%s: end %d: after %v, want %v", test.name, i, got, e.want)
			}
		}
	}
}
