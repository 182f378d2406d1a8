package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// throughput has goroutines of one process take and give back locks of their
// own as fast as it goes. Systems that pin a connection for a lock have a pool
// of 64; the others the default pool, of 4 connections here.
func throughput(b *bench) (rows []Row, err error) {
	crowds := []int{1, 8, 64, 256}
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

func crowd(b *bench, all []*system, n int) (rows []Row, err error) {
	length := 300 * time.Millisecond
	if b.quick {
		length = 100 * time.Millisecond
	}
	var ss []*system
	for _, s := range all {
		if n > 1 || !strings.Contains(s.name, "pool of") {
			ss = append(ss, s)
		}
	}
	lockers, shut, err := b.open(ss, func(s *system) options {
		if s.name == "pg_advisory_lock" || s.name == "GET_LOCK" {
			return options{Conns: max(2, min(n, 64))}
		}
		return options{}
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
		runs = append(runs, run{s.name, func() (series, error) {
			return rate(n, length, func(i int) error { return pair(b.ctx, l, names[i]) })
		}})
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	// The floor depends on its pool: the best one is told too.
	best := -1
	for i, s := range ss {
		if strings.HasPrefix(s.name, "INSERT") && (best < 0 || taken[i].median() > taken[best].median()) {
			best = i
		}
	}
	for i, s := range ss {
		row := taken[i].row(s.row(fmt.Sprintf("%d goroutines", n)), "/s", 1)
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
			if best >= 0 && best != floor {
				row = row.notes("%sx of the floor with its best pool (%s)", figure(taken[i].ratio(taken[best])), ss[best].name)
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
