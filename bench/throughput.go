package main

import (
	"fmt"
	"slices"
	"time"
)

// throughput has goroutines of one process take and give back locks of their
// own as fast as it goes. All have as many connections: one for each goroutine, but 32 at most, and
// 4 at least where they are a pool.
func throughput(b *bench) (rows []Row, err error) {
	crowds := []int{1, 8, 64, 256, 1024}
	if b.quick {
		crowds = []int{1, 64}
	}
	return b.eachStore("throughput", func(ss []*system) (rows []Row, err error) {
		for _, n := range crowds {
			some, err := crowd(b, ss, n)
			if err != nil {
				return nil, err
			}
			rows = append(rows, some...)
		}
		return rows, nil
	})
}

func crowd(b *bench, ss []*system, n int) (rows []Row, err error) {
	length := 300 * time.Millisecond
	if b.quick {
		length = 100 * time.Millisecond
	}
	lockers, shut, err := b.open(ss, func(s *system) options {
		if conns := min(n, 32); s.of == s.name {
			return options{Conns: conns}
		} else {
			return options{Conns: max(4, conns)}
		}
	})
	if err != nil {
		return nil, err
	}
	defer shut(&err)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("job/%d", i)
	}
	var runs []run
	for i, s := range ss {
		l := lockers[i]
		runs = append(runs, b.measured(run{name: s.name, round: func() (series, error) {
			return rate(n, length, func(i int) error { return pair(b.ctx, l, names[i]) })
		}}, s, l, true))
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	for i, s := range ss {
		row := taken[i].row(s.row(fmt.Sprintf("%d goroutines", n)), "/s", 1)
		row.Size, row.Uses = n, runs[i].used.each()
		floor := slices.IndexFunc(ss, func(o *system) bool { return o.name == s.of })
		row = row.beside(s, taken[i].ratio(taken[floor]))
		if s.name == "holdfast" {
			aim := map[string]map[int]float64{
				"postgres": {1: 0.95, 8: 1.2, 64: 3, 256: 5},
				"mysql":    {64: 2.5},
			}[s.store][n]
			if aim > 0 {
				row = row.aims(fmt.Sprintf("≥ %.2fx", aim), row.Ratio >= aim)
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
