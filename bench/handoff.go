package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// handoff passes one lock around among processes that want it all the time and
// hold it for 10 to 30 ms. A hand-off goes from just before the holder's call to
// release until the next one's call to acquire has returned, by the clock that
// the kernel shows to all; it counts if the next is another process that had
// been asking for 5 ms when the holder let go.
func handoff(b *bench) (rows []Row, err error) {
	crowds := []int{2, 8, 64}
	if b.quick {
		crowds = []int{2, 8}
	}
	return b.eachStore("handoff", func(ss []*system) (rows []Row, err error) {
		for _, n := range crowds {
			if ss[0].store == claimsStore && (n > 8 || b.quick && n > 2) { // each a JVM
				continue
			}
			if ss[0].kind().emulated && n > 8 { // it would show how an emulator turns them away
				continue
			}
			some, err := turnsOf(b, ss, n)
			if err != nil {
				return nil, err
			}
			rows = append(rows, some...)
		}
		if ss[0].kind().emulated {
			some, err := handOver(b, ss)
			if err != nil {
				return nil, err
			}
			rows = append(rows, some...)
		}
		for _, s := range ss {
			if s.name != "holdfast" {
				continue
			}
			if floor := findSystem(s.store, s.of); floor != nil && !s.kind().emulated {
				row, err := lastWrite(b, floor)
				if err != nil {
					return nil, err
				}
				rows = append(rows, row)
			}
			if s.kind().idle {
				some, err := besideIdle(b, s)
				if err != nil {
					return nil, err
				}
				rows = append(rows, some...)
			}
		}
		return rows, nil
	})
}

const waitsAlready = 5 * time.Millisecond

// A turn is one hold of a process, or its last wait, in ns.
type turn struct {
	Asked, Got, Let, Free int64 // Got is 0 if it did not get it
	who                   int
}

// A crowdRun is what one round of a crowd showed.
type crowdRun struct {
	hands   series  // seconds each
	last    series  // seconds that each call to release took
	turns   int     // holds in the time that was counted
	used    reading // in the same time
	seconds float64 // of that time
	asked   asked   // in the same time, where a tally is kept
	fewest  int     // holds of the one with the fewest
	most    int     // and with the most
	longest float64 // seconds that one has waited
	both    int     // times that two held at once, where that is no error of the bench
	queued  float64 // seconds from the start until all had joined the queue; 0: not told
}

func turnsOf(b *bench, ss []*system, n int) (rows []Row, err error) {
	var runs []run
	told := make([][]crowdRun, len(ss))
	for i, s := range ss {
		runs = append(runs, run{name: s.name, round: func() (series, error) {
			c, err := b.crowd(s, n, options{})
			if err != nil {
				return nil, fmt.Errorf("%s, %d processes: %w", s.name, n, err)
			}
			told[i] = append(told[i], c)
			return c.hands, nil
		}})
	}
	taken, err := b.take(b.few(), false, runs)
	if err != nil {
		return nil, err
	}
	for i, s := range ss {
		of := slices.IndexFunc(ss, func(o *system) bool { return o.name == s.kind().beside })
		if s.store == "cassandra" || s.store == claimsStore {
			rows = append(rows, clusterHandRows(s, n, told[i], told[of], taken[i], taken[of])...)
			continue
		}
		rows = append(rows, handRows(s, n, told[i], taken[i], taken[max(of, 0)])...)
	}
	return rows, nil
}

