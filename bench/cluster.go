package main

import (
	"fmt"
	"slices"
	"time"
)

// Rows of a store where a round of consensus costs far more than all else, and
// of which these have to be told apart.

// clusterHandRows tell of a crowd: how often the lock went on, for how much, and
// how it was shared. of are the rounds of the system that it is compared with.
func clusterHandRows(s *system, n int, told, of []crowdRun, taken, beside rounds) (rows []Row) {
	what := fmt.Sprintf("%d processes", n)
	add := func(suffix, unit string, x float64) *Row {
		r := s.row(what + suffix)
		r.Unit, r.Median = unit, x
		rows = append(rows, r)
		return &rows[len(rows)-1]
	}
	var rates, ratios, arrivals series
	var sum asked
	holds, fewest, most, longest, shares := 0.0, told[0].fewest, 0, 0.0, 0.0
	for i, c := range told {
		rate := float64(c.turns) / c.seconds
		rates = append(rates, rate)
		if other := float64(of[i].turns) / of[i].seconds; other > 0 {
			ratios = append(ratios, rate/other)
		}
		sum = sum.plus(c.asked, 1)
		holds += float64(c.turns)
		fewest, most, longest = min(fewest, c.fewest), max(most, c.most), max(longest, c.longest)
		shares = max(shares, float64(c.most)/max(float64(c.fewest), 0.1))
		arrivals = append(arrivals, c.queued)
	}
	r := add(", holds/s", "/s", rates.quantile(0.5))
	*r = r.notes("%.0f holds of 10 to 30 ms", holds)
	compared := s.name != s.kind().beside
	if compared {
		r.Ratio, r.Of = ratios.quantile(0.5), s.kind().beside
	}
	if s.ours() {
		*r = r.aims("≥ 0.8x", r.Ratio >= 0.8)
	}
	if hands := slices.Concat(taken...); len(hands) > 0 {
		rows = append(rows, taken.row(s.row(what+", a hand-off"), "ms", 1e3))
		r := &rows[len(rows)-1]
		*r = r.notes("of %d", len(hands))
		if compared && len(slices.Concat(beside...)) > 0 {
			r.Ratio, r.Of = taken.ratio(beside), s.kind().beside
		}
	}
	switch per := sum.per(holds); {
	case holds == 0 || per.lwts+per.writes == 0: // not counted
	case per.lwts == 0:
		r := add(", per hold", "writes", per.writes)
		*r = r.notes("%.1f reads", per.reads)
	default:
		r := add(", per hold", "LWTs", per.lwts-per.beats)
		*r = r.notes("%.2f SERIAL reads, %.1f others; %.3f failed", per.serial, per.reads, per.failed)
		if s.ours() {
			*r = r.notes("%.2f SERIAL reads, %.1f others; %.3f failed; and %.2f heartbeats", per.serial, per.reads, per.failed, per.beats)
			*r = r.aims("≤ 2.5", per.lwts-per.beats <= 2.5)
		}
	}
	if fewest == 0 {
		r = add(", the fewest holds of one", "holds", 0)
	} else {
		r = add(", the most holds of one to the fewest", "x", shares)
	}
	*r = r.notes("the worst round; %d to %d holds, longest wait %s s", fewest, most, figure(longest))
	if s.ours() {
		*r = r.aims("≤ 2x", fewest > 0 && shares <= 2)
	}
	if s.ours() {
		r := add(" arrive at once, all queued", "s", arrivals.quantile(0.5))
		*r = r.notes("new clients, the first opens its session here; slowest round %s s", figure(slices.Max(arrivals)))
	}
	return rows
}

// clusterWaitRows tell what n waiters on some names cost in a second: early,
// while they came and in what followed, and late. rest is what the holder costs.
func clusterWaitRows(s *system, n, names int, rest, early, late asked, cpu float64, queued time.Duration) (rows []Row) {
	add := func(when string, a asked, aim bool) *Row {
		r := s.row(fmt.Sprintf("%d waiters on %d names%s, LWTs", n, names, when))
		r.Unit, r.Median = "LWTs/s", a.lwts-rest.lwts
		rows = append(rows, r.notes("%.2f SERIAL reads/s; %.2f failed/s", a.serial-rest.serial, a.failed-rest.failed))
		r = s.row(fmt.Sprintf("%d waiters on %d names%s, cheap reads", n, names, when))
		r.Unit, r.Median = "reads/s", a.reads-rest.reads
		if aim {
			r = r.aims("≤ 1/s", r.Median <= 1)
		}
		rows = append(rows, r)
		return &rows[len(rows)-1]
	}
	r := add(", at first", early, false)
	if s.ours() {
		*r = r.notes("all queued after %s s", figure(queued.Seconds()))
	}
	r = add("", late, s.ours())
	*r = r.notes("%.1f %% of a CPU", cpu*100)
	return rows
}
