package holdfast

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"

	"github.com/holdfast-lock/holdfast/driver"
)

// A batcher sends writes to the store. What gathers while a call is in flight
// goes in the next one. A second call joins the first when a crowd has gathered,
// or the first is slow: with two at once a small crowd would fall in two halves,
// each too small to be worth a call. Where the store carries out each write by
// itself, each goes in a call of its own, as many at a time as it says: together
// they would wait for the slowest. Heartbeats do not go through it, so that
// they never queue behind locks. The idea of gathering behind the call in flight
// is go-cloud's.
type batcher struct {
	store driver.Store
	ctx   context.Context
	now   func() lease.Instant
	spawn func(func())

	most  int // writes that are gathered into a call
	calls int // that may be made at a time
	crowd int // writes that are worth another call

	mu     sync.Mutex
	queue  []*swap
	under  int         // calls that are under way
	crowds bool        // the last call carried more than one write
	timer  *time.Timer // has another call join one that is slow
	slow   atomic.Bool
}

// A swap is one write on its way.
type swap struct {
	write driver.Write
	out   driver.Outcome
	err   error
	sent  lease.Instant // just before the call, or when it was planned
	got   lease.Instant // just after it, if the caller's goroutine made it; else 0
	done  chan struct{}
}

// maxBatch is the most writes of a call.
const maxBatch = 512

// gather says how: calls of many writes, or, where the store carries out each by itself, so many
// calls of one.
func (b *batcher) gather(single int) {
	b.most, b.calls, b.crowd = maxBatch, 2, 16
	if single > 0 {
		b.most, b.calls, b.crowd = 1, single, 1
	}
}

// start starts the calls that what has gathered is worth, and reports whether there is one. b.mu is
// held.
func (b *batcher) start(timeout time.Duration) (any bool) {
	for n := len(b.queue); n > 0 && (b.under == 0 || b.under < b.calls && n >= b.crowd); n -= b.most {
		b.under++
		b.spawn(func() { b.drain(timeout) })
		any = true
	}
	return any
}

// do sends one write and waits for what became of it. timeout bounds the call;
// when it is over the outcome is unknown, which is an error.
func (b *batcher) do(w driver.Write, timeout time.Duration) *swap {
	s := &swap{write: w, done: make(chan struct{})}
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

// all sends writes, as one or, if the store is busy with others, along with what gathers, and waits
// for what became of them, or for ctx: then that is not known. The client waits for the caller.
func (b *batcher) all(ctx context.Context, writes []driver.Write, timeout time.Duration) ([]driver.Outcome, error) {
	b.mu.Lock()
	if b.under == 0 && len(b.queue) == 0 {
		b.under++
		b.mu.Unlock()
		one, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		outs, err := b.store.CompareAndSwap(one, writes)
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.queue) == 0 {
			b.under--
		} else {
			b.spawn(func() { b.drain(timeout) })
		}
		return outs, err
	}
	swaps := make([]*swap, len(writes))
	for i, w := range writes {
		swaps[i] = &swap{write: w, done: make(chan struct{})}
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
		if s.err != nil {
			return nil, s.err
		}
		outs[i] = s.out
	}
	return outs, nil
}

// drain sends what has gathered until nothing has; its call is counted.
func (b *batcher) drain(timeout time.Duration) {
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

// alone sends one write from the caller's goroutine, if no other is on its
// way; else it reports false. It was planned at sent, a moment ago. The call is cut off a moment
// after the caller's context has ended: not at once, since that leaves an unknown outcome.
func (b *batcher) alone(caller context.Context, w driver.Write, sent lease.Instant, timeout time.Duration) (s swap, ok bool) {
	b.mu.Lock()
	if b.under > 0 || len(b.queue) > 0 {
		b.mu.Unlock()
		return s, false
	}
	b.under++
	b.mu.Unlock()
	s = swap{write: w, sent: sent}
	one := &struct {
		callContext
		writes [1]driver.Write
	}{callContext{of: b, caller: caller, sent: sent, timeout: timeout}, [1]driver.Write{w}}
	defer one.end()
	outs, err := b.store.CompareAndSwap(one, one.writes[:])
	if s.err = err; err == nil {
		s.out, s.err = outs[0], outs[0].Err
	}
	s.got = b.now()
	b.slow.Store(s.got.Sub(s.sent) > quickCall)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.under--
	} else {
		b.spawn(func() { b.drain(timeout) })
	}
	return s, true
}

// quickCall is what a call may take to be made from the caller's goroutine.
const quickCall = 5 * time.Millisecond

// quick says whether the last call was.
func (b *batcher) quick() bool { return !b.slow.Load() }

// linger lets a crowd that is just being woken join the call: without it the
// crowd falls in two halves that wait for each other. b.mu is held.
func (b *batcher) linger() {
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

// eachOnce sorts a batch by key. Of several writes of one key, those of holds, all but the first
// go in a later call.
func eachOnce(batch, later []*swap) ([]*swap, []*swap) {
	slices.SortStableFunc(batch, func(x, y *swap) int { return compareKeys(x.write.Key, y.write.Key) })
	same := func(i int) bool { return i > 0 && batch[i].write.Key == batch[i-1].write.Key }
	n := 1
	for n < len(batch) && !same(n) {
		n++
	}
	if n == len(batch) {
		return batch, later
	}
	var first []*swap
	for i, s := range batch {
		if same(i) {
			later = append(later, s)
		} else {
			first = append(first, s)
		}
	}
	return first, later
}

func (b *batcher) call(batch []*swap, timeout time.Duration) {
	writes := make([]driver.Write, len(batch))
	for i, s := range batch {
		writes[i] = s.write
	}
	sent := b.now()
	ctx := &callContext{of: b, sent: sent, timeout: timeout}
	defer ctx.end()
	outs, err := b.store.CompareAndSwap(ctx, writes)
	b.slow.Store(b.now().Sub(sent) > quickCall)
	for i, s := range batch {
		s.sent, s.err = sent, err
		if err == nil {
			s.out, s.err = outs[i], outs[i].Err
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