func handRows(s *system, n int, told []crowdRun, taken, beside rounds) (rows []Row) {
	row := s.row(fmt.Sprintf("%d processes", n))
	turns, both := 0, 0
	var used usage
	var rates series
	fewest, most, longest, queued := -1, 0, 0.0, series{}
	for _, c := range told {
		turns += c.turns
		both += c.both
		used.add(c.used.withoutDisk(), float64(c.turns))
		rates = append(rates, float64(c.turns)/c.seconds)
		if fewest < 0 || c.fewest < fewest {
			fewest = c.fewest
		}
		most, longest = max(most, c.most), max(longest, c.longest)
		queued = append(queued, c.queued)
	}
	row.Size, row.Uses = n, used.each()
	requests := 0.0
	if row.Uses != nil {
		requests = row.Uses.Requests
	}
	hands := len(slices.Concat(taken...))
	if hands > 0 {
		row = taken.row(row, "ms", 1e3)
		if of := s.kind().beside; of != s.name && of != "" && len(slices.Concat(beside...)) > 0 {
			row.Ratio, row.Of = taken.ratio(beside), of
		}
	}
	row = row.notes("%d hand-offs, %d to %d holds each, longest wait %s s", hands, fewest, most, figure(longest))
	rate := s.row(fmt.Sprintf("%d processes, holds/s", n))
	rate.Size, rate.Unit, rate.Median = n, "/s", rates.quantile(0.5)
	rows = append(rows, rate.notes("holds of 10 to 30 ms, so 50/s at most"))
	if !s.ours() || s.kind().counted {
		if s.isSpindle() {
			row.Note += fmt.Sprintf(", lease %v, two at once: %d", spindleLease(options{}), both)
		}
		if s.ours() && s.store == "sqlite" {
			row = row.aims("p50 ≤ 2 ms", row.Median <= 2)
		}
		return append(rows, row)
	}
	limit, per := 2.0, 4.0
	switch {
	case s.store == "mysql":
		limit, per = 4, 15
	case n > 8:
		limit = 4
	}
	if s.name == "holdfast" { // what has to poll is measured, but has no aim
		row = row.aims(fmt.Sprintf("p50 ≤ %g ms", limit), hands > 0 && row.Median <= limit)
	}
	rows = append(rows, row)
	if requests > 0 {
		r := s.row(fmt.Sprintf("%d processes, %s per hand-off", n, s.kind().requests))
		r.Unit, r.Median = s.kind().requests, requests
		r = r.notes("counted by the server, heartbeats and all")
		if s.name == "holdfast" {
			r = r.aims(fmt.Sprintf("≤ %g", per), r.Median <= per)
		}
		rows = append(rows, r)
	}
	r := s.row(fmt.Sprintf("%d processes, fewest holds of one", n))
	r.Unit, r.Median = "holds", float64(fewest)
	rows = append(rows, r.aims("nobody starved", fewest > 0).notes("at most %d; longest wait %s s", most, figure(longest)))
	r = s.row(fmt.Sprintf("%d arrive at once, all queued", n))
	r.Unit, r.Median = "s", queued.quantile(0.5)
	r = r.notes("new clients, the first opens its session here; slowest round %s s", figure(slices.Max(queued)))
	if n >= 64 {
		r = r.aims("≤ 1 s", r.Median <= 1)
	}
	return append(rows, r)
}

// crowd runs one round of n processes.
func (b *bench) crowd(s *system, n int, o options) (c crowdRun, err error) {
	length := 5 * time.Second
	switch {
	case s.store == claimsStore:
		length = 10 * time.Second
	case s.isSpindle():
		length = 10 * time.Second
	case n > 8 && s.store == "cassandra": // so that each may have had a few
		length = 20 * time.Second
	case n > 8:
		length = 8 * time.Second
	}
	if b.quick {
		length = min(length/5, 2*time.Second)
		if s.isSpindle() {
			length = 4 * time.Second
		}
	}
	ps, err := b.players(n, "turns", s, o)
	if err != nil {
		return c, err
	}
	defer dismiss(ps)
	b.round++
	start := monotonic()
	for _, p := range ps {
		if err := p.order("begin crowd/%d", b.round); err != nil {
			return c, err
		}
	}
	if s.ours() {
		for _, p := range ps {
			in, err := p.stamp("in")
			if err != nil {
				return c, err
			}
			c.queued = max(c.queued, time.Duration(in-start).Seconds())
		}
	}
	if err := b.sleep(time.Second); err != nil { // who arrives is not yet who waits
		return c, err
	}
	before, err := b.read(s, nil, ps...)
	if err != nil {
		return c, err
	}
	kinds := b.kindsOf(b.servers[s.store])
	asked := b.servers[s.store].tally.asked()
	from := monotonic()
	if err := b.sleep(length); err != nil {
		return c, err
	}
	to := monotonic()
	after, err := b.read(s, nil, ps...)
	if err != nil {
		return c, err
	}
	c.used, c.seconds = after.since(before), time.Duration(to-from).Seconds()
	c.asked = b.servers[s.store].tally.asked().since(asked)
	kindsAfter := b.kindsOf(b.servers[s.store])

	var turns []turn
	holds := make([]int, n)
	for _, p := range ps {
		if err := p.order("stop"); err != nil {
			return c, err
		}
	}
	for i, p := range ps {
		var its []turn
		if err := p.tells("turns", &its); err != nil {
			return c, err
		}
		for _, t := range its {
			end := t.Got
			if end == 0 {
				end = to
			}
			if end >= from {
				c.longest = max(c.longest, time.Duration(min(end, to)-t.Asked).Seconds())
			}
			if t.Got == 0 {
				continue
			}
			t.who = i
			turns = append(turns, t)
			if t.Got >= from && t.Got <= to {
				holds[i]++
				c.turns++
				c.last = append(c.last, time.Duration(t.Free-t.Let).Seconds())
			}
		}
	}
	b.sayKinds(fmt.Sprintf("%s, %d processes, for each hold", s.name, n), kinds, kindsAfter, float64(c.turns))
	c.fewest, c.most = slices.Min(holds), slices.Max(holds)
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.Got, b.Got) })
	for i := 1; i < len(turns); i++ {
		was, is := turns[i-1], turns[i]
		if is.Got < was.Let && s.isSpindle() { // which tells two that they have it, if both come at the end of a lease
			c.both++
			continue
		}
		if is.Got < was.Let {
			return c, fmt.Errorf("two held at once for %v", time.Duration(was.Let-is.Got))
		}
		if is.who != was.who && is.Asked+int64(waitsAlready) <= was.Let && is.Got >= from && is.Got <= to {
			c.hands = append(c.hands, time.Duration(is.Got-was.Let).Seconds())
		}
	}
	return c, nil
}

