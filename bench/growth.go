package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// growth measures how costs grow: those of a free lock with the names in the table and with the
// sessions that hold something, and those of a hand-off with the sessions that wait for one name.
// With goroutines they grow under throughput.
func growth(b *bench) ([]Row, error) {
	names, sessions, waiting := []int{1000, 10_000, 100_000}, []int{10, 100, 1000}, []int{10, 100, 300}
	switch {
	case b.large:
		names = append(names, 1_000_000, 10_000_000)
		sessions = append(sessions, 10_000)
	case b.quick:
		names, sessions, waiting = names[:2], sessions[:2], waiting[:2]
	}
	return b.eachStore("latency", func(ss []*system) (rows []Row, err error) {
		i := slices.IndexFunc(ss, func(s *system) bool { return s.name == "holdfast" })
		switch ss[0].store {
		case "sqlite", "postgres", "mysql", "etcd":
		default:
			return nil, nil
		}
		for _, part := range []struct {
			f     func(b *bench, s *system, n int) ([]Row, error)
			sizes []int
		}{{withSessions, sessions}, {withWaiters, waiting}, {withNames, names}} {
			for _, n := range part.sizes {
				some, err := part.f(b, ss[i], n)
				if err != nil {
					return nil, fmt.Errorf("at %d: %w", n, err)
				}
				rows = append(rows, some...)
			}
		}
		return rows, nil
	})
}

// free measures a free lock on a name after the other.
func (b *bench) free(s *system, l locker, what string, size int, name func(i int) string) (Row, error) {
	n := 500
	if b.quick {
		n = 100
	}
	i := 0
	r := b.measured(run{name: s.name, round: func() (series, error) {
		return timed(n, func() error { i++; return pair(b.ctx, l, name(i)) })
	}}, s, l, false)
	taken, err := b.take(2, true, []run{r})
	if err != nil {
		return Row{}, err
	}
	row := taken[0].row(s.row(what), "ms", 1e3)
	row.Size, row.Uses = size, r.used.each()
	return row, nil
}

// byLocks is the most names of growth that are there because each was locked once.
const byLocks = 100_000

