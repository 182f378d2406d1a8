//go:build linux

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// machine measures by how much this machine is late to wake who sleeps, and how
// long its disk takes, so that a limit on others is not a limit on them: a
// hand-over is a few wake-ups and writes.
func machine(t *testing.T, w *world) (slow func() time.Duration) {
	t.Helper()
	file, err := os.Create(filepath.Join(w.dir, "gauge-"+strconv.FormatInt(life.Now(), 10)))
	must(t, err)
	stop := make(chan struct{})
	worst := func(do func() time.Duration) chan time.Duration {
		most := make(chan time.Duration, 1)
		go func() {
			var worst time.Duration
			for {
				select {
				case <-stop:
					most <- worst
					return
				default:
					worst = max(worst, do())
				}
			}
		}()
		return most
	}
	late := worst(func() time.Duration {
		before := life.Now()
		time.Sleep(time.Millisecond)
		return time.Duration(life.Now()-before) - time.Millisecond
	})
	disk := worst(func() time.Duration {
		time.Sleep(20 * time.Millisecond)
		before := life.Now()
		file.WriteAt(make([]byte, 4096), 0)
		file.Sync()
		return time.Duration(life.Now() - before)
	})
	return func() time.Duration {
		close(stop)
		defer file.Close()
		return 2*<-late + 3*<-disk
	}
}
