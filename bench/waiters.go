package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// waiters has 1,000 goroutines of one process wait for what another process
// holds and does not give back, and counts what that costs the server: as much
// more as it is than with the holder alone.
func waiters(b *bench) ([]Row, error) {
	n := 1000
	if b.quick {
		n = 100
	}
	return b.eachStore("waiters", func(ss []*system) (rows []Row, err error) {
		for _, s := range ss {
			n := n
			switch {
			case s.store == "cassandra":
				n = min(n, 100)
			case s.kind().emulated: // it answers few queries in a second
				n = 20
				alone, err := wait(b, s, 1, 1)
				if err != nil {
					return nil, fmt.Errorf("%s, one waiter: %w", s.name, err)
				}
				rows = append(rows, alone...)
			}
			for _, names := range []int{1, n} {
				if s.store == "etcd" && names == 1 {
					rows = append(rows, s.row("waiters on 1 name").notes("not measured: within one session all would hold it"))
					continue
				}
				if s.isSpindle() && names > 1 {
					rows = append(rows, s.row(fmt.Sprintf("%d waiters on %d names", n, names)).notes(
						"not measured: of transactions that come at once an emulator turns some away, and spindle never gets those locks; each Lock waits as on 1 name"))
					continue
				}
				some, err := wait(b, s, n, names)
				if err != nil {
					return nil, fmt.Errorf("%s, %d names: %w", s.name, names, err)
				}
				rows = append(rows, some...)
			}
		}
		return rows, nil
	})
}

// A waiting is what the process of the waiters tells of itself.
type waiting struct {
	Requests, Keys, Writes float64 // of the store, where no server counts
	Calls                  float64 // of gRPC, where they are counted
	CPU                    float64
}

