package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// waiters has 1,000 goroutines of one process wait for what another client
// holds and does not give back, and counts what they ask of the store.
func waiters(b *bench) (rows []Row, err error) {
	n := 1000
	if b.quick {
		n = 100
	}
	for _, names := range []int{1, n} {
		row, err := wait(b, n, names)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func wait(b *bench, n, names int) (row Row, err error) {
	path := b.path(fmt.Sprintf("waiters-%d.db", names))
	open := func(trace *holdfast.Trace) (*counter, *holdfast.Client, func(), error) {
		store, err := sqlite.Open(b.ctx, path, &sqlite.Options{Create: true})
		if err != nil {
			return nil, nil, nil, err
		}
		counted := &counter{Store: store}
		client, err := holdfast.New(counted, &holdfast.Options{RuntimeDir: b.dir, Trace: trace})
		return counted, client, func() { store.Close() }, err
	}
	_, holder, closeHolder, err := open(nil)
	if err != nil {
		return row, err
	}
	defer closeHolder()
	defer func() { err = errors.Join(err, holder.Close()) }()
	var waiting atomic.Int64
	store, waiter, closeWaiter, err := open(&holdfast.Trace{Waiting: func(string) { waiting.Add(1) }})
	if err != nil {
		return row, err
	}
	defer closeWaiter()

	var wg sync.WaitGroup
	failed := make(chan error, n+names)
	for i := range names {
		wg.Go(func() {
			if _, err := holder.Acquire(b.ctx, fmt.Sprintf("job/%d", i)); err != nil {
				failed <- err
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	for i := range n {
		wg.Go(func() {
			if _, err := waiter.Acquire(ctx, fmt.Sprintf("job/%d", i%names)); !errors.Is(err, context.Canceled) && !errors.Is(err, holdfast.ErrHeld) {
				failed <- fmt.Errorf("one that was to wait: %v", err)
			}
		})
	}
	for waiting.Load() < int64(n) && len(failed) == 0 && b.ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	settle, length := 5*time.Second, 10*time.Second
	if b.quick {
		settle, length = time.Second, 2*time.Second
	}
	time.Sleep(settle)
	before, cpu := store.count(), cpuTime()
	start := time.Now()
	time.Sleep(length)
	used, took := store.count().since(before), time.Since(start).Seconds()
	busy := (cpuTime() - cpu).Seconds() / took
	cancel()
	wg.Wait()
	err = waiter.Close()
	select {
	case failure := <-failed:
		err = errors.Join(failure, err)
	default:
	}
	row = Row{System: fmt.Sprintf("%d waiters on %d names", n, names), Unit: "reads/s", Median: used.loads / took}.
		aims("≤ 2 reads/s", used.loads/took <= 2).
		notes("%.0f keys/s, %.1f writes/s, %.1f %% of a CPU", used.loaded/took, used.written/took, busy*100)
	return row, err
}
