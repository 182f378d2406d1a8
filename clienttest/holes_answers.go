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

// answerHoles are about answers that are lost, and calls that are late.
var answerHoles = []holeCase{
	{
		name:  "answer is lost",
		holes: "G8",
		rule:  "a process that made a claim, and lost the answer, has the lock if it still waits; else nobody has, and it is not in its own way",
		runs: each(func(h *clients, waits bool) {
			a, way := h.join()
			b, _ := h.join()
			var lost atomic.Bool
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
				outs, err := send()
				if !lost.Swap(true) {
					return nil, faultstore.ErrFault
				}
				return outs, err
			})
			if !waits {
				_, err := a.TryAcquire(h.ctx, "a")
				h.is("a try without an answer", err, faultstore.ErrFault)
			}
			for _, c := range []*holdfast.Client{a, b} {
				l := h.take(c, time.Second)
				h.holds(l)
				h.release(l)
			}
		}, true, false),
	},
	{
		name:  "claim is late",
		holes: "G8",
		rule:  "a claim that is made when its goroutine has given up holds nothing, on a free name or in a queue, while its session lives",
		runs: each(func(h *clients, queues bool) {
			a, way := h.join()
			b := h.client(0)
			other := h.acquire(a, "other")
			var held *holdfast.Lock
			if queues {
				held = h.take(b, time.Second)
			}
			ctx, cancel := context.WithTimeout(h.ctx, time.Second)
			defer cancel()
			claim := keep(way, func(w driver.Write) bool {
				return wire.IsClaim(w) && follows(w) == queues && ctx.Err() == nil
			}, always)
			_, err := a.Acquire(ctx, "a")
			h.is("an Acquire whose claim was kept back", err, context.DeadlineExceeded)
			time.Sleep(time.Second)
			if won := claim.arrive(h); won == queues {
				h.Errorf("the late claim has won: %v", won)
			}
			if queues {
				h.release(held)
			}
			h.holds(h.take(b, beat+time.Second))
			h.holds(other)
		}, false, true),
	},
	{
		name:  "slow commit",
		holes: "G9",
		rule:  "a holder whose commits or answers are slow keeps its lock while it goes on, and has lost it before another has it",
		runs: each(func(h *clients, commit bool) {
			const slow = beat / 2
			a, way := h.join()
			b, _ := h.join()
			cut := time.Now().Add(4 * holdfast.DefaultTTL)
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
				if commit {
					time.Sleep(slow)
				}
				outs, err := send()
				if time.Now().After(cut) {
					way.Off.Store(true)
				}
				if !commit {
					time.Sleep(slow)
				}
				return outs, err
			})
			l := h.take(a, 2*slow)
			queued := h.queue(1, b, "a")
			for time.Now().Before(cut) {
				h.holds(l)
				time.Sleep(time.Second)
			}
			h.holds(h.granted(queued, time.Minute))
			h.lost(l)
		}, true, false),
	},
}
