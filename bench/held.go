package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// A holding is what it costs to hold many locks.
type holding struct {
	Locks         int
	Heap, RSS     float64 // bytes that came with the locks
	Contexts      float64 // heap bytes that came with their contexts
	Acquired      float64 // seconds to acquire all
	Beats         float64
	Writes, Reads float64 // of the store, during the beats
	CPU           float64 // seconds used during the beats
}

// held holds 10,000 locks, in a process of its own whose memory is measured.
func held(b *bench) ([]Row, error) {
	p, err := b.player("hold")
	if err != nil {
		return nil, err
	}
	defer p.end()
	locks, beats := 10_000, 6
	if b.quick {
		locks, beats = 1000, 2
	}
	if err := p.order(fmt.Sprintf("%d %d", locks, beats)); err != nil {
		return nil, err
	}
	told, err := p.expect("held")
	if err != nil {
		return nil, err
	}
	var h holding
	if err := json.Unmarshal([]byte(told), &h); err != nil {
		return nil, err
	}
	const mib = 1 << 20
	limit := 8.0 * float64(locks) / 10_000
	who := func(what string) string { return fmt.Sprintf("%d locks, %s", locks, what) }
	return []Row{
		Row{System: who("writes per beat"), Unit: "writes", Median: h.Writes / h.Beats}.
			aims("1 per beat", h.Writes <= h.Beats).
			notes("%g beats, %.1f reads and %.2f ms of CPU each", h.Beats, h.Reads/h.Beats, h.CPU/h.Beats*1e3),
		Row{System: who("heap"), Unit: "MiB", Median: h.Heap / mib}.
			aims(fmt.Sprintf("≤ %s MiB", figure(limit)), h.Heap <= limit*mib).
			notes("%.0f bytes per lock", h.Heap/float64(locks)),
		Row{System: who("heap, each context waited for"), Unit: "MiB", Median: (h.Heap + h.Contexts) / mib}.
			notes("%.0f bytes per lock", (h.Heap+h.Contexts)/float64(locks)),
		Row{System: who("resident"), Unit: "MiB", Median: h.RSS / mib}.
			notes("with SQLite's cache and what acquiring left behind"),
		Row{System: who("to acquire all"), Unit: "s", Median: h.Acquired}.
			notes("64 goroutines, %.0f locks/s", float64(locks)/h.Acquired),
	}, nil
}

// playHold holds locks and measures it.
func playHold(dir string, orders *bufio.Scanner) error {
	if !orders.Scan() {
		return orders.Err()
	}
	h := holding{}
	beats := 0
	if _, err := fmt.Sscan(orders.Text(), &h.Locks, &beats); err != nil {
		return err
	}
	ctx := context.Background()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "held.db"), &sqlite.Options{Create: true})
	if err != nil {
		return err
	}
	defer store.Close()
	counted := &counter{Store: store}
	beaten := make(chan struct{}, 1000)
	client, err := holdfast.New(counted, &holdfast.Options{
		TTL: 3 * time.Second, RuntimeDir: dir,
		Trace: &holdfast.Trace{Beat: func(time.Duration, time.Time, error) {
			select {
			case beaten <- struct{}{}:
			default:
			}
		}},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	// What one lock needs is there before any is counted.
	first, err := client.Acquire(ctx, "first")
	if err != nil {
		return err
	}
	defer first.Release(ctx)

	locks := make([]*holdfast.Lock, h.Locks)
	names := make([]string, h.Locks)
	for i := range names {
		names[i] = fmt.Sprintf("customers/%d/invoices", i)
	}
	heap, resident := memoryUsed()
	start := time.Now()
	var wg sync.WaitGroup
	var next atomic.Int64
	failed := make(chan error, 64)
	for range cap(failed) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(locks)); i = next.Add(1) - 1 {
				l, err := client.Acquire(ctx, names[i])
				if err != nil {
					failed <- err
					return
				}
				locks[i] = l
			}
		})
	}
	wg.Wait()
	h.Acquired = time.Since(start).Seconds()
	select {
	case err := <-failed:
		return err
	default:
	}
	all, allResident := memoryUsed()
	h.Heap, h.RSS = all-heap, allResident-resident

	// From just after a beat to just after another.
	for len(beaten) > 0 {
		<-beaten
	}
	<-beaten
	time.Sleep(100 * time.Millisecond)
	before, cpu := counted.count(), cpuTime()
	for range beats {
		<-beaten
	}
	time.Sleep(100 * time.Millisecond)
	used := counted.count().since(before)
	h.Beats, h.Writes, h.Reads = float64(beats), used.written, used.loads
	h.CPU = (cpuTime() - cpu).Seconds()

	contexts := make([]context.Context, len(locks))
	heap, _ = memoryUsed()
	for i, l := range locks {
		contexts[i] = l.Context()
		contexts[i].Done()
	}
	all, _ = memoryUsed()
	h.Contexts = all - heap
	for i, l := range locks {
		if err := l.Err(); err != nil {
			return err
		}
		if contexts[i].Err() != nil {
			return context.Cause(contexts[i])
		}
	}
	told, err := json.Marshal(h)
	if err != nil {
		return err
	}
	tell("held %s", told)
	runtime.KeepAlive(names)
	return nil
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
