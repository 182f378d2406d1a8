package main

import (
	"fmt"
	"slices"
)

// latency takes and gives back a lock that nobody else wants, one at a time:
// the same each time, and a new one each time.
func latency(b *bench) (rows []Row, err error) {
	return b.eachStore("latency", func(ss []*system) ([]Row, error) { return freeLocks(b, ss) })
}

func freeLocks(b *bench, ss []*system) (rows []Row, err error) {
	n := 50
	if b.quick {
		n = 10
	}
	if ss[0].store == claimsStore { // which wait by their nature
		n = 2
	}
	times := func(s *system) int {
		if s.isSpindle() { // whose leases have to end
			return 1
		}
		return n
	}
	lockers, shut, err := b.open(ss, func(*system) options { return options{} })
	if err != nil {
		return nil, err
	}
	defer shut(&err)
	fresh := 0
	var runs []run
	for i, s := range ss {
		l := lockers[i]
		runs = append(runs, b.measured(run{name: s.name, round: func() (series, error) {
			if s.isSpindle() {
				if err := b.sleep(spindleEnds(options{})); err != nil {
					return nil, err
				}
			}
			return timed(times(s), func() error { return pair(b.ctx, l, "nightly") })
		}}, s, l, false))
	}
	for i, s := range ss {
		l := lockers[i]
		runs = append(runs, b.measured(run{name: s.name, round: func() (series, error) {
			return timed(times(s), func() error { fresh++; return pair(b.ctx, l, fmt.Sprintf("job/%d", fresh)) })
		}}, s, l, false))
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	for i, r := range runs {
		s := ss[i%len(ss)]
		what := ""
		if i >= len(ss) {
			what = "a new name each time"
		}
		row := taken[i].row(s.row(what), "ms", 1e3)
		row.Uses = r.used.each()
		floor := slices.IndexFunc(runs, func(o run) bool { return o.name == s.of })
		if i >= len(ss) {
			floor += len(ss)
		}
		row = row.beside(s, taken[i].ratio(taken[floor]))
		if s.name == "holdfast" && s.store == "etcd" {
			mutex := slices.IndexFunc(ss, func(o *system) bool { return o.name == "concurrency.Mutex" }) + i - i%len(ss)
			row = row.notes("%sx of concurrency.Mutex", figure(taken[i].ratio(taken[mutex])))
		}
		if s.isSpindle() {
			if row = row.notes("lease %v", spindleLease(options{})); i < len(ss) {
				row.Note += ", which has ended"
			}
		} else if i < len(ss) {
			switch r.name {
			case "holdfast":
				if aim := s.kind().aim; aim > 0 {
					row = row.aims(fmt.Sprintf("≤ %.2fx", aim), row.Ratio <= aim)
				}
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}
