package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A holding is what it costs to hold many locks.
type holding struct {
	Heap, RSS float64 // bytes that came with the locks
	Contexts  float64 // heap bytes that came with their contexts
	Acquired  float64 // seconds to acquire all
}

// A keeping is what it costs to keep them for a while.
type keeping struct {
	Seconds, Beats float64
	Requests       float64 // as counted by the process, where no server counts
	CPU            float64 // seconds
}

// keep holds many locks, in a process of its own whose memory is measured.
func keep(b *bench) ([]Row, error) {
	return b.eachStore("held", func(ss []*system) (rows []Row, err error) {
		for _, s := range ss {
			sizes := []int{10_000, 100_000}
			switch {
			case b.quick:
				sizes = []int{1000}
			case s.name == "pglock", s.name == "IF NOT EXISTS":
				sizes = []int{1000}
			case s.store == "dir", s.store == "cassandra": // each is a directory, or a round trip or two
				sizes = []int{10_000}
			case !s.ours():
				sizes = []int{10_000}
			}
			for _, n := range sizes {
				some, err := hold(b, s, n)
				if err != nil {
					return nil, fmt.Errorf("%s, %d locks: %w", s.name, n, err)
				}
				rows = append(rows, some...)
			}
		}
		return rows, nil
	})
}

func hold(b *bench, s *system, n int) (rows []Row, err error) {
	length := 20 * time.Second
	if b.quick {
		length = 6 * time.Second
	}
	var o options
	switch s.name {
	case "redislock", "redsync", "IF NOT EXISTS":
		o.TTL = time.Hour // they renew nothing
	case "pg_advisory_lock", "GET_LOCK":
		o.Conns = 1 // all in one session
	}
	ps, err := b.players(1, "hold", s, o)
	if err != nil {
		return nil, err
	}
	p := ps[0]
	defer dismiss(ps)
	var h holding
	if err := p.order("hold %d", n); err != nil {
		return nil, err
	}
	if err := p.tells("held", &h); err != nil {
		return nil, err
	}
	k, requests, err := b.keeping(s, p, length)
	if err != nil {
		return nil, err
	}
	// Now and then a client looks through all names for what is left over. That
	// is no part of a beat, but is told.
	swept := ""
	if s.ours() && requests > 3*k.Beats {
		swept = fmt.Sprintf("; a sweep of all names before that: %.0f", requests)
		if k, requests, err = b.keeping(s, p, length); err != nil {
			return nil, err
		}
	}
	if err := p.order("free"); err != nil {
		return nil, err
	}
	freed, err := p.number("freed")
	if err != nil {
		return nil, err
	}

	const mib = 1 << 20
	add := func(what, unit string, x float64) *Row {
		r := s.row(fmt.Sprintf("%d locks, %s", n, what))
		r.Unit, r.Median = unit, x
		rows = append(rows, r)
		return &rows[len(rows)-1]
	}
	if s.ours() {
		r := add(s.kind().requests+" per beat", s.kind().requests, requests/k.Beats)
		*r = r.aims("1 per beat", requests <= k.Beats+0.5).
			notes("%.0f in %.0f beats, the default TTL of 15s; %.2f ms of CPU each%s", requests, k.Beats, k.CPU/k.Beats*1e3, swept)
	} else {
		r := add("to keep them", s.kind().requests+"/s", requests/k.Seconds)
		if o.TTL == time.Hour {
			*r = r.notes("it renews nothing: its user would, each lock by itself")
		}
	}
	r := add("heap", "MiB", h.Heap/mib)
	*r = r.notes("%.0f bytes per lock", h.Heap/float64(n))
	if limit := 8.0 * float64(n) / 10_000; s.ours() && n >= 10_000 {
		*r = r.aims(fmt.Sprintf("≤ %s MiB", figure(limit)), h.Heap <= limit*mib)
	}
	if s.ours() {
		*add("heap, each context waited for", "MiB", (h.Heap+h.Contexts)/mib) =
			rows[len(rows)-1].notes("%.0f bytes per lock", (h.Heap+h.Contexts)/float64(n))
		add("resident", "MiB", h.RSS/mib)
	}
	r = add("to take all", "s", h.Acquired)
	*r = r.notes("64 goroutines, %.0f locks/s", float64(n)/h.Acquired)
	r = add("to give all back", "s", freed)
	*r = r.notes("64 goroutines, %.0f locks/s", float64(n)/freed)
	return rows, nil
}

