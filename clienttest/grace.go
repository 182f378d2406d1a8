package clienttest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// graceCases are about names that stay shut for a while after their holder was lost.
var graceCases = []clientCase{
	{
		name: "grace after a loss",
		rule: "a name stays shut for Options.Grace after its holder is presumed dead, for its own client too (R9)",
		run: func(h *clients) {
			grace := 2 * shortTTL
			holder, p := h.process(&holdfast.Options{TTL: shortTTL, Grace: grace})
			l := h.acquire(holder, "a")
			p.Partition(true)
			cut := time.Now()
			<-l.Context().Done()
			p.Partition(false)
			own, other := h.ask(holder, "a"), h.ask(h.client(longTTL), "a")
			first := time.Time{}
			for range 2 {
				var a answer
				select {
				case a = <-own:
				case a = <-other:
				case <-h.ctx.Done():
					h.Fatal("nobody is granted the lock")
				}
				if a.err != nil {
					h.Fatal(a.err)
				}
				if first.IsZero() {
					first = a.at
				}
				h.release(a.lock)
			}
			// Its last heartbeat was at most a third of a TTL before the cut.
			if took := first.Sub(cut); took < shortTTL*2/3+grace || took > shortTTL+grace+shortTTL+2*h.soon {
				h.Errorf("granted %v after the holder was cut off (TTL %v, grace %v)", took, shortTTL, grace)
			}
		},
	},
	{
		name: "grace after break and close",
		rule: "a name whose lock was broken stays shut for Options.Grace, also if its client closes at once; Close returns promptly (R9)",
		run: func(h *clients) {
			grace := midTTL + shortTTL // longer than the session is trusted
			holder := h.open(h.handle(), &holdfast.Options{TTL: midTTL, Grace: grace})
			l := h.acquire(holder, "a")
			queued := h.queue(1, h.client(longTTL), "a")
			claim := h.show("a").Holders[0]
			ctx, cancel := context.WithCancel(h.ctx)
			defer cancel()
			go h.look().Break(ctx, claim.Name, claim.Token, "test")
			select {
			case <-l.Context().Done():
			case <-h.ctx.Done():
				h.Fatal("the holder was not told")
			}
			ended := time.Now()
			if err := holder.Close(); err != nil {
				h.Errorf("Close: %v", err)
			}
			if took := time.Since(ended); took > time.Second+h.soon {
				h.Errorf("Close took %v", took)
			}
			next := h.answered(queued, grace+longTTL+h.soon)
			if next.err != nil {
				h.Fatal(next.err)
			}
			if took := next.at.Sub(ended); took < grace {
				h.Errorf("granted %v after the broken lock ended, want %v at least", took, grace)
			}
			h.release(next.lock)
		},
	},
	{
		name: "grace and a broken waiter",
		rule: "a waiting claim that was broken has done nothing: it leaves at once, whatever Options.Grace",
		run: func(h *clients) {
			holder := h.client(longTTL)
			l := h.acquire(holder, "a")
			waiter := h.open(h.handle(), &holdfast.Options{TTL: longTTL, Grace: time.Hour})
			waits := h.queue(1, waiter, "a")
			behind := h.queue(2, h.client(longTTL), "a")
			if err := h.look().BreakWaiter(h.ctx, h.show("a").Waiters[0], "test"); err != nil {
				h.Fatal(err)
			}
			if err := h.answered(waits, h.soon).err; !errors.Is(err, holdfast.ErrLost) {
				h.Errorf("the broken waiter is told %v", err)
			}
			h.release(l)
			h.release(h.granted(behind, h.soon))
			waiter.Close()
		},
	},
}