// playTurns wants one lock all the time.
func playTurns(t *task, orders *bufio.Scanner) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var in sync.Once
	tellIn := func() { in.Do(func() { tell("in %d", monotonic()) }) }
	t.Options.waiting = tellIn
	l, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	tell("ready")
	if !orders.Scan() {
		return orders.Err()
	}
	name, ok := strings.CutPrefix(orders.Text(), "begin ")
	if !ok {
		return errors.New("no such order")
	}
	go func() { // "stop", or the end of who gives the orders
		orders.Scan()
		cancel()
	}()
	turns := []turn{}
	for ctx.Err() == nil {
		now := turn{Asked: monotonic()}
		h, err := l.lock(ctx, name)
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			turns = append(turns, now)
			break
		}
		now.Got = monotonic()
		tellIn()
		time.Sleep(10*time.Millisecond + rand.N(20*time.Millisecond))
		now.Let = monotonic()
		if err := h.unlock(); err != nil {
			return err
		}
		now.Free = monotonic()
		turns = append(turns, now)
	}
	text, err := json.Marshal(turns)
	tell("turns %s", text)
	return err
}

// lastWrite measures what no hand-off can do without: one process alone makes the bare writes of a
// lock with a hold between them, and the second is timed. A machine that was idle for that long is
// slower than one that is busy.
func lastWrite(b *bench, floor *system) (Row, error) {
	taken, err := b.take(b.few(), false, []run{{name: floor.name, round: func() (series, error) {
		c, err := b.crowd(floor, 1, options{})
		return c.last, err
	}}})
	if err != nil {
		return Row{}, fmt.Errorf("%s, after a hold: %w", floor.name, err)
	}
	row := floor.row("the last of bare writes, after a hold")
	row.Size = 1
	return taken[0].row(row, "ms", 1e3), nil
}

// besideIdle measures a hand-off between two while many others are connected,
// each with a lock of its own, against the same without them.
func besideIdle(b *bench, s *system) ([]Row, error) {
	n := 256
	if b.quick {
		n = 32
	}
	var runs []run
	for _, idle := range []bool{false, true} {
		runs = append(runs, run{name: s.name, round: func() (series, error) {
			if idle {
				ps, err := b.players(1, "idle", s, options{Conns: n})
				if err != nil {
					return nil, err
				}
				defer dismiss(ps)
			}
			c, err := b.crowd(s, 2, options{})
			return c.hands, err
		}})
	}
	taken, err := b.take(b.few(), false, runs)
	if err != nil {
		return nil, err
	}
	row := taken[1].row(s.row(fmt.Sprintf("2 processes beside %d idle clients", n)), "ms", 1e3)
	row.Ratio, row.Of = taken[1].ratio(taken[0]), "without them"
	return []Row{row.aims("≤ 1.5x", row.Ratio <= 1.5).notes("each with a pool and a lock of its own; %s ms without them", figure(taken[0].median()*1e3))}, nil
}

// playIdle is many clients that hold a lock each.
func playIdle(t *task, orders *bufio.Scanner) (err error) {
	ctx := context.Background()
	n := t.Options.Conns
	t.Options.Conns = 0
	lockers := make([]locker, n)
	failed := make(chan error, n)
	var wg sync.WaitGroup
	gate := make(chan struct{}, 8)
	for i := range n {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			l, err := t.open(ctx)
			if err == nil {
				lockers[i] = l
				_, err = l.lock(ctx, fmt.Sprintf("idle/%d", i))
			}
			if err != nil {
				failed <- err
			}
		})
	}
	wg.Wait()
	defer func() {
		for _, l := range lockers {
			if l != nil {
				wg.Go(func() { l.close() })
			}
		}
		wg.Wait()
	}()
	select {
	case err := <-failed:
		return err
	default:
	}
	tell("ready")
	orders.Scan()
	return orders.Err()
}
