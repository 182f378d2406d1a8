// Package batch sends the writes of a client to its store, many in a call where that is worth it.
package batch

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// A Batcher sends writes to the store. Writes that gather while a call is in
// flight go in the next one. A second call runs beside the first only when a crowd
// has gathered, or the first is slow: otherwise a small crowd would split into two
// halves, each too small to be worth a call. Where the store carries out each
// write by itself, each goes in a call of its own, as many at a time as the store
// says: in one call they would wait for the slowest. Heartbeats do not go through
// a Batcher, so they never queue behind locks. The idea of gathering behind the
// call in flight is go-cloud's.
type Batcher struct {
	store driver.Store
	ctx   context.Context
	now   func() lease.Instant
	spawn func(func())

	most  int // writes that are gathered into a call
	calls int // that may be made at a time
	crowd int // writes that are worth another call

	mu     sync.Mutex
	queue  []*Swap
	under  int         // calls that are under way
	crowds bool        // the last call carried more than one write
	timer  *time.Timer // starts another call beside a slow one
	slow   atomic.Bool
}

// A Swap is one write on its way.
type Swap struct {
	Write driver.Write
	Out   driver.Outcome
	Err   error
	Sent  lease.Instant // just before the call, or when it was planned
	Got   lease.Instant // just after it, if the caller's goroutine made it; else 0
	done  chan struct{}
}

// Most is how many writes a call has at most.
const Most = 512

// New is a Batcher of calls to a store, which end with ctx. now is the client's clock, and spawn
// starts a goroutine that the client waits for. Calls carry many writes; if single is not 0, the
// store carries out each write by itself, and up to single calls at a time carry one write each.
func New(ctx context.Context, store driver.Store, now func() lease.Instant, spawn func(func()), single int) *Batcher {
	b := &Batcher{store: store, ctx: ctx, now: now, spawn: spawn, most: Most, calls: 2, crowd: 16}
	if single > 0 {
		b.most, b.calls, b.crowd = 1, single, 1
	}
	return b
}

// start starts the calls that the gathered writes are worth, and reports whether it started one.
// b.mu is held.
func (b *Batcher) start(timeout time.Duration) (any bool) {
	for n := len(b.queue); n > 0 && (b.under == 0 || b.under < b.calls && n >= b.crowd); n -= b.most {
		b.under++
		b.spawn(func() { b.drain(timeout) })
		any = true
	}
	return any
}

// Do sends one write and waits for its outcome. timeout bounds the call; when it
// is over the outcome is ambiguous, which is an error.
func (b *Batcher) Do(w driver.Write, timeout time.Duration) *Swap {
	s := &Swap{Write: w, done: make(chan struct{})}
	b.mu.Lock()
	b.queue = append(b.queue, s)
	if !b.start(timeout) && b.under < b.calls && len(b.queue) == 1 {
		if b.timer != nil {
			b.timer.Stop()
		}
		b.timer = time.AfterFunc(quickCall, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.queue) > 0 && b.under < b.calls {
				b.under++
				b.spawn(func() { b.drain(timeout) })
			}
		})
	}
	b.mu.Unlock()
	<-s.done
	return s
}

// All sends writes in one call or, if others are under way, along with what gathers. It waits for
// their outcomes, or for ctx: then they are ambiguous. The client waits for the caller.
func (b *Batcher) All(ctx context.Context, writes []driver.Write, timeout time.Duration) ([]driver.Outcome, error) {
	b.mu.Lock()
	if b.under == 0 && len(b.queue) == 0 {
		b.under++
		b.mu.Unlock()
		one, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		defer b.returned(timeout)
		return b.store.CompareAndSwap(one, writes)
	}
	swaps := make([]*Swap, len(writes))
	for i, w := range writes {
		swaps[i] = &Swap{Write: w, done: make(chan struct{})}
	}
	b.queue = append(b.queue, swaps...)
	b.start(timeout)
	b.mu.Unlock()
	outs := make([]driver.Outcome, len(writes))
	for i, s := range swaps {
		select {
		case <-s.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if s.Err != nil {
			return nil, s.Err
		}
		outs[i] = s.Out
	}
	return outs, nil
}

// drain sends what has gathered until nothing is left; b.under already counts it.
func (b *Batcher) drain(timeout time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		b.linger()
		if len(b.queue) == 0 {
			b.under--
			return
		}
		n := min(len(b.queue), b.most)
		batch := slices.Clone(b.queue[:n])
		b.queue = append(b.queue[:0], b.queue[n:]...)
		batch, b.queue = eachOnce(batch, b.queue)
		b.crowds = n > 1
		b.mu.Unlock()
		b.call(batch, timeout)
		b.mu.Lock()
	}
}