func wait(b *bench, s *system, n, names int) (rows []Row, err error) {
	settle, length := 5*time.Second, 30*time.Second // two leases of 15s
	if b.quick {
		settle, length = 2*time.Second, 3*time.Second
	}
	server := b.servers[s.store]
	if server.tally != nil {
		settle *= 2
	}
	look := func() (requests float64, connections connections, err error) {
		if server.requests != nil {
			requests, err = server.requests(b.ctx)
		}
		if err == nil && server.connections != nil {
			connections, err = server.connections(b.ctx)
		}
		return requests, connections, err
	}
	// over counts requests per second of a while, and the connections after it.
	over := func() (rate float64, after connections, err error) {
		before, _, err := look()
		if err != nil {
			return 0, after, err
		}
		start := time.Now()
		if err := b.sleep(length); err != nil {
			return 0, after, err
		}
		requests, after, err := look()
		return (requests - before) / time.Since(start).Seconds(), after, err
	}
	o := options{TTL: 15 * time.Second, Keep: true}
	if s.ours() {
		o.TTL = 0 // which is the same, but followed in the store
	}
	ps, err := b.players(1, "wait", s, o)
	if err != nil {
		return nil, err
	}
	defer dismiss(ps)
	holder := ps[0]
	b.round++
	if err := holder.order("hold %d waiters/%d", names, b.round); err != nil {
		return nil, err
	}
	if _, err := holder.expect("held"); err != nil {
		return nil, err
	}
	if err := b.sleep(settle); err != nil {
		return nil, err
	}
	asked := server.tally.asked()
	rest, connectedBefore, err := over()
	if err != nil {
		return nil, err
	}
	restAsked := server.tally.asked().since(asked).per(length.Seconds())
	more, err := b.players(1, "wait", s, o)
	if err != nil {
		return nil, err
	}
	defer dismiss(more)
	waiter := more[0]
	asked = server.tally.asked()
	if err := waiter.order("wait %d %d waiters/%d", n, names, b.round); err != nil {
		return nil, err
	}
	start := time.Now()
	if s.ours() {
		if _, err := waiter.expect("queued"); err != nil {
			return nil, err
		}
	}
	queued := time.Since(start)
	if err := b.sleep(settle); err != nil {
		return nil, err
	}
	early := server.tally.asked().since(asked).per(time.Since(start).Seconds())
	asked = server.tally.asked()
	var before, after waiting
	ask := func(w *waiting) error {
		if err := waiter.order("look"); err != nil {
			return err
		}
		return waiter.tells("look", w)
	}
	if err := ask(&before); err != nil {
		return nil, err
	}
	start = time.Now()
	kinds := b.kindsOf(server)
	rate, connected, err := over()
	if err != nil {
		return nil, err
	}
	b.sayKinds(fmt.Sprintf("%s, %d waiters on %d names, and who holds", s.name, n, names), kinds, b.kindsOf(server), 1)
	if err := ask(&after); err != nil {
		return nil, err
	}
	took := time.Since(start).Seconds()
	if server.tally != nil {
		late := server.tally.asked().since(asked).per(took)
		return clusterWaitRows(s, n, names, restAsked, early, late, (after.CPU-before.CPU)/took, queued), nil
	}
	if s.kind().emulated {
		calls := (after.Calls - before.Calls) / took
		return shareRows(s, n, names, calls, (rest+rate-calls)/2, (after.CPU-before.CPU)/took, o), nil
	}
	row := s.row(fmt.Sprintf("%d waiters on %d names", n, names))
	row.Unit, row.Median = s.kind().requests+"/s", rate-rest+(after.Requests-before.Requests)/took
	row = row.notes("%.1f %% of a CPU", (after.CPU-before.CPU)/took*100)
	if s.ours() {
		if !strings.HasSuffix(s.name, "polling") {
			row = row.aims("≤ 1/s", row.Median <= 1)
		}
		row.Note += fmt.Sprintf(", all queued after %s s", figure(queued.Seconds()))
	}
	if server.requests == nil {
		row.Note += fmt.Sprintf(", %.0f keys/s, %.1f writes/s", (after.Keys-before.Keys)/took, (after.Writes-before.Writes)/took)
	}
	rows = append(rows, row)
	if server.connections != nil {
		r := s.row(fmt.Sprintf("%d waiters on %d names, connections", n, names))
		r.Unit, r.Median = "connections", connected.all-connectedBefore.all
		if beside := connected.beside - connectedBefore.beside; s.ours() {
			r = r.aims("one besides the pool's", beside <= 1).notes("%g of them beside its pool, of 4 at most", beside)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// playWait holds, or has many goroutines wait.
func playWait(t *task, orders *bufio.Scanner) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var queued atomic.Int64
	expected := int64(-1)
	t.Options.waiting = func() {
		if queued.Add(1) == atomic.LoadInt64(&expected) {
			tell("queued")
		}
	}
	l, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 1)
	tell("ready")
	for orders.Scan() {
		var n, names int
		var base string
		switch what, rest, _ := strings.Cut(orders.Text(), " "); what {
		case "hold":
			if _, err := fmt.Sscan(rest, &n, &base); err != nil {
				return err
			}
			if err := many(n, func(i int) error {
				_, err := l.lock(ctx, fmt.Sprintf("%s/%d", base, i))
				return err
			}); err != nil {
				return err
			}
			tell("held")
		case "wait":
			if _, err := fmt.Sscan(rest, &n, &names, &base); err != nil {
				return err
			}
			atomic.StoreInt64(&expected, int64(n))
			for i := range n {
				wg.Go(func() {
					_, err := l.lock(ctx, fmt.Sprintf("%s/%d", base, i%names))
					if ctx.Err() == nil {
						select {
						case failed <- fmt.Errorf("one that was to wait did not: %v", err):
						default:
						}
					}
				})
			}
		case "look":
			select {
			case err := <-failed:
				return err
			default:
			}
			w := waiting{CPU: cpuTime().Seconds(), Calls: float64(rpcs.Load())}
			if c, ok := l.(*client); ok && c.counted != nil {
				n := c.counted.count()
				w.Requests, w.Keys, w.Writes = n.loads+n.swaps, n.loaded, n.written
			}
			if err := tellJSON("look", w); err != nil {
				return err
			}
		default:
			return fmt.Errorf("no order %q", what)
		}
	}
	return orders.Err()
}
