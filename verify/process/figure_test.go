//go:build linux

package process

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// figures are measurements of one thing.
type figures []time.Duration

func (f figures) at(part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(f))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

func (f figures) String() string {
	if len(f) == 0 {
		return "none"
	}
	r := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("n %d, p50 %v, p99 %v, max %v", len(f), r(f.at(0.5)), r(f.at(0.99)), r(slices.Max(f)))
}

// crowd is the most lives at one instant.
func crowd(spans []life.Span) (most int) {
	type edge struct {
		at   int64
		step int
	}
	var edges []edge
	for _, s := range spans {
		edges = append(edges, edge{s.Begin, 1}, edge{s.Last, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.step - b.step
	})
	n := 0
	for _, e := range edges {
		n += e.step
		most = max(most, n)
	}
	return most
}

// inTurn checks holds of which none may meet another: the lives of one token
// are over when those of the next begin, and tokens grow.
func inTurn(t *testing.T, spans []life.Span) {
	t.Helper()
	for i, s := range spans {
		if s.Beside > 0 {
			t.Errorf("when a command began under token %d, %d processes of other holds lived", s.Token, s.Beside)
		}
		for _, o := range spans[:i] {
			switch {
			case o.Token > s.Token:
				t.Errorf("a hold with token %d began after one with token %d", s.Token, o.Token)
			case o.Token < s.Token && o.Last > s.Begin:
				t.Errorf("token %d (pid %d) still lived %v after token %d (pid %d) had begun",
					o.Token, o.PID, time.Duration(o.Last-s.Begin), s.Token, s.PID)
			}
		}
	}
}

// spare is the slowness of a machine whose processors others want, and 0 on one's own.
func spare(slow time.Duration) time.Duration {
	if stretch == 1 {
		return 0
	}
	return slow
}

// machine measures how slow this machine is meanwhile.
func machine(t *testing.T) (slow func() time.Duration) {
	t.Helper()
	worst, err := life.Slowness()
	must(t, err)
	slow = sync.OnceValue(func() time.Duration {
		return time.Duration(stretch)*worst() + time.Duration(stretch-1)*1500*time.Millisecond
	})
	t.Cleanup(func() { slow() })
	return slow
}