// Alone sends one write from the caller's goroutine, if no other is on its way; else it reports
// false. The write was planned at sent, a moment ago. The call is cut off a moment after the
// caller's context has ended: not at once, since that leaves an ambiguous outcome.
func (b *Batcher) Alone(caller context.Context, w driver.Write, sent lease.Instant, timeout time.Duration) (s Swap, ok bool) {
	b.mu.Lock()
	if b.under > 0 || len(b.queue) > 0 {
		b.mu.Unlock()
		return s, false
	}
	b.under++
	b.mu.Unlock()
	s = Swap{Write: w, Sent: sent}
	one := &struct {
		callContext
		writes [1]driver.Write
	}{callContext{of: b, caller: caller, sent: sent, timeout: timeout}, [1]driver.Write{w}}
	defer one.end()
	outs, err := b.store.CompareAndSwap(one, one.writes[:])
	if s.Err = err; err == nil {
		s.Out, s.Err = outs[0], outs[0].Err
	}
	s.Got = b.now()
	b.slow.Store(s.Got.Sub(s.Sent) > quickCall)
	b.returned(timeout)
	return s, true
}

// returned ends a call from the caller's goroutine: what has gathered since goes in the next.
func (b *Batcher) returned(timeout time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.under--
	} else {
		b.spawn(func() { b.drain(timeout) })
	}
}

// quickCall is the longest call that is made from the caller's goroutine. The last call says how
// long the next is expected to take.
const quickCall = 5 * time.Millisecond

// Quick says whether the last call was quick.
func (b *Batcher) Quick() bool { return !b.slow.Load() }

// linger lets a crowd that is just being woken join the call: otherwise the
// crowd splits into two halves that wait for each other. b.mu is held.
func (b *Batcher) linger() {
	if !b.crowds {
		return
	}
	for quiet, n := 0, len(b.queue); quiet < 10; quiet++ {
		b.mu.Unlock()
		runtime.Gosched()
		b.mu.Lock()
		if len(b.queue) != n {
			quiet, n = 0, len(b.queue)
		}
	}
}

// eachOnce sorts a batch by key. Holds may write one key several times: all but the first of these
// writes go in a later call.
func eachOnce(batch, later []*Swap) ([]*Swap, []*Swap) {
	slices.SortStableFunc(batch, func(x, y *Swap) int { return compareKeys(x.Write.Key, y.Write.Key) })
	same := func(i int) bool { return i > 0 && batch[i].Write.Key == batch[i-1].Write.Key }
	n := 1
	for n < len(batch) && !same(n) {
		n++
	}
	if n == len(batch) {
		return batch, later
	}
	var first []*Swap
	for i, s := range batch {
		if same(i) {
			later = append(later, s)
		} else {
			first = append(first, s)
		}
	}
	return first, later
}

func (b *Batcher) call(batch []*Swap, timeout time.Duration) {
	writes := make([]driver.Write, len(batch))
	for i, s := range batch {
		writes[i] = s.Write
	}
	sent := b.now()
	ctx := &callContext{of: b, sent: sent, timeout: timeout}
	defer ctx.end()
	outs, err := b.store.CompareAndSwap(ctx, writes)
	b.slow.Store(b.now().Sub(sent) > quickCall)
	for i, s := range batch {
		s.Sent, s.Err = sent, err
		if err == nil {
			s.Out, s.Err = outs[i], outs[i].Err
		}
		close(s.done)
	}
}

func compareKeys(x, y driver.Key) int {
	switch {
	case x.Space != y.Space:
		return int(x.Space) - int(y.Space)
	case x.Name < y.Name:
		return -1
	case x.Name > y.Name:
		return 1
	}
	return 0
}

// LostToOld says whether a write lost to the very record that it was to follow: a
// transaction of the database keeps that record's row locked (a fence, before its
// commit).
func (s *Swap) LostToOld() bool {
	if s.Write.Old == driver.IfEmpty {
		return len(s.Out.Record.Value) == 0
	}
	return s.Write.Old == s.Out.Record.Version
}
