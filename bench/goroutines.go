package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// goroutines hands one lock around in a process, as fast as it goes. Beside it
// is sync.Mutex, which lets who runs overtake who sleeps, and a mutex that is
// handed to who came first, as Holdfast's is.
func goroutines(b *bench) (rows []Row, err error) {
	if !b.has("memory") {
		return nil, nil
	}
	store := &counter{Store: memory.New()}
	client, err := holdfast.New(store, &holdfast.Options{RuntimeDir: b.dir})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()

	var mu sync.Mutex
	var fair fairMutex
	var last atomic.Int64 // the latest token
	hold := func(ctx context.Context, look func(l *holdfast.Lock) error) func() error {
		return func() error {
			l, err := client.Acquire(ctx, "nightly")
			if err != nil {
				return err
			}
			if err := look(l); err != nil {
				return err
			}
			if before := last.Swap(l.Token()); before >= l.Token() {
				return fmt.Errorf("token %d was granted after %d", l.Token(), before)
			}
			return l.Release(ctx)
		}
	}
	// Guarded by the lock that is measured.
	var shared int
	granted := 0.0
	always := context.Background()
	look := func(l *holdfast.Lock) error { shared++; granted++; return l.Context().Err() }
	work := []struct {
		name string
		turn func() error
	}{
		{"sync.Mutex", func() error { mu.Lock(); shared++; mu.Unlock(); return nil }},
		{"first come mutex", func() error { fair.lock(); shared++; fair.unlock(); return nil }},
		{"first come mutex, a context each", func() error {
			fair.lock()
			_, cancel := context.WithCancelCause(b.ctx)
			shared++
			cancel(holdfast.ErrReleased)
			fair.unlock()
			return nil
		}},
		{"holdfast, context waited for", hold(always, func(l *holdfast.Lock) error { shared++; granted++; l.Context().Done(); return nil })},
		{"holdfast, all waits end with one context", hold(b.ctx, look)},
		{"holdfast", hold(always, look)},
	}
	length := 200 * time.Millisecond
	if b.quick {
		length = 50 * time.Millisecond
	}
	for _, n := range []int{2, 64} {
		before := store.count()
		granted = 0
		var runs []run
		for _, w := range work {
			runs = append(runs, run{name: w.name, round: func() (series, error) { return rate(n, length, func(int) error { return w.turn() }) }})
		}
		taken, err := b.take(b.rounds, true, runs)
		if err != nil {
			return nil, err
		}
		for i, s := range runs {
			row := taken[i].row(Row{Store: "memory", System: s.name, Case: fmt.Sprintf("%d goroutines", n)}, "/s", 1)
			if i > 0 {
				row.Ratio, row.Of = taken[i].ratio(taken[0]), work[0].name
			}
			if s.name == "holdfast" {
				row = row.aims("≥ 1,000,000/s", row.Median >= 1e6).
					notes("each with its own token and context; %.4f store writes each", store.count().since(before).written/granted)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// A fairMutex serves who came first first.
type fairMutex struct {
	mu     sync.Mutex
	locked bool
	queue  []chan struct{}
	pool   sync.Pool
}

func (m *fairMutex) lock() {
	m.mu.Lock()
	if !m.locked {
		m.locked = true
		m.mu.Unlock()
		return
	}
	ch, _ := m.pool.Get().(chan struct{})
	if ch == nil {
		ch = make(chan struct{}, 1)
	}
	m.queue = append(m.queue, ch)
	m.mu.Unlock()
	<-ch
	m.pool.Put(ch)
}

func (m *fairMutex) unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		m.locked = false
		return
	}
	m.queue[0] <- struct{}{}
	copy(m.queue, m.queue[1:])
	m.queue = m.queue[:len(m.queue)-1]
}
