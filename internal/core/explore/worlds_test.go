package explore

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	limit = flag.Int("limit", 0, "the most states of a world; one that is not finished by then says so (100,000; with -short 200)")
	walks = flag.Int("walks", 100, "random ways through the large world")
	only  = flag.String("world", "", "only this world")
)

var x, shared, two = []int{1}, []int{0}, []int{2}

// Worlds that begin with A holding, and B waiting for it, come sooner to what they are for.
var (
	held   = []string{"A.0 asks", "A's heartbeat arrives", "A's heartbeat is answered", "A's write arrives", "A's write is answered"}
	wanted = slices.Concat(held, []string{"B.0 asks", "B's heartbeat arrives", "B's heartbeat is answered",
		"B's write arrives", "B's write is answered", "B's write arrives", "B's write is answered"})
	revoked = slices.Concat(held, []string{"A1.1 is to be broken", "the breaker looks", "the breaker revokes",
		"a tick", "A sends a heartbeat", "A's heartbeat arrives", "A's heartbeat is answered"})
	crashed = slices.Concat(held, []string{"A crashes"})
	alone   = slices.Concat(wanted, []string{"A.0 leaves its hold alone", "A sends a heartbeat", "A's heartbeat arrives", "A's heartbeat is answered"})
)

// A world that takes long to search comes late.
var worlds = []struct {
	name     string
	progress bool // is checked
	s        Setup
}{
	{"X X, time stands still, 2 rounds", true, Setup{Users: [][]int{x, x}, Rounds: 2, TTL: 2, Sessions: 1, Still: true}},
	{"X X, time stands still, 1 ambiguous", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Ambiguous: 1}},
	{"X X, time stands still, 1 ambiguous, 1 cancel", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Ambiguous: 1, Cancels: 1}},
	{"X X, a break, time stands still", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Breaks: 1}},
	{"X(2) X, time stands still", true, Setup{Users: [][]int{{1, 1}, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"S X S, time stands still", true, Setup{Users: [][]int{shared, x, shared}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"2 2 2, time stands still", true, Setup{Users: [][]int{two, two, two}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"2 3 X, time stands still", true, Setup{Users: [][]int{two, {3}, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"X X X, time stands still", true, Setup{Users: [][]int{x, x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"2(2) X, time stands still, 1 cancel", true, Setup{Users: [][]int{{2, 2}, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Cancels: 1}},
	{"X(2) X, time stands still, 1 ambiguous", true, Setup{Users: [][]int{{1, 1}, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Ambiguous: 1}},
	{"sets ab and b, time stands still", true, Setup{Users: [][]int{{1, 1}, x}, Sets: [][]string{{"ab"}, {"b"}}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"sets ab and ab, only tried, time stands still", true, Setup{Users: [][]int{{1, 1}, {1, 1}}, Sets: [][]string{{"ab"}, {"ab"}}, Tries: true, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"sets ab and b in one process, time stands still", true, Setup{Users: [][]int{{1, 1, 1}}, Sets: [][]string{{"ab", "b"}}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"sets ab and b, time stands still, 1 cancel", true, Setup{Users: [][]int{{1, 1}, x}, Sets: [][]string{{"ab"}, {"b"}}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Cancels: 1}},
	{"sets ab and b, a break, time stands still", true, Setup{Users: [][]int{{1, 1}, x}, Sets: [][]string{{"ab"}, {"b"}}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Breaks: 1}},
	{"X X, a shutdown, time stands still", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Shutdowns: 1}},
	{"X(2) X, a shutdown, time stands still", true, Setup{Users: [][]int{{1, 1}, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Shutdowns: 1}},
	{"X X, a shutdown, time stands still, 1 ambiguous", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Shutdowns: 1, Ambiguous: 1}},
	{"X X, a shutdown, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Shutdowns: 1, After: wanted}},
	{"X(2), a sweep, time stands still, 2 rounds", true, Setup{Users: [][]int{{1, 1}}, Rounds: 2, TTL: 2, Sessions: 1, Still: true, Sweeps: true}},
	{"X X, a sweep, time stands still", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Sweeps: true}},
	{"X X, a sweep, time stands still, 1 ambiguous", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Sweeps: true, Ambiguous: 1}},
	{"X, a sweep, 1 crash", true, Setup{Users: [][]int{x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Sweeps: true}},
	{"X, a sweep, grace, from A crashed", true, Setup{Users: [][]int{x}, Rounds: 1, TTL: 2, Sessions: 1, Grace: 1, Crashes: 1, Sweeps: true, After: crashed}},
	{"X, a sweep by a wrong wall clock, from A having no answer", true, Setup{Users: [][]int{x}, Rounds: 1, TTL: 2, Sessions: 1, Ambiguous: 1, Sweeps: true, Skewed: true,
		After: []string{"A.0 asks", "A's heartbeat arrives", "A's heartbeat is never answered", "the sweeper reads the sessions", "a tick"}}},
	{"X X, a sweep, from A crashed and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Sweeps: true, After: slices.Concat(wanted, crashed[len(held):])}},
	{"X, grace, 2 sessions, from A holding", true, Setup{Users: [][]int{x}, Rounds: 2, TTL: 2, Grace: 1, Sessions: 2, After: held}},
	{"X, 2 crashes and restarts, from A holding", true, Setup{Users: [][]int{x}, Rounds: 1, TTL: 2, Sessions: 3, Crashes: 2, Restarts: 2, After: held}},
	{"X, 2 sessions, 1 ambiguous", false, Setup{Users: [][]int{x}, Rounds: 1, TTL: 2, Sessions: 2, Ambiguous: 1}},
	{"X X, 1 crash, 1 ambiguous, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Ambiguous: 1, After: wanted}},
	{"X X, the TTL becomes shorter, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 5, NewTTLs: []int{2}, Sessions: 1, After: slices.Concat(wanted, []string{"a tick", "the TTL of the store becomes 2"})}},
	{"X X, the TTL becomes longer, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, NewTTLs: []int{4}, Sessions: 1, After: wanted}},
	{"X X, grace, 1 crash, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Grace: 1, Crashes: 1, After: wanted}},
	{"X X, a hold without a process", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Detach: 3, After: held}},
	{"X X, a hold without a process, a store's clock that leaps", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Detach: 3, Ages: true, Leap: 12, After: alone}},
	{"X X, marks, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Marks: true, After: wanted}},
	{"X X, a store's clock that leaps, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 4, Marks: true, Ages: true, Leap: 4, Sessions: 1, After: wanted}},
	{"X X, told, time stands still, 2 rounds", true, Setup{Users: [][]int{x, x}, Rounds: 2, TTL: 2, Sessions: 1, Still: true, Tells: true}},
	{"X(2) X, told, time stands still, 1 ambiguous", true, Setup{Users: [][]int{{1, 1}, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Ambiguous: 1, Tells: true}},
	{"X X, told, 1 crash, from A holding and B waiting", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Tells: true, After: wanted}},
	{"X X, told, a break, from A holding", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Breaks: 1, Tells: true, After: held}},
	{"X X, 1 ambiguous, a lost write, 2 rounds", false, Setup{Users: [][]int{x, x}, Rounds: 2, TTL: 2, Sessions: 1, Ambiguous: 1, Losses: 1, Still: true,
		After: []string{"B.0 asks", "B's heartbeat arrives", "B's heartbeat is answered", "A.0 asks", "A's heartbeat arrives", "A's heartbeat is answered", "B's write is never answered", "A's write arrives", "A's write is answered",
			"B loads", "B's write arrives", "B's write is answered", "the store loses the last write"}}},
	{"X X, a break, from A holding", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Breaks: 1, After: held}},
	{"X X, a break, from A's heartbeat after it", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Breaks: 1, After: revoked}},
	{"X X, a break, grace, from A holding", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Breaks: 1, Grace: 1, After: held}},
	{"X X, a crash and a restart, from A holding", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 2, Crashes: 1, Restarts: 1, After: held}},
	{"sets ab and ab, time stands still", true, Setup{Users: [][]int{{1, 1}, {1, 1}}, Sets: [][]string{{"ab"}, {"ab"}}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"a set ab, 2 sessions", false, Setup{Users: [][]int{{1, 1}}, Sets: [][]string{{"ab"}}, Rounds: 1, TTL: 2, Sessions: 2}},
	{"sets ab and b, time stands still, 1 ambiguous", true, Setup{Users: [][]int{{1, 1}, x}, Sets: [][]string{{"ab"}, {"b"}}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Ambiguous: 1}},
	{"sets ab, bc and ac, time stands still", true, Setup{Users: [][]int{{1, 1}, {1, 1}, {1, 1}}, Sets: [][]string{{"ab"}, {"bc"}, {"ac"}}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}},
	{"sets ab and b, 1 crash", true, Setup{Users: [][]int{{1, 1}, x}, Sets: [][]string{{"ab"}, {"b"}}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1}},
	{"X X", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1}},
	{"S X", true, Setup{Users: [][]int{shared, x}, Rounds: 1, TTL: 2, Sessions: 1}},
	{"X X, 1 crash", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1}},
	{"X X, 1 ambiguous", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Ambiguous: 1}},
	{"S X, 1 ambiguous", true, Setup{Users: [][]int{shared, x}, Rounds: 1, TTL: 2, Sessions: 1, Ambiguous: 1}},
	{"X X X, time stands still, 1 cancel", true, Setup{Users: [][]int{x, x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Cancels: 1}},
	{"S S X, time stands still, 1 ambiguous", true, Setup{Users: [][]int{shared, shared, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true, Ambiguous: 1}},
	{"X X, 2 sessions", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 2}},
	{"X X, 1 crash, 1 ambiguous", true, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Ambiguous: 1}},
}

// The search of a vast world does not come to its end within any limit of a release. It gets a
// tenth of the limit, so that there is time for the others.
var vast = []string{
	"X X, a sweep, from A crashed and B waiting",
	"X X, a store's clock that leaps, from A holding and B waiting",
	"X X, a break, from A holding",
	"X X, a break, from A's heartbeat after it",
	"X X, a break, grace, from A holding",
	"X X, a crash and a restart, from A holding",
	"X X, 1 ambiguous",
	"S X, 1 ambiguous",
	"S S X, time stands still, 1 ambiguous",
	"X X, 2 sessions",
	"X X, 1 crash, 1 ambiguous",
	"sets ab, bc and ac, time stands still",
	"sets ab and b, 1 crash",
}

// What is wrong in a world is printed as a story, the shortest there is, and as a test.
func TestWorlds(t *testing.T) {
	states, complete, ends := 0, 0, 0
	for _, w := range worlds {
		if *only != "" && *only != w.name {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			switch w.s.Limit = *limit; {
			case *limit == 0 && testing.Short():
				w.s.Limit = 200
			case *limit == 0:
				w.s.Limit = 100_000
			case slices.Contains(vast, w.name):
				w.s.Limit = *limit / 10
			}
			r := w.s.Explore(w.progress, reporter(w.name))
			t.Log(r)
			fails(t, w.s, r)
			states += r.States
			if r.Complete {
				ends, complete = ends+1, complete+r.States
			}
		})
	}
	t.Logf("%d states; of them %d in %d worlds that were searched to the end", states, complete, ends)
}

// A world that is too large to be searched is walked through by chance.
func TestWalks(t *testing.T) {
	for _, s := range []Setup{crowd, crowdOfSets} {
		n := *walks
		if testing.Short() {
			n = min(n, 10)
		}
		r := s.Walk(1, n, 150)
		t.Log(r)
		fails(t, s, r)
	}
}

func fails(t *testing.T, s Setup, r Result) {
	t.Helper()
	if r.Found != "" {
		t.Errorf("%s\n%s\n\nAs a test of internal/core/explore:\n\n%s", r.Found, strings.Join(r.Story, "\n"), s.GoTest(r))
	}
}

// reporter shows how far a search has come: on a terminal each second, and of one that may
// take hours a line now and then.
func reporter(world string) func(Result) {
	every, form := time.Minute, "%s: depth %d, %d states, %d a second\n"
	if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		every, form = time.Second, "\r\x1b[K"+strings.TrimSuffix(form, "\n")+"\r"
	} else if *limit < 1_000_000 {
		return nil
	}
	last := time.Now()
	return func(r Result) {
		if time.Since(last) > every {
			last = time.Now()
			fmt.Fprintf(os.Stderr, form, world, r.Depth, r.States, int(float64(r.States)/r.Took.Seconds()))
		}
	}
}