// keeping has a process keep its locks for a while, and counts its requests.
func (b *bench) keeping(s *system, p *player, length time.Duration) (k keeping, requests float64, err error) {
	count := func() (float64, error) { return 0, nil }
	if server := b.servers[s.store]; server.requests != nil {
		count = func() (float64, error) { return server.requests(b.ctx) }
	}
	if err := p.order("keep %d", length.Milliseconds()); err != nil {
		return k, 0, err
	}
	if _, err := p.expect("from"); err != nil {
		return k, 0, err
	}
	before, err := count()
	if err != nil {
		return k, 0, err
	}
	kinds := b.kindsOf(b.servers[s.store])
	if err := p.tells("kept", &k); err != nil {
		return k, 0, err
	}
	after, err := count()
	b.sayKinds(s.name+", to keep them", kinds, b.kindsOf(b.servers[s.store]), 1)
	return k, after - before + k.Requests, err
}

// many calls f for 0 to n-1 from 64 goroutines.
func many(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	failed := make(chan error, 64)
	for range cap(failed) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := f(int(i)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// playHold holds locks and measures it.
func playHold(t *task, orders *bufio.Scanner) error {
	ctx := context.Background()
	var beats atomic.Int64
	beaten := make(chan struct{}, 1)
	t.Options.beat = func() {
		beats.Add(1)
		select {
		case beaten <- struct{}{}:
		default:
		}
	}
	l, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	// What one lock needs is there before any is counted.
	first, err := l.lock(ctx, "first")
	if err != nil {
		return err
	}
	defer first.unlock()
	tell("ready")

	var locks []held
	var names []string
	for orders.Scan() {
		what, rest, _ := strings.Cut(orders.Text(), " ")
		n, _ := strconv.Atoi(rest)
		switch what {
		case "hold":
			locks, names = make([]held, n), make([]string, n)
			for i := range names {
				names[i] = fmt.Sprintf("customers/%d/invoices", i)
			}
			var h holding
			heap, resident := memoryUsed()
			start := time.Now()
			if err := many(n, func(i int) (err error) {
				locks[i], err = l.lock(ctx, names[i])
				return err
			}); err != nil {
				return err
			}
			h.Acquired = time.Since(start).Seconds()
			all, allResident := memoryUsed()
			h.Heap, h.RSS = all-heap, allResident-resident
			h.Contexts = contexts(locks)
			if err := tellJSON("held", h); err != nil {
				return err
			}
		case "keep":
			_, ours := l.(*client)
			afterBeat(beaten, ours)
			k := keeping{Beats: -float64(beats.Load())}
			if c, ok := l.(countingLocker); ok {
				k.Requests = -c.requests()
			}
			start, cpu := time.Now(), cpuTime()
			tell("from")
			time.Sleep(time.Duration(n) * time.Millisecond)
			afterBeat(beaten, ours)
			k.Seconds, k.CPU = time.Since(start).Seconds(), (cpuTime() - cpu).Seconds()
			k.Beats += float64(beats.Load())
			if c, ok := l.(countingLocker); ok {
				k.Requests += c.requests()
			}
			if err := tellJSON("kept", k); err != nil {
				return err
			}
		case "free":
			start := time.Now()
			if err := many(len(locks), func(i int) error { return locks[i].unlock() }); err != nil {
				return err
			}
			tell("freed %f", time.Since(start).Seconds())
			runtime.KeepAlive(names)
		default:
			return errors.New("no such order")
		}
	}
	return orders.Err()
}

// contexts is the heap that the contexts of locks need that are waited for.
func contexts(locks []held) float64 {
	before, _ := memoryUsed()
	all := make([]context.Context, 0, len(locks))
	for _, h := range locks {
		if l, ok := h.(ours); ok {
			all = append(all, l.Context())
			l.Context().Done()
		}
	}
	after, _ := memoryUsed()
	runtime.KeepAlive(all)
	return after - before - 16*float64(len(all))
}

// afterBeat returns a while after a heartbeat, between that one and the next.
func afterBeat(beaten chan struct{}, there bool) {
	if !there {
		return
	}
	select {
	case <-beaten:
	default:
	}
	<-beaten
	time.Sleep(100 * time.Millisecond)
}

func tellJSON(word string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		tell("%s %s", word, text)
	}
	return err
}

// memoryUsed is what the heap holds and what of the process is resident, in bytes.
func memoryUsed() (heap, resident float64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // twice: what the first has only set aside
	runtime.ReadMemStats(&m)
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if f := strings.Fields(string(text)); len(f) > 1 {
			pages, _ := strconv.ParseFloat(f[1], 64)
			resident = pages * float64(os.Getpagesize())
		}
	}
	return float64(m.HeapAlloc), resident
}
