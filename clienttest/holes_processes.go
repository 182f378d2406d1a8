package clienttest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// processHoles are about what a process is, and what it asks of the store.
var processHoles = []holeCase{
	{
		name:  "same process again",
		holes: "H9",
		rule:  "processes that look the same (a cloned machine, a pid used again, one address for many) exclude each other, and inherit and release nothing of each other's",
		runs: once(func(h *clients) {
			same := &holdfast.Options{Owner: holdfast.Owner{Host: "h", PID: 7, User: "u", Program: "p", Address: "10.0.0.1", Started: time.Unix(1, 0)}}
			a, way := h.joinAs(same)
			l := h.take(a, time.Second)
			twin := h.open(h.handle(), same)
			h.refused(twin)
			if err := twin.Close(); err != nil {
				h.Error(err)
			}
			time.Sleep(2 * holdfast.DefaultTTL)
			h.holds(l)
			way.Off.Store(true) // it dies, and starts again with the pid it had
			again := h.clientOf(h.handle(), same)
			h.refused(again)
			next := h.take(again, holdfast.DefaultTTL+5*time.Second)
			h.lost(l)
			h.holds(next)
			if next.Token() <= l.Token() {
				h.Errorf("token %d after %d", next.Token(), l.Token())
			}
		}),
	},
	{
		name:  "claim without a session",
		holes: "H12",
		rule:  "a process that dies when its claim is there, and its session is not, is waited for no longer than any that dies",
		runs: each(func(h *clients, opts []holdfast.Option) {
			a, way := h.join()
			b := h.client(0)
			way.SetMeet(func(writes []driver.Write, _ wire.Send) ([]driver.Outcome, error) {
				for _, w := range writes {
					if wire.IsClaim(w) {
						if _, err := h.store.CompareAndSwap(context.Background(), []driver.Write{w}); err != nil {
							h.Error(err)
						}
					}
				}
				way.Off.Store(true)
				return nil, faultstore.ErrFault
			})
			_, err := a.TryAcquire(h.ctx, "a", opts...)
			h.is("a try whose answers are lost", err, faultstore.ErrFault)
			if info := h.show("a"); len(info.Holders) != 1 {
				h.Fatalf("its claim is not there: %+v", info)
			}
			h.holds(h.take(b, holdfast.DefaultTTL+3*time.Second))
		}, nil, []holdfast.Option{holdfast.Shared()}),
	},
	{
		name:  "no busy loop",
		holes: "H13",
		rule:  "a client that does not want to wait tries a few times and fails, and a waiter does not poll without pause",
		runs: once(func(h *clients) {
			h.take(h.client(0), time.Second)
			c, way := h.join()
			var calls atomic.Int64
			before(way, wire.IsClaim, func() { calls.Add(1) })
			way.SetLooked(func(driver.Key) { calls.Add(1) })
			h.refused(c)
			if n := calls.Load(); n > 10 {
				h.Errorf("%d calls to learn that another holds the lock", n)
			}
			calls.Store(0)
			ctx, cancel := context.WithTimeout(h.ctx, time.Minute)
			defer cancel()
			_, err := c.Acquire(ctx, "a")
			h.is("a wait of a minute", err, context.DeadlineExceeded)
			if n := calls.Load(); n > 10*60 {
				h.Errorf("%d calls in a minute of waiting", n)
			}
		}),
	},
	{
		name:  "timeout is changed",
		holes: "H15",
		rule:  "a holder follows a TTL that is changed while it holds, and is judged by the TTL in its own record",
		runs: once(func(h *clients) {
			a, way := h.join()
			l := h.take(a, time.Second)
			queued := h.queue(1, h.client(0), "a")
			const longer = 4 * holdfast.DefaultTTL
			h.setTTL(longer)
			time.Sleep(holdfast.DefaultTTL)
			way.Off.Store(true)
			time.Sleep(2 * holdfast.DefaultTTL)
			h.holds(l)
			h.holds(h.granted(queued, longer))
			h.lost(l)
		}),
	},
}
