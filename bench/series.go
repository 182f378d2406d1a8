package main

import (
	"slices"
	"time"
)

// A system is one of those that do the same and are measured in turn.
type system struct {
	name  string
	round func() (series, error)
}

// A series is what was measured, in the order it was.
type series []float64

// rounds are the series of one system.
type rounds []series

// take runs all systems in turn, each time beginning with another, so that
// what disturbs the machine disturbs all alike. One round before is not
// counted.
func (b *bench) take(systems []system) ([]rounds, error) {
	taken := make([]rounds, len(systems))
	for n := range b.rounds + 1 {
		for i := range systems {
			i = (i + n) % len(systems)
			got, err := systems[i].round()
			if err == nil {
				err = b.ctx.Err()
			}
			if err != nil {
				return nil, err
			}
			if n > 0 {
				taken[i] = append(taken[i], got)
			}
		}
	}
	return taken, nil
}

// row sums up the rounds of a system in a unit, of which a sample is so many.
func (r rounds) row(name, unit string, scale float64) Row {
	all := slices.Concat(r...)
	row := Row{System: name, Unit: unit, Median: all.quantile(0.5) * scale}
	if len(all) >= 500 {
		row.P99 = all.quantile(0.99) * scale
	}
	return row
}

// ratio is the median of the rounds' ratios to those of the floor.
func (r rounds) ratio(floor rounds) float64 {
	var s series
	for i := range r {
		s = append(s, r[i].quantile(0.5)/floor[i].quantile(0.5))
	}
	return s.quantile(0.5)
}

// over is the median of the rounds' differences to those of the floor.
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
