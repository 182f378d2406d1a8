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
	for _, n := range []int{2, 64} {
		before := store.count()
		granted = 0
		var systems []system
		for _, w := range work {
			systems = append(systems, system{w.name, func() (series, error) { return b.rate(n, w.turn) }})
		}
		taken, err := b.take(systems)
		if err != nil {
			return nil, err
		}
		for i, s := range systems {
			row := taken[i].row(fmt.Sprintf("%s, %d goroutines", s.name, n), "/s", 1)
			row.Ratio = taken[i].ratio(taken[0])
			if s.name == "holdfast" {
				row = row.aims("≥ 1,000,000/s", row.Median >= 1e6).
					notes("each with its own token and context; %.4f store writes each", store.count().since(before).written/granted)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// rate counts how often in a second n goroutines together take a turn.
func (b *bench) rate(n int, turn func() error) (series, error) {
	length := 200 * time.Millisecond
	if b.quick {
		length = 50 * time.Millisecond
	}
	var stop atomic.Bool
	var total atomic.Int64
	failed := make(chan error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for range n {
		wg.Go(func() {
			turns := 0
			for !stop.Load() {
				if err := turn(); err != nil {
					failed <- err
					break
				}
				turns++
			}
			total.Add(int64(turns))
		})
	}
	time.Sleep(length)
	stop.Store(true)
	took := time.Since(start)
	wg.Wait()
	select {
	case err := <-failed:
		return nil, err
	default:
	}
	return series{float64(total.Load()) / took.Seconds()}, nil
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
