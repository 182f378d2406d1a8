package clienttest

import (
	"context"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// workHoles are about work that goes on without its lock, and locks without their work.
var workHoles = []holeCase{
	{
		name:  "work hangs",
		holes: "G10",
		rule:  "a break of a lock whose work hangs, and whose heartbeat goes on, needs no help of the work",
		runs: once(func(h *clients) {
			a, b := h.client(0), h.client(0)
			l := h.take(a, time.Second)
			queued := h.queue(1, b, "a")
			time.Sleep(time.Hour)
			h.holds(l)
			holder := h.show("a").Holders[0]
			ctx, cancel := context.WithTimeout(h.ctx, time.Second)
			defer cancel()
			err := h.look().Break(ctx, holder.Name, holder.Token, "hangs")
			h.is("Break of a lock whose work does not end", err, context.DeadlineExceeded)
			if !watches(h.store) {
				time.Sleep(beat) // it learns of the break from its next heartbeat
			}
			h.lost(l)
			h.holds(h.granted(queued, holdfast.DefaultTTL-holdfast.Margin(holdfast.DefaultTTL)))
		}),
	},
	{
		name:  "heartbeat hangs",
		holes: "G10",
		rule:  "the context of the work ends before another process has the lock, though the heartbeat hangs and nothing else does",
		runs: once(func(h *clients) {
			a, way := h.join()
			b, _ := h.join()
			l := h.take(a, time.Second)
			ended := endOf(l)
			hang := make(chan bool)
			defer close(hang)
			before(way, wire.IsBeat, func() { <-hang })
			next := h.take(b, time.Minute)
			select {
			case at := <-ended:
				if !at.Before(time.Now()) {
					h.Error("its context ended only when another had the lock")
				}
			default:
				h.Error("its context goes on, and another has the lock")
			}
			h.holds(next)
		}),
	},
	{
		name:  "frozen holder resumes",
		holes: "G11",
		rule:  "a holder that froze, and goes on when another has its lock, learns so; its token is refused, and what it had sent comes to nothing",
		runs: once(func(h *clients) {
			a, way := h.join()
			b, _ := h.join()
			l := h.take(a, time.Second)
			thaw := make(chan bool)
			before(way, func(driver.Write) bool { return true }, func() { <-thaw })
			next := h.take(b, time.Minute)
			var resource holdfast.TokenGate
			if err := resource.Admit(next.Token(), false); err != nil {
				h.Fatal(err)
			}
			close(thaw)
			h.lost(l)
			h.is("Release of what was lost", l.Release(h.ctx), holdfast.ErrLost)
			h.fenced(l)
			h.is("the fence of a resource for the old token", resource.Admit(l.Token(), false), holdfast.ErrLost)
			time.Sleep(holdfast.DefaultTTL)
			h.holds(next)
			h.lost(l)
		}),
	},
	{
		name:  "deadline ends the hold",
		holes: "S7",
		rule:  "work ends with the deadline of its context as with its cancelling, and so does the hold",
		runs: each(func(h *clients, how struct{ deadline, elects bool }) {
			a, b := h.client(0), h.client(0)
			ctx, cancel := context.WithCancel(h.ctx)
			time.AfterFunc(time.Minute, cancel)
			if how.deadline {
				ctx, cancel = context.WithTimeout(h.ctx, time.Minute)
			}
			defer cancel()
			began := time.Now()
			work := func(ctx context.Context, _ *holdfast.Lock) error {
				select {
				case <-ctx.Done():
				case <-time.After(time.Hour):
				}
				return nil
			}
			returned := make(chan error, 1)
			go func() {
				if how.elects {
					returned <- a.Election("a").Run(ctx, work)
				} else {
					returned <- a.Do(ctx, "a", work)
				}
			}()
			synctest.Wait()
			h.holds(h.take(b, 2*time.Hour))
			late := time.Duration(0)
			if !watches(h.store) {
				late = holdfast.DefaultTTL / 6 // a poll after so long a wait: a TTL/8, and a quarter of that
			}
			if took := time.Since(began) - time.Minute; took < 0 || took > late {
				h.Errorf("the next has the lock %v after the minute, want %v at most", took, late)
			}
			<-returned
		}, []struct{ deadline, elects bool }{{true, false}, {true, true}, {false, false}, {false, true}}...),
	},
}
