package clienttest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// breakCases are about locks that are ended by force.
var breakCases = []clientCase{
	{
		name: "break a holder",
		rule: "Break tells the holder, returns when it has left, and leaves an entry in the audit; exclusion stands throughout (P1)",
		run: func(h *clients) {
			ops := h.clientOf(h.handle(), &holdfast.Options{Owner: holdfast.Owner{User: "ops", Host: "bastion", PID: 1}})
			l := h.acquire(h.client(midTTL), "deploy", holdfast.Reason("release 7"))
			claim := h.show("deploy").Holders[0]
			queued := h.queue(1, h.client(midTTL), "deploy")
			stopped := make(chan time.Time, 1)
			go func() {
				<-l.Context().Done()
				time.Sleep(100 * time.Millisecond) // the work takes a moment to stop
				stopped <- time.Now()
				l.Release(h.ctx)
			}()
			if err := ops.Break(h.ctx, claim.Name, claim.Token, "ticket 815"); err != nil {
				h.Fatal(err)
			}
			returned := time.Now()
			next := h.answered(queued, h.soon)
			if at := <-stopped; next.err != nil || next.at.Before(at) || returned.Before(at) {
				h.Errorf("the work stopped %v before Break returned and %v before the next had the lock, error %v", returned.Sub(at), next.at.Sub(at), next.err)
			}
			h.is("Err", l.Err(), holdfast.ErrLost)
			want := fmt.Sprintf(`"deploy" (token %d) lost: broken by ops@bastion (pid 1): ticket 815`, l.Token())
			if l.Err().Error() != want || context.Cause(l.Context()).Error() != want {
				h.Errorf("Err is %q, want %q", l.Err(), want)
			}
			h.is("Release", l.Release(h.ctx), holdfast.ErrLost)

			err := ops.Break(h.ctx, claim.Name, claim.Token, "ticket 815")
			h.is("Break again", err, holdfast.ErrReleased)
			if want := fmt.Sprintf(`break "deploy": token %d has let go already`, l.Token()); err.Error() != want {
				h.Errorf("error %q, want %q", err, want)
			}
			h.release(next.lock)
			breaks := h.show("deploy").Breaks
			if len(breaks) != 1 {
				h.Fatalf("%d breaks in the audit", len(breaks))
			}
			b := breaks[0]
			if b.Token != l.Token() || b.By.User != "ops" || b.By.Host != "bastion" || b.Was.Session != claim.Owner.Session || b.Was.Host != claim.Owner.Host ||
				b.Reason != "ticket 815" || b.Now || b.At.IsZero() {
				h.Errorf("the audit says %+v", b)
			}
			h.free("deploy")
		},
	},
	{
		name: "break a holder that does not stop",
		rule: "a broken lock goes at the end of its trust window if the work does not give it back",
		run: func(h *clients) {
			l := h.acquire(h.client(midTTL), "a")
			began := time.Now()
			if err := h.look().Break(h.ctx, "a", h.show("a").Holders[0].Token, "test"); err != nil {
				h.Fatal(err)
			}
			if took := time.Since(began); took > midTTL+midTTL/3+h.soon {
				h.Errorf("Break took %v with a TTL of %v", took, midTTL)
			}
			h.is("Err", l.Err(), holdfast.ErrLost)
			h.free("a")
			h.is("Release", l.Release(h.ctx), holdfast.ErrLost)
		},
	},
	{
		name: "break the dead",
		rule: "Break of a holder that does not answer returns when it is dead, after its TTL and a poll (P8)",
		run: func(h *clients) {
			c, p := h.process(&holdfast.Options{TTL: shortTTL})
			l := h.acquire(c, "a")
			p.Crash()
			began := time.Now()
			if err := h.look().Break(h.ctx, "a", h.show("a").Holders[0].Token, "test"); err != nil {
				h.Fatal(err)
			}
			if took := time.Since(began); took > shortTTL+shortTTL/2+h.soon {
				h.Errorf("Break took %v with a TTL of %v", took, shortTTL)
			}
			if l.Err() == nil {
				h.Error("the holder still believes")
			}
			h.free("a")
		},
	},
	{
		name: "break a waiter",
		rule: "Break of a waiter takes it out of the queue, and its Acquire says so",
		run: func(h *clients) {
			l := h.acquire(h.client(longTTL), "a")
			first := h.queue(1, h.client(midTTL), "a")
			second := h.queue(2, h.client(longTTL), "a")
			claim := h.show("a").Waiters[0]
			if claim.Token != 0 || claim.ID == "" {
				h.Errorf("the waiter is %+v", claim)
			}
			if err := h.look().BreakWaiter(h.ctx, claim, "ticket 815"); err != nil {
				h.Fatal(err)
			}
			err := h.answered(first, midTTL+h.soon).err
			if err == nil || !strings.HasPrefix(err.Error(), `acquire "a": `) || !strings.Contains(err.Error(), "broken by ") || !strings.HasSuffix(err.Error(), ": ticket 815") {
				h.Errorf("its Acquire says %v", err)
			}
			h.waiting("a", 1)
			h.is("Break again", h.look().BreakWaiter(h.ctx, claim, "ticket 815"), holdfast.ErrReleased)
			h.release(l)
			h.release(h.granted(second, h.soon))
			if got := h.show("a").Breaks; len(got) != 1 || got[0].Token != 0 || got[0].Reason != "ticket 815" {
				h.Errorf("the audit says %+v", got)
			}
			h.free("a")
		},
	},
	{
		name: "break another",
		rule: "Break ends exactly the claim that was seen: one with another token is gone (ErrReleased)",
		run: func(h *clients) {
			c := h.client(longTTL)
			h.release(h.acquire(c, "a"))
			l := h.acquire(c, "a")
			claim := h.show("a").Holders[0]
			h.is("Break with an old token", h.look().Break(h.ctx, "a", claim.Token-1, "test"), holdfast.ErrReleased)
			h.is("BreakNow with an old token", h.look().BreakNow(h.ctx, "a", claim.Token-1, "test"), holdfast.ErrReleased)
			if err := h.look().Break(h.ctx, claim.Name, claim.Token, ""); err == nil || err.Error() != `break "a": needs a reason` {
				h.Errorf("Break without a reason: %v", err)
			}
			if err := h.look().Break(h.ctx, claim.Name, claim.Token, strings.Repeat("x", 201)); err == nil {
				h.Error("Break with a reason that is too long succeeded")
			}
			if err := l.Err(); err != nil {
				h.Errorf("the holder was harmed: %v", err)
			}
			h.release(l)
			h.is("Break of who has let go", h.look().Break(h.ctx, claim.Name, claim.Token, "test"), holdfast.ErrReleased)
			h.empty("a")
			if got := h.show("a").Breaks; len(got) != 0 {
				h.Errorf("the audit says %+v", got)
			}
		},
	},
	{
		name: "break now",
		rule: "BreakNow does not wait; from then on only the fence protects, and it does (P4)",
		run: func(h *clients) {
			c, p := h.process(&holdfast.Options{TTL: longTTL})
			l := h.acquire(c, "a")
			p.Pause()
			queued := h.queue(1, h.client(longTTL), "a")
			if err := h.look().BreakNow(h.ctx, "a", h.show("a").Holders[0].Token, "test"); err != nil {
				h.Fatal(err)
			}
			next := h.granted(queued, h.soon)
			r := h.record("a")
			_, err := r.Fence("a", l.Token(), 0)
			h.is("fence of the broken", err, holdfast.ErrLost)
			if _, err := r.Fence("a", next.Token(), 0); err != nil {
				h.Errorf("fence of the next: %v", err)
			}
			p.Resume()
			h.eventually(longTTL/3+h.soon, "the broken knows", func() bool { return l.Err() != nil })
			h.is("Err", l.Err(), holdfast.ErrLost)
			if got := h.show("a").Breaks; len(got) != 1 || !got[0].Now || got[0].Token != l.Token() {
				h.Errorf("the audit says %+v", got)
			}
			h.release(next)
			h.free("a")
			if again := h.acquire(c, "a"); again.Release(h.ctx) != nil {
				h.Error("the broken client cannot go on")
			}
		},
	},
}
