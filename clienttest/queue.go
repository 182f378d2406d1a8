package clienttest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// queueCases are about who comes next.
var queueCases = []clientCase{
	{
		name: "first come first served",
		rule: "waiters of a name, across processes, are served first come, first served (P5)",
		run: func(h *clients) {
			l := h.acquire(h.client(longTTL), "a")
			served := make(chan int, 20)
			for i := range 20 {
				queued := h.queue(i+1, h.client(longTTL), "a")
				go func() {
					if a := <-queued; a.err == nil {
						served <- i
						a.lock.Release(h.ctx)
					}
				}()
			}
			h.release(l)
			for want := range 20 {
				select {
				case got := <-served:
					if got != want {
						h.Fatalf("number %d was served when it was the turn of %d; in the store: %s", got, want, h.dump())
					}
				case <-time.After(2 * h.soon):
					h.Fatalf("number %d was not served; in the store: %s", want, h.dump())
				}
			}
			h.empty("a")
		},
	},
	{
		name: "readers and a writer",
		rule: "shared holders hold together, an exclusive one alone, and nobody overtakes (P1, P5)",
		run: func(h *clients) {
			var readers []*holdfast.Lock
			for range 3 {
				readers = append(readers, h.acquire(h.client(longTTL), "a", holdfast.Shared()))
			}
			writing := h.queue(1, h.client(longTTL), "a")
			late := h.queue(2, h.client(longTTL), "a", holdfast.Shared())
			later := h.queue(3, h.client(longTTL), "a", holdfast.Shared())
			last := h.queue(4, h.client(longTTL), "a")
			if i := h.show("a"); len(i.Holders) != 3 || i.Holders[0].Mode() != "shared" || i.Waiters[0].Mode() != "exclusive" {
				h.Errorf("shown: %+v", i)
			}
			h.release(readers[:2]...)
			if len(writing)+len(late)+len(later) > 0 {
				h.Fatal("someone went in beside a reader whom a writer waits for")
			}
			h.release(readers[2])
			writer := h.granted(writing, h.soon)
			if len(late)+len(later) > 0 {
				h.Fatal("a reader went in beside a writer")
			}
			h.release(writer)
			first, second := h.granted(late, h.soon), h.granted(later, h.soon)
			if first.Err() != nil || second.Err() != nil || len(last) > 0 {
				h.Fatal("neighbours that fit did not go in together, or one that does not fit did")
			}
			h.release(first, second)
			h.release(h.granted(last, h.soon))
			h.free("a")
		},
	},
	{
		name: "a stream of readers",
		rule: "readers that never cease do not keep a writer out (P5, P6)",
		run: func(h *clients) {
			ctx, stop := context.WithCancel(h.ctx)
			defer stop()
			var reading, writing atomic.Int32
			var wg sync.WaitGroup
			for range 3 {
				c := h.client(longTTL)
				for g := range 2 {
					wg.Go(func() {
						time.Sleep(time.Duration(g) * 5 * time.Millisecond)
						for ctx.Err() == nil {
							l, err := c.Acquire(ctx, "a", holdfast.Shared())
							if err != nil {
								continue
							}
							reading.Add(1)
							if writing.Load() != 0 {
								h.Error("a reader beside a writer")
							}
							time.Sleep(10 * time.Millisecond)
							reading.Add(-1)
							l.Release(h.ctx)
						}
					})
				}
			}
			h.eventually(h.soon, "someone reads", func() bool { return reading.Load() > 0 })
			w := h.client(longTTL)
			limit := h.soon
			if h.store.Traits().StaleReads {
				limit = busy.Times(time.Minute) // writes of one record meet in rounds of consensus, which chance decides
			}
			for range 5 {
				l := h.granted(h.ask(w, "a"), limit)
				writing.Store(1)
				if n := reading.Load(); n != 0 {
					h.Errorf("%d readers beside a writer", n)
				}
				time.Sleep(time.Millisecond)
				writing.Store(0)
				h.release(l)
			}
			stop()
			wg.Wait()
			h.free("a")
		},
	},
	{
		name: "slots",
		rule: "at most N hold at once, N the smallest that any of them asked for (P1)",
		run: func(h *clients) {
			var c []*holdfast.Client
			for range 5 {
				c = append(c, h.client(longTTL))
			}
			try := func(i, n int) (*holdfast.Lock, error) {
				return c[i].TryAcquire(h.ctx, "a", holdfast.Slots(n))
			}
			in := func(i, n int) *holdfast.Lock {
				h.Helper()
				l, err := try(i, n)
				if err != nil {
					h.Fatalf("Slots(%d) where there is room: %v", n, err)
				}
				return l
			}
			out := func(i, n int) {
				h.Helper()
				_, err := try(i, n)
				h.is(fmt.Sprintf("Slots(%d) where there is no room", n), err, holdfast.ErrHeld)
			}
			first, second, third := in(0, 3), in(0, 3), in(1, 3)
			out(2, 3)
			out(0, 3)
			out(2, 4)
			h.release(first)
			out(2, 2)
			fourth := in(2, 4)
			if got := h.show("a").Holders; len(got) != 3 || got[0].Mode() != "slots 3" || got[2].Mode() != "slots 4" {
				h.Errorf("shown as %+v", got)
			}
			h.release(second, third)
			smallest := in(3, 2)
			out(4, 3)
			out(4, 1)
			queued := h.queue(1, c[4], "a", holdfast.Slots(5))
			h.release(smallest)
			fifth := h.granted(queued, h.soon)
			h.release(fifth, fourth)
			h.empty("a")
		},
	},
	{
		name: "a crowd",
		rule: "of all that want a name one holds it, each gets it in the end, and tokens grow in the order of holding (P1, P3, P6)",
		run: func(h *clients) {
			var inside atomic.Int32
			var last atomic.Int64
			var wg sync.WaitGroup
			for range 4 {
				c := h.client(longTTL)
				for range 4 {
					wg.Go(func() {
						for i := range 6 {
							l, err := c.Acquire(h.ctx, "a")
							if err != nil {
								h.Error(err)
								return
							}
							if n := inside.Add(1); n != 1 {
								h.Errorf("%d inside", n)
							}
							if before := last.Swap(l.Token()); before >= l.Token() {
								h.Errorf("token %d after %d", l.Token(), before)
							}
							if i%2 == 0 {
								time.Sleep(time.Millisecond)
							}
							inside.Add(-1)
							if err := l.Release(h.ctx); err != nil {
								h.Error(err)
							}
						}
					})
				}
			}
			wg.Wait()
			h.free("a")
		},
	},
	{
		name: "turns",
		rule: "goroutines of one process follow each other for a turn of 20 ms at most, once another process waits (P5)",
		run: func(h *clients) {
			ctx, stop := context.WithCancel(h.ctx)
			defer stop()
			var wg sync.WaitGroup
			grants := make([]atomic.Int64, 3)
			for p := range grants {
				c := h.client(longTTL)
				for range 4 {
					wg.Go(func() {
						for ctx.Err() == nil {
							l, err := c.Acquire(ctx, "a")
							if err != nil {
								continue
							}
							grants[p].Add(1)
							time.Sleep(time.Millisecond)
							l.Release(h.ctx)
						}
					})
				}
			}
			h.eventually(2*h.soon, "all processes hold it now and then", func() bool {
				return !slices.ContainsFunc([]int{0, 1, 2}, func(p int) bool { return grants[p].Load() == 0 })
			})
			for range 10 {
				before := grants[1].Load()
				h.eventually(2*h.soon, "the second process has its turn again", func() bool { return grants[1].Load() > before })
			}
			outsider := h.client(longTTL)
			for range 3 {
				h.release(h.granted(h.ask(outsider, "a"), 2*h.soon))
			}
			stop()
			wg.Wait()
			h.free("a")
		},
	},
	{
		name: "tokens of a hand-off",
		rule: "what is handed on inside a process has a token of its own, and the fence lets no older one behind it (P3, P4)",
		run: func(h *clients) {
			var waiting atomic.Int32
			c := h.clientOf(h.handle(), &holdfast.Options{TTL: longTTL, Trace: &holdfast.Trace{Queued: func(context.Context, holdfast.Event) { waiting.Add(1) }}})
			var asked [4]<-chan answer
			l := h.acquire(c, "a")
			for i := range asked {
				asked[i] = h.ask(c, "a")
			}
			h.eventually(h.soon, "all wait", func() bool { return waiting.Load() == 4 })
			handed := false
			last, token := int64(0), l.Token()
			for range asked {
				h.release(l)
				select {
				case a := <-asked[0]:
					l = a.lock
				case a := <-asked[1]:
					l = a.lock
				case a := <-asked[2]:
					l = a.lock
				case a := <-asked[3]:
					l = a.lock
				case <-time.After(h.soon):
					h.Fatalf("nobody was handed the lock; in the store: %s", h.dump())
				}
				if l == nil {
					h.Fatal("an Acquire failed")
				}
				if l.Token() <= token {
					h.Fatalf("token %d after %d", l.Token(), token)
				}
				r := h.record("a")
				next, err := r.Fence("a", l.Token(), last)
				if err != nil {
					h.Fatalf("fence of who holds: %v; in the store: %s", err, h.dump())
				}
				last = max(last, next)
				if _, err := r.Fence("a", token, 0); err == nil {
					handed = true // by the record alone both tokens may hold: they are of one claim
					_, err = r.Fence("a", token, last)
					h.is("fence of who held before", err, holdfast.ErrLost)
				}
				token = l.Token()
			}
			h.release(l)
			if !handed {
				h.Error("nothing was handed on in memory")
			}
			for range 4 {
				l := h.acquire(h.client(longTTL), "a")
				if l.Token() <= token {
					h.Fatalf("token %d after %d, which was handed on in memory", l.Token(), token)
				}
				token = l.Token()
				h.release(l)
			}
			h.free("a")
		},
	},
}
