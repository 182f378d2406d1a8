package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A run is one round of a system under a workload, to be taken again and again.
type run struct {
	name  string
	round func() (series, error)
	rates bool                    // a round gives turns in a second, not seconds of each
	look  func() (reading, error) // what it has used so far; nil: not asked
	used  *usage                  // the sum of that over its rounds
}

// measured has a run count what it uses. Its rounds give turns in a second, or seconds of each.
func (b *bench) measured(r run, s *system, l locker, rates bool) run {
	r.rates, r.used = rates, &usage{}
	r.look = func() (reading, error) { return b.read(s, l) }
	return r
}

// A series is what was measured, in the order it was.
type series []float64

// rounds are the series of one system.
type rounds []series

// take has all take turns n times, each time beginning with another, so that
// what disturbs the machine disturbs all alike. With warm one round before is
// not counted.
func (b *bench) take(n int, warm bool, runs []run) ([]rounds, error) {
	taken := make([]rounds, len(runs))
	first := 0
	if warm {
		first = -1
	}
	for n := range n - first {
		for i := range runs {
			i = (i + n) % len(runs)
			got, used, operations, err := runs[i].once()
			if err == nil {
				err = b.ctx.Err()
			}
			if err != nil {
				return nil, err
			}
			if n+first >= 0 {
				taken[i] = append(taken[i], got)
				if runs[i].used != nil {
					runs[i].used.add(used, operations)
				}
			}
		}
	}
	return taken, nil
}

// once is a round, what it has used, and how many operations it had.
func (r run) once() (got series, used reading, operations float64, err error) {
	if r.look == nil {
		got, err = r.round()
		return got, used, 0, err
	}
	before, err := r.look()
	if err != nil {
		return nil, used, 0, err
	}
	start := time.Now()
	if got, err = r.round(); err != nil {
		return nil, used, 0, err
	}
	operations = float64(len(got))
	if r.rates {
		operations = got[0] * time.Since(start).Seconds()
	}
	after, err := r.look()
	return got, after.since(before).withoutDisk(), operations, err
}

// row sums up the rounds of a system in a unit, of which a sample is so many.
func (r rounds) row(row Row, unit string, scale float64) Row {
	all := slices.Concat(r...)
	row.Unit, row.Median = unit, all.quantile(0.5)*scale
	if row.Samples = len(all); len(all) >= 100 {
		row.P99 = all.quantile(0.99) * scale
	}
	return row
}

func (r rounds) median() float64 { return slices.Concat(r...).quantile(0.5) }

// ratio is the median of the rounds' ratios to those of another.
func (r rounds) ratio(floor rounds) float64 {
	var s series
	for i := range r {
		if len(r[i]) > 0 && len(floor[i]) > 0 {
			s = append(s, r[i].quantile(0.5)/floor[i].quantile(0.5))
		}
	}
	return s.quantile(0.5)
}

// over is the median of the rounds' differences to those of another.
func (r rounds) over(floor rounds) float64 {
	var s series
	for i := range r {
		s = append(s, r[i].quantile(0.5)-floor[i].quantile(0.5))
	}
	return s.quantile(0.5)
}

// quantile is the least sample that q of all are not above.
func (s series) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	if q == 0.5 && len(s)%2 == 0 {
		return (sorted[len(s)/2-1] + sorted[len(s)/2]) / 2
	}
	return sorted[min(int(q*float64(len(s))), len(s)-1)]
}

// timed measures n calls of f, in seconds each.
func timed(n int, f func() error) (series, error) {
	s := make(series, n)
	for i := range s {
		start := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		s[i] = time.Since(start).Seconds()
	}
	return s, nil
}

// rate counts how often in a second n goroutines together take a turn. Turns
// that were begun in time are counted, and waited for.
func rate(n int, length time.Duration, turn func(i int) error) (series, error) {
	var stop atomic.Bool
	var total atomic.Int64
	failed := make(chan error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			turns := 0
			for !stop.Load() {
				if err := turn(i); err != nil {
					failed <- err
					break
				}
				turns++
			}
			total.Add(int64(turns))
		})
	}
	time.Sleep(length)
	stop.Store(true)
	wg.Wait()
	took := time.Since(start)
	select {
	case err := <-failed:
		return nil, err
	default:
	}
	return series{float64(total.Load()) / took.Seconds()}, nil
}