// withNames has so many names in the table, as if they had been taken and given back.
func withNames(b *bench, s *system, n int) (rows []Row, err error) {
	l, err := s.open(b.ctx, &b.site, options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	start, old := time.Now(), b.filled[s.store]
	how := "from 64 goroutines"
	if s.store == "postgres" && n > byLocks { // names that are not used for ten minutes are swept
		how = "in one statement"
		err = b.fillPostgres(old, n)
	} else {
		err = many(n-old, func(i int) error { return pair(b.ctx, l, fmt.Sprintf("filler/%d", old+i)) })
	}
	if err != nil {
		return nil, err
	}
	took := time.Since(start).Seconds()
	b.filled[s.store] = n
	row, err := b.free(s, l, "names in the table", n, func(i int) string { return fmt.Sprintf("filler/%d", i*7919%n) })
	if err != nil {
		return nil, err
	}
	rows = append(rows, row.notes("the last %d of them took %s s, %s", n-old, figure(took), how))
	b.round++
	row, err = b.free(s, l, "names in the table, a new one", n, func(i int) string { return fmt.Sprintf("new/%d/%d", b.round, i) })
	return append(rows, row), err
}

// withSessions has so many sessions hold a lock each, with the default TTL, in a process of their own.
func withSessions(b *bench, s *system, n int) (rows []Row, err error) {
	ps, err := b.players(1, "many", s, options{Count: n})
	if err != nil {
		return nil, err
	}
	defer dismiss(ps)
	b.round++
	if err := ps[0].order("hold growth/%d", b.round); err != nil {
		return nil, err
	}
	if _, err := ps[0].expect("held"); err != nil {
		return nil, err
	}
	length := 10 * time.Second
	if b.quick {
		length = 5 * time.Second
	}
	if err := b.sleep(time.Second); err != nil {
		return nil, err
	}
	before, after, err := b.lookTwice(s, ps[0], length)
	if err != nil {
		return nil, err
	}
	took := after.at.Sub(before.at).Seconds()
	used := after.since(before)
	l, err := s.open(b.ctx, &b.site, options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	row, err := b.free(s, l, "sessions that hold something", n, func(int) string { return "nightly" })
	if err != nil {
		return nil, err
	}
	rows = append(rows, row)
	row = s.row("sessions that hold something, all of them a second")
	row.Size, row.Unit, row.Median = n, s.kind().requests+"/s", used.requests/took
	row = row.notes("%.1f heartbeats a second; %.1f %% of a processor for the server, %.1f %% for the sessions", used.beats/took, used.before.server/took*100, used.before.client/took*100)
	return append(rows, row), nil
}

// look is what a process of many clients has used so far, with what it counts itself.
func (b *bench) look(s *system, p *player) (r reading, err error) {
	var own manyCount
	if err = p.order("look"); err == nil {
		err = p.tells("look", &own)
	}
	if err == nil {
		r, err = b.read(s, nil, p)
	}
	r.requests += own.Requests
	r.beats = own.Beats
	return r, err
}

// lookTwice looks, and again after a while.
func (b *bench) lookTwice(s *system, p *player, while time.Duration) (before, after reading, err error) {
	if before, err = b.look(s, p); err == nil {
		err = b.sleep(while)
	}
	if err == nil {
		after, err = b.look(s, p)
	}
	return before, after, err
}

// withWaiters has so many sessions wait for one name, and then lets it go from one to the next.
func withWaiters(b *bench, s *system, n int) (rows []Row, err error) {
	length, hands := 5*time.Second, 3*time.Second
	if b.quick {
		length, hands = 2*time.Second, time.Second
	}
	l, err := s.open(b.ctx, &b.site, options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	b.round++
	name := fmt.Sprintf("queue/%d", b.round)
	h, err := l.lock(b.ctx, name)
	if err != nil {
		return nil, err
	}
	ps, err := b.players(1, "many", s, options{Count: n})
	if err != nil {
		return nil, errors.Join(err, h.unlock())
	}
	defer dismiss(ps)
	start := time.Now()
	if err := ps[0].order("wait %s", name); err != nil {
		return nil, err
	}
	if _, err := ps[0].expect("queued"); err != nil {
		return nil, err
	}
	queued := time.Since(start)
	if err := b.sleep(2 * time.Second); err != nil {
		return nil, err
	}
	before, still, err := b.lookTwice(s, ps[0], length)
	if err != nil {
		return nil, err
	}
	if err := h.unlock(); err != nil {
		return nil, err
	}
	if err := b.sleep(hands); err != nil {
		return nil, err
	}
	after, err := b.look(s, ps[0])
	if err != nil {
		return nil, err
	}
	if err := ps[0].order("turns"); err != nil {
		return nil, err
	}
	var turns []turn
	if err := ps[0].tells("turns", &turns); err != nil {
		return nil, err
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.Got, b.Got) })
	var s2 series
	for i := 1; i < len(turns); i++ {
		s2 = append(s2, time.Duration(turns[i].Got-turns[i-1].Let).Seconds())
	}
	row := rounds{s2}.row(s.row("sessions that wait for one name, a hand-off"), "ms", 1e3)
	used := &usage{}
	used.add(after.since(still).withoutDisk(), float64(len(turns)))
	row.Size, row.Uses = n, used.each()
	rows = append(rows, row.notes("%d hand-offs, holds of 5 ms; all queued after %s s", len(s2), figure(queued.Seconds())))
	waited, took := still.since(before), still.at.Sub(before.at).Seconds()
	row = s.row("sessions that wait for one name, all of them a second")
	row.Size, row.Unit, row.Median = n, s.kind().requests+"/s", waited.requests/took
	return append(rows, row.notes("%.1f heartbeats a second; %.1f %% of a processor for the server, %.1f %% for those who wait", waited.beats/took, waited.before.server/took*100, waited.before.client/took*100)), nil
}

// playMany is many clients on one store, as so many processes.
func playMany(t *task, orders *bufio.Scanner) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var beats, queued atomic.Int64
	n := t.Options.Count
	t.Options.beat = func() { beats.Add(1) }
	t.Options.waiting = func() {
		if queued.Add(1) == int64(n) {
			tell("queued")
		}
	}
	l, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	first, ok := l.(*client)
	if !ok {
		return errors.New("not one of ours")
	}
	clients := make([]*holdfast.Client, n)
	defer func() {
		many(len(clients), func(i int) error {
			if clients[i] != nil {
				clients[i].Close()
			}
			return nil
		})
	}()
	if err := many(n, func(i int) (err error) { clients[i], err = first.another(); return err }); err != nil {
		return err
	}
	tell("ready")
	var mu sync.Mutex
	turns := []turn{}
	failed := make(chan error, n)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for orders.Scan() {
		var what, name string
		fmt.Sscan(orders.Text(), &what, &name)
		switch what {
		case "hold":
			if err := many(n, func(i int) error {
				_, err := clients[i].Acquire(ctx, fmt.Sprintf("%s/%d", name, i))
				return err
			}); err != nil {
				return err
			}
			tell("held")
		case "wait":
			for i := range n {
				wg.Go(func() {
					l, err := clients[i].Acquire(ctx, name)
					now := turn{Got: monotonic()}
					if err == nil {
						time.Sleep(5 * time.Millisecond)
						now.Let = monotonic()
						err = l.Release(ctx)
					}
					if err != nil && ctx.Err() == nil {
						failed <- err
						return
					}
					if err == nil {
						mu.Lock()
						turns = append(turns, now)
						mu.Unlock()
					}
				})
			}
		case "look":
			select {
			case err := <-failed:
				return err
			default:
			}
			if err := tellJSON("look", manyCount{first.requests(), float64(beats.Load())}); err != nil {
				return err
			}
		case "turns":
			mu.Lock()
			if err := tellJSON("turns", turns); err != nil {
				return err
			}
			mu.Unlock()
		}
	}
	return orders.Err()
}
