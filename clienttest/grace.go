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
			next := h.grantedAt(queued, grace+longTTL+h.soon)
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
	{
		name: "min hold",
		rule: "a name stays shut for MinHold after its grant, also when the lock is released at once; a job that takes longer keeps its lock and gives it back at once",
		run: func(h *clients) {
			d := 2 * shortTTL
			c, other := h.client(longTTL), h.client(longTTL)
			began := time.Now()
			l := h.acquire(c, "a", holdfast.MinHold(d))
			granted := time.Now()
			h.release(l)
			if took := time.Since(granted); took > h.soon {
				h.Errorf("Release took %v", took)
			}
			_, err := other.TryAcquire(h.ctx, "a")
			var held *holdfast.HeldError
			if !errors.As(err, &held) || len(held.Holders) != 1 || !held.Holders[0].Kept {
				h.Errorf("a try while it is kept: %v", err)
			} else if until := held.Holders[0].KeptUntil; until.Before(began.Add(d)) || until.After(granted.Add(d+h.soon)) {
				h.Errorf("kept until %v, want %v", until, granted.Add(d))
			}
			h.shutFor(other, "a", d, began)

			err = c.Do(h.ctx, "b", func(ctx context.Context, l *holdfast.Lock) error {
				time.Sleep(d + d/3)
				if _, err := other.TryAcquire(h.ctx, "b"); !errors.Is(err, holdfast.ErrHeld) {
					h.Errorf("a try during a long job: %v", err)
				}
				return l.Err()
			}, holdfast.MinHold(d))
			if err != nil {
				h.Errorf("a long job: %v", err)
			}
			h.release(h.granted(h.ask(other, "b"), h.soon))
			h.free("a", "b")
		},
	},
	{
		name: "min hold of the dead",
		rule: "a name stays shut for MinHold after its grant when its process dies, and no longer than that and a poll where the store has a clock",
		run: func(h *clients) {
			d := 3 * shortTTL
			c, p := h.process(&holdfast.Options{TTL: longTTL})
			began := time.Now()
			h.acquire(c, "a", holdfast.MinHold(d))
			time.Sleep(d / 4)
			p.Crash()
			h.shutFor(h.client(longTTL), "a", d, began)
			h.free("a")
		},
	},
}

// shutFor waits until a name, which was locked after began with MinHold(d), opens.
func (h *clients) shutFor(c *holdfast.Client, name string, d time.Duration, began time.Time) {
	h.Helper()
	const poll = 2500 * time.Millisecond
	most := d + poll + h.soon
	if h.record(name).Age < 0 {
		most += d // a whole watch, from now on
	}
	a := h.grantedAt(h.ask(c, name), most)
	if took := a.at.Sub(began); took < d || took > most {
		h.Errorf("%q was shut for %v, want %v", name, took, d)
	}
	h.release(a.lock)
}
