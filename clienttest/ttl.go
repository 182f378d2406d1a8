package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// ttlCases are about the store's TTL, and holds that end by themselves.
var ttlCases = []clientCase{
	{
		name: "the store's TTL",
		rule: "sessions that follow the store adopt its TTL within the one that they have, those with one of their own do not",
		run: func(h *clients) {
			set := func(ttl time.Duration) {
				h.Helper()
				h.setTTL(ttl)
				if got, err := h.look().StoreTTL(h.ctx); err != nil || got != ttl {
					h.Fatalf("the store's TTL is %v, error %v; want %v", got, err, ttl)
				}
			}
			if got, err := h.look().StoreTTL(h.ctx); err != nil || got != holdfast.DefaultTTL {
				h.Errorf("at first the store's TTL is %v, error %v", got, err)
			}
			set(midTTL)
			follows, own := h.acquire(h.client(0), "a"), h.acquire(h.client(longTTL), "b")
			for _, step := range []struct{ from, to time.Duration }{{midTTL, 3 * time.Second}, {3 * time.Second, time.Minute}} {
				if got := follows.TTL(); got != step.from {
					h.Errorf("TTL %v, want %v", got, step.from)
				}
				set(step.to)
				h.eventually(step.from+h.soon, "it is adopted", func() bool { return follows.TTL() == step.to })
				left := time.Until(follows.Deadline())
				if most := step.to - holdfast.Margin(step.to); left > most || left < most-h.soon {
					h.Errorf("trusted for %v with a TTL of %v", left, step.to)
				}
				if got := h.show("a").Holders[0].TTL; got != step.to {
					h.Errorf("others see a TTL of %v, want %v", got, step.to)
				}
			}
			if err := errors.Join(follows.Err(), own.Err()); err != nil || own.TTL() != longTTL {
				h.Errorf("the other has TTL %v; %v", own.TTL(), err)
			}
			h.release(follows, own)
			for _, ttl := range []time.Duration{0, -time.Second, 999 * time.Millisecond, 367 * 24 * time.Hour} {
				if err := h.look().SetStoreTTL(h.ctx, ttl); err == nil || !strings.Contains(err.Error(), "set ttl: TTL ") {
					h.Errorf("SetStoreTTL(%v): %v", ttl, err)
				}
			}
			if got, err := h.look().StoreTTL(h.ctx); err != nil || got != time.Minute {
				h.Errorf("in the end the store's TTL is %v, error %v", got, err)
			}
		},
	},
	{
		name: "a smaller TTL without an answer",
		rule: "a session shrinks its window before it sends a smaller TTL, so that no client can declare it dead too early (P1)",
		run: func(h *clients) {
			h.setTTL(5 * time.Second)
			s := &mute{Store: h.handle(), from: fmt.Appendf(nil, `"ttl":%d,`, holdfast.MinTTL.Milliseconds())}
			c := h.open(s, &holdfast.Options{})
			h.Cleanup(func() { s.over.Store(true); c.Close() })
			l := h.acquire(c, "a")
			queued := h.queue(1, h.client(longTTL), "a")
			h.setTTL(holdfast.MinTTL)
			next := h.grantedAt(queued, 8*time.Second+h.soon)
			if l.Err() == nil {
				h.Errorf("two believe that they hold it; the first for another %v", time.Until(l.Deadline()))
			}
			h.release(next.lock)
		},
	},
	{
		name: "acquire for a time",
		rule: "AcquireFor holds without a process: for d, not less, and then it ends by itself",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			const d = 1200 * time.Millisecond
			began := time.Now()
			claim, err := a.AcquireFor(h.ctx, "a", d, holdfast.Reason("maintenance"))
			if err != nil {
				h.Fatal(err)
			}
			if claim.Token <= 0 || claim.Name != "a" || !claim.Detached || claim.Owner.Session == "" {
				h.Errorf("the claim is %+v", claim)
			}
			if cl := h.show("a").Holders; len(cl) != 1 || cl[0].Token != claim.Token || !cl[0].Detached || cl[0].Dead || cl[0].ID != claim.ID || cl[0].Reason != "maintenance" {
				h.Errorf("shown as %+v", cl)
			}
			if _, err := h.record("a").Fence("a", claim.Token, 0); err != nil {
				h.Errorf("fence: %v", err)
			}
			next := h.grantedAt(h.ask(b, "a"), 2*d+h.soon)
			if held := next.at.Sub(began); held < d || held > 2*d+h.soon {
				h.Errorf("held for %v, asked for %v", held, d)
			}
			if next.lock.Token() <= claim.Token {
				h.Errorf("token %d after %d", next.lock.Token(), claim.Token)
			}
			h.is("ReleaseToken of what has ended", b.ReleaseToken(h.ctx, "a", claim.Token), holdfast.ErrReleased)
			h.release(next.lock)
			h.free("a")

			l := h.acquire(a, "b")
			_, err = b.AcquireFor(h.ctx, "b", time.Hour, holdfast.MaxWait(0))
			h.is("AcquireFor of what is held", err, holdfast.ErrHeld)
			h.release(l)
			for _, d := range []time.Duration{0, -1, 999 * time.Millisecond, 367 * 24 * time.Hour} {
				if _, err := a.AcquireFor(h.ctx, "b", d); err == nil {
					h.Errorf("AcquireFor of %v succeeded", d)
				}
			}
			h.empty("b")
		},
	},
	{
		name: "release a token",
		rule: "whoever knows the token may give a hold without a process back, once; that of a running program is refused",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			claim, err := a.AcquireFor(h.ctx, "a", time.Hour)
			if err != nil {
				h.Fatal(err)
			}
			queued := h.queue(1, b, "a")
			wrong := h.look().ReleaseToken(h.ctx, "a", claim.Token-1)
			h.is("ReleaseToken with another token", wrong, holdfast.ErrReleased)
			h.is("ReleaseToken with a token that never held", wrong, holdfast.ErrNoSuchHold)
			if want := fmt.Sprintf(`release "a": token %d does not hold it, and is not known to have`, claim.Token-1); wrong.Error() != want {
				h.Errorf("error %q, want %q", wrong, want)
			}
			if err := h.look().ReleaseToken(h.ctx, "a", claim.Token); err != nil {
				h.Fatal(err)
			}
			l := h.granted(queued, h.soon)
			h.is("ReleaseToken again", h.look().ReleaseToken(h.ctx, "a", claim.Token), holdfast.ErrReleased)
			err = h.look().ReleaseToken(h.ctx, "a", l.Token())
			if err == nil || errors.Is(err, holdfast.ErrReleased) || !strings.Contains(err.Error(), "belongs to a running program") {
				h.Errorf("ReleaseToken of a running program's lock: %v", err)
			}
			if l.Err() != nil {
				h.Error("it was taken from it")
			}
			h.release(l)
			h.free("a")
		},
	},
	{
		name: "extend a token",
		rule: "whoever knows the token may have a hold without a process end later; one that has ended, and that of a running program, is refused",
		run: func(h *clients) {
			const d = 1500 * time.Millisecond
			claim, err := h.client(longTTL).AcquireFor(h.ctx, "a", d)
			if err != nil {
				h.Fatal(err)
			}
			looker := h.client(longTTL)
			extended := time.Now()
			longer, err := looker.ExtendToken(h.ctx, "a", claim.Token, 2*shortTTL+d)
			if err != nil {
				h.Fatal(err)
			}
			if longer.Token != claim.Token || longer.ID != claim.ID || !longer.Detached {
				h.Errorf("extended is %+v, was %+v", longer, claim)
			}
			_, err = looker.ExtendToken(h.ctx, "a", claim.Token-1, time.Hour)
			h.is("ExtendToken with a token that never held", err, holdfast.ErrNoSuchHold, holdfast.ErrReleased)
			for _, bad := range []time.Duration{0, 999 * time.Millisecond, 367 * 24 * time.Hour} {
				if _, err := looker.ExtendToken(h.ctx, "a", claim.Token, bad); err == nil {
					h.Errorf("ExtendToken by %v succeeded", bad)
				}
			}
			next := h.grantedAt(h.ask(h.client(longTTL), "a"), 3*(2*shortTTL+d)+h.soon)
			if held := next.at.Sub(extended); held < 2*shortTTL+d {
				h.Errorf("held for %v after it was extended by %v", held, 2*shortTTL+d)
			}
			_, err = looker.ExtendToken(h.ctx, "a", next.lock.Token(), time.Hour)
			if err == nil || errors.Is(err, holdfast.ErrReleased) || !strings.Contains(err.Error(), "belongs to a running program") {
				h.Errorf("ExtendToken of a running program's lock: %v", err)
			}
			_, err = looker.ExtendToken(h.ctx, "a", claim.Token, time.Hour)
			h.is("ExtendToken of what has ended", err, holdfast.ErrReleased)
			h.release(next.lock)
		},
	},
}

// A mute store does not tell what became of heartbeats, from the first one that contains from
// until over is set.
type mute struct {
	driver.Store
	from        []byte
	begun, over atomic.Bool
}

func (s *mute) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	out, err := s.Store.CompareAndSwap(ctx, writes)
	if writes[0].Key.Space != driver.Sessions || s.over.Load() {
		return out, err
	}
	if bytes.Contains(writes[0].Value, s.from) {
		s.begun.Store(true)
	}
	if s.begun.Load() {
		return nil, errors.New("the answer was lost")
	}
	return out, err
}
