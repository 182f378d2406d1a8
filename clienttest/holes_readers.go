package clienttest

import (
	"context"
	"sync"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// readerHoles are about locks that several share, and sets.
var readerHoles = []holeCase{
	{
		name:  "release under a joining reader",
		holes: "H1",
		rule:  "what a reader that is about to join has sent comes to nothing when the last one leaves and a writer comes",
		runs: once(func(h *clients) {
			first, writer := h.client(0), h.client(0)
			second, way := h.join()
			l := h.share(first)
			join := keep(way, follows, 1)
			joined := h.ask(second, "a", holdfast.Shared())
			synctest.Wait() // it has seen that the lock is shared
			h.release(l)
			next := h.take(writer, time.Minute)
			join.lose(h)
			h.holds(next)
			select {
			case <-joined:
				h.Fatal("a reader holds the lock beside the writer")
			case <-time.After(2 * holdfast.DefaultTTL):
			}
			h.release(next)
			h.release(h.granted(joined, time.Minute))
		}),
	},
	{
		name:  "first reader pauses",
		holes: "H2",
		rule:  "a reader that comes and goes takes nothing along of another's whose claim is made and whose process does not know yet",
		runs: once(func(h *clients) {
			first, way := h.join()
			second, writer := h.client(0), h.client(0)
			answer := make(chan bool)
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
				outs, err := send()
				if wire.IsClaim(writes[len(writes)-1]) {
					<-answer
				}
				return outs, err
			})
			joined := h.ask(first, "a", holdfast.Shared())
			synctest.Wait()
			h.release(h.share(second))
			h.refused(writer)
			way.SetMeet(nil)
			close(answer)
			l := h.granted(joined, time.Minute)
			h.holds(l)
			h.refused(writer)
			h.release(l)
			h.release(h.take(writer, time.Second))
		}),
	},
	{
		name:  "first reader leaves",
		holes: "H3",
		rule:  "a lock is not called after its first reader: when that leaves, or dies, a writer waits for the other",
		runs: each(func(h *clients, dies bool) {
			first, way := h.join()
			second, writer := h.client(0), h.client(0)
			a, b := h.share(first), h.share(second)
			queued := h.queue(1, writer, "a")
			if dies {
				way.Off.Store(true)
			} else {
				h.release(a)
			}
			time.Sleep(40 * holdfast.DefaultTTL) // ten minutes
			if len(queued) > 0 || b.Err() != nil {
				h.Fatalf("a reader holds the lock (%v), and a writer has an answer: %v", b.Err(), len(queued) > 0)
			}
			h.holds(b)
			h.release(b)
			h.holds(h.granted(queued, 5*time.Second))
		}, false, true),
	},
	{
		name:  "two locks in any order",
		holes: "H16",
		rule:  "clients that want two locks in either order all get both, one after the other",
		runs: once(func(h *clients) {
			var all sync.WaitGroup
			for i := range 6 {
				c := h.client(0)
				names := []string{"a", "b"}
				if i%2 == 1 {
					names = []string{"b", "a"}
				}
				all.Go(func() {
					for range 10 {
						ctx, cancel := context.WithTimeout(h.ctx, 10*time.Minute)
						locks, err := c.AcquireAll(ctx, names)
						cancel()
						if err != nil {
							h.Error(err)
							return
						}
						time.Sleep(time.Second)
						if err := locks.Release(h.ctx); err != nil {
							h.Error(err)
						}
					}
				})
			}
			began := time.Now()
			all.Wait()
			if took := time.Since(began); took > 5*time.Minute {
				h.Errorf("sixty seconds of work took %v", took)
			}
		}),
	},
}
