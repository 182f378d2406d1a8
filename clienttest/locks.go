package clienttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// lockCases are about one lock and its answers.
var lockCases = []clientCase{
	{
		name: "acquire and release",
		rule: "Release ends belief at once and then gives the lock back; nothing is left of it (P6, P8)",
		run: func(h *clients) {
			clients := []*holdfast.Client{h.client(longTTL), h.client(longTTL)}
			for i := range 10 {
				l := h.acquire(clients[i%2], "a")
				ctx := l.Context()
				if l.Name() != "a" || l.Token() <= 0 || l.Slots() != 1 || l.TTL() != longTTL {
					h.Errorf("a lock of %q with token %d, %d slots and TTL %v", l.Name(), l.Token(), l.Slots(), l.TTL())
				}
				if left := time.Until(l.Deadline()); left <= 0 || left > longTTL-holdfast.Margin(longTTL) {
					h.Errorf("trusted for %v with a TTL of %v", left, longTTL)
				}
				if err := errors.Join(l.Err(), ctx.Err()); err != nil {
					h.Errorf("while held: %v", err)
				}
				h.release(l)
				h.is("Err after Release", l.Err(), holdfast.ErrReleased)
				h.is("the cause after Release", context.Cause(ctx), holdfast.ErrReleased)
				if want := fmt.Sprintf(`"a" (token %d) has been released`, l.Token()); l.Err().Error() != want {
					h.Errorf("Err is %q, want %q", l.Err(), want)
				}
				if r := h.record("a"); len(r.Value) > 0 {
					h.Errorf("after Release %q is left", r.Value)
				}
			}
		},
	},
	{
		name: "release again",
		rule: "Release again gives the same answer and harms nobody; with a ctx that is done it is sent all the same",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			first := h.acquire(a, "a")
			h.release(first)
			second := h.acquire(b, "a")
			for range 3 {
				h.release(first)
			}
			if err := second.Err(); err != nil || len(h.show("a").Holders) != 1 {
				h.Errorf("the next holder was harmed: %v, %+v", err, h.show("a"))
			}
			done, cancel := context.WithCancel(h.ctx)
			cancel()
			if err := second.Release(done); err != nil && !errors.Is(err, context.Canceled) {
				h.Errorf("Release with a ctx that is done: %v", err)
			}
			h.is("Err", second.Err(), holdfast.ErrReleased)
			h.empty("a")
		},
	},
	{
		name: "context",
		rule: "a lock's context has the values of the acquiring context, not its end",
		run: func(h *clients) {
			type key struct{}
			ctx, cancel := context.WithCancel(context.WithValue(h.ctx, key{}, "value"))
			l, err := h.client(longTTL).Acquire(ctx, "a")
			if err != nil {
				h.Fatal(err)
			}
			work := l.Context()
			cancel()
			if work.Value(key{}) != "value" {
				h.Error("the context lacks the values of the one that acquired")
			}
			if err := errors.Join(work.Err(), l.Err()); err != nil {
				h.Errorf("the lock ended with the context that acquired it: %v", err)
			}
			h.release(l)
			h.is("the context after Release", work.Err(), context.Canceled)
		},
	},
	{
		name: "tokens",
		rule: "every grant of a name has a larger token than every earlier one: across release, break, loss, death and sweep (P3)",
		run: func(h *clients) {
			var last int64
			higher := func(after string, l *holdfast.Lock) *holdfast.Lock {
				h.Helper()
				if l.Token() <= last {
					h.Fatalf("token %d after %s, and %d was given before", l.Token(), after, last)
				}
				last = l.Token()
				return l
			}
			a := h.client(longTTL)
			for range 20 {
				h.release(higher("release", h.acquire(a, "a")))
			}
			broken := h.client(midTTL)
			for range 2 {
				l := higher("release", h.acquire(broken, "a"))
				if err := h.look().BreakNow(h.ctx, "a", h.show("a").Holders[0].Token, "test"); err != nil {
					h.Fatal(err)
				}
				h.release(higher("break", h.acquire(a, "a")))
				h.eventually(midTTL/3+h.soon, "the broken knows", func() bool { return l.Err() != nil })
			}
			dying, p := h.process(&holdfast.Options{TTL: shortTTL})
			higher("release", h.acquire(dying, "a"))
			p.Crash()
			h.release(higher("death", h.granted(h.ask(a, "a"), shortTTL+h.soon)))
			for range 5 {
				if _, err := h.store.Sweep(h.ctx, 0); err != nil {
					h.Fatal(err)
				}
				if _, err := h.look().Sweep(h.ctx); err != nil {
					h.Fatal(err)
				}
				h.release(higher("sweep", h.acquire(a, "a")))
			}
		},
	},
	{
		name: "fence",
		rule: "a store's record tells which tokens hold: of exclusive, shared and slots, while they do and no longer (P4)",
		run: func(h *clients) {
			c := h.client(longTTL)
			for _, opts := range [][]holdfast.Option{nil, {holdfast.Shared()}, {holdfast.Slots(3)}} {
				l := h.acquire(c, "a", opts...)
				r := h.record("a")
				if next, err := r.Fence("a", l.Token(), 7); err != nil || next != 7 {
					h.Errorf("fence of a %s lock: keep %d, error %v; want to keep 7", describeSlots(l), next, err)
				}
				_, err := r.Fence("a", l.Token()+1, 0)
				h.is("fence with a token that nobody has", err, holdfast.ErrLost)
				h.release(l)
				_, err = h.record("a").Fence("a", l.Token(), 0)
				h.is("fence after Release", err, holdfast.ErrLost)
				if want := fmt.Sprintf(`fence "a": token %d no longer holds it; roll back`, l.Token()); err.Error() != want {
					h.Errorf("error %q, want %q", err, want)
				}
			}
		},
	},
	{
		name: "names",
		rule: "a name is 1 to 1,024 bytes of UTF-8 without control characters; others are refused with a clear error (P9)",
		run: func(h *clients) {
			c := h.client(longTTL)
			for name, want := range map[string]string{
				"":                        `name is empty`,
				strings.Repeat("x", 1025): `name has 1025 bytes, at most 1024`,
				holdfast.JoinName(strings.Repeat("/", 340), "12345"): `name has 1026 bytes, at most 1024; JoinName has added 680 for each / and % of its parts`,
				"a\x00b": `name "a\x00b" has a control character`,
				"a\nb":   `name "a\nb" has a control character`,
				"\xffa":  `name is not UTF-8: "\xffa"`,
			} {
				want = fmt.Sprintf("acquire %q: %s", name, want)
				if _, err := c.Acquire(h.ctx, name); err == nil || err.Error() != want {
					h.Errorf("error %v, want %s", err, want)
				}
				if _, err := c.AcquireAll(h.ctx, []string{name}); err == nil || err.Error() != want {
					h.Errorf("of a set: error %v, want %s", err, want)
				}
			}
			for _, name := range []string{" ", "%", "_", "'", `"`, `\`, "a/b", "ä", "名前", "🔒", "null", "{}", strings.Repeat("x", 1024), strings.Repeat("名", 341), holdfast.JoinName(strings.Repeat("/", 340), "123")} {
				l := h.acquire(c, name)
				if i := h.show(name); len(i.Holders) != 1 || i.Holders[0].Token != l.Token() {
					h.Errorf("%q is held, and shown as %+v", name, i)
				}
				h.release(l)
				h.empty(name)
			}
		},
	},
	{
		name: "options",
		rule: "bad settings are refused with a clear error, and nothing is done (P9)",
		run: func(h *clients) {
			for want, o := range map[string]holdfast.Options{
				"TTL 200ms is below 1s":  {TTL: 200 * time.Millisecond},
				"TTL -1s is below 1s":    {TTL: -time.Second},
				"grace -1s is negative":  {Grace: -time.Second},
				"TTL 8808h0m0s is above": {TTL: 367 * 24 * time.Hour},
			} {
				if _, err := holdfast.New(h.store, &o); err == nil || !strings.Contains(err.Error(), want) {
					h.Errorf("error %v, want one with %q", err, want)
				}
			}
			c := h.client(longTTL)
			for want, opt := range map[string]holdfast.Option{
				"Slots(0) is not between 1 and 1073741824":  holdfast.Slots(0),
				"Slots(-3) is not between 1 and 1073741824": holdfast.Slots(-3),
				"MaxWait(-1s) is negative":                  holdfast.MaxWait(-time.Second),
				"Reason has 201 bytes, at most 200":         holdfast.Reason(strings.Repeat("x", 201)),
				"Reason has 5000 bytes, at most 200":        holdfast.Reason(strings.Repeat("x", 5000)),
			} {
				want = `acquire "a": ` + want
				if _, err := c.Acquire(h.ctx, "a", opt); err == nil || err.Error() != want {
					h.Errorf("error %v, want %s", err, want)
				}
			}
			if r := h.record("a"); r.Version != 0 || len(h.keys(driver.Sessions)) != 0 {
				h.Errorf("something was written: %s", h.dump())
			}
		},
	},
}

func describeSlots(l *holdfast.Lock) string { return holdfast.Claim{Slots: l.Slots()}.Mode() }

// An endingContext ends right after it is first asked whether it has ended.
type endingContext struct {
	context.Context
	end context.CancelFunc
}

func (c endingContext) Err() error {
	defer c.end()
	return c.Context.Err()
}

// waitCases are about waits that end without the lock.
var waitCases = []clientCase{
	{
		name: "try",
		rule: "TryAcquire asks once and does not wait; ErrHeld names who is in the way, and nothing is left behind",
		run: func(h *clients) {
			holder := h.clientOf(h.handle(), &holdfast.Options{TTL: longTTL, Owner: holdfast.Owner{
				User: "ana", Host: "db1", PID: 4711, Program: "backup", Labels: map[string]string{"job": "nightly"}}})
			other := h.client(longTTL)
			l := h.acquire(holder, "nightly", holdfast.Reason("nightly backup"))
			_, err := other.TryAcquire(h.ctx, "nightly")
			h.is("TryAcquire", err, holdfast.ErrHeld)
			var held *holdfast.HeldError
			if !errors.As(err, &held) || held.Name != "nightly" || held.Self || held.Err != nil || len(held.Holders) != 1 || len(held.Waiters) != 0 {
				h.Fatalf("the error is %#v", err)
			}
			cl := held.Holders[0]
			if cl.Owner.User != "ana" || cl.Owner.Host != "db1" || cl.Owner.PID != 4711 || cl.Owner.Program != "backup" || cl.Owner.Labels["job"] != "nightly" ||
				cl.Token != l.Token() || cl.Slots != 1 || cl.Mode() != "exclusive" || cl.Reason != "nightly backup" || cl.TTL != longTTL || cl.Own {
				h.Errorf("the holder is %+v", cl)
			}
			got := err.Error()
			if h.slow() { // then it may say that a write of the holder is under way
				got, _, _ = strings.Cut(got, ";")
			}
			if !strings.HasPrefix(got, `acquire "nightly": held by ana@db1 (pid 4711) for `) || !strings.HasSuffix(got, ": nightly backup") {
				h.Errorf("the error is %q", err)
			}

			queued := h.queue(1, h.client(longTTL), "nightly")
			_, err = other.TryAcquire(h.ctx, "nightly")
			if !errors.As(err, &held) || len(held.Waiters) != 1 || !strings.HasSuffix(err.Error(), ", 1 waiting before us") {
				h.Errorf("with one in the queue the error is %v", err)
			}
			if n := len(h.show("nightly").Waiters); n != 1 {
				h.Errorf("%d waiters, want the one that waits", n)
			}
			h.release(l)
			h.release(h.granted(queued, h.soon))
			h.empty("nightly")
		},
	},
	{
		name: "not reentrant",
		rule: "who holds a name and asks again is told that it is its own",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			l := h.acquire(a, "a")
			_, err := a.TryAcquire(h.ctx, "a")
			var held *holdfast.HeldError
			if !errors.As(err, &held) || !held.Self || !strings.Contains(err.Error(), "held by this process for ") || !strings.HasSuffix(err.Error(), "(locks are not reentrant)") {
				h.Errorf("TryAcquire of a lock of our own: %v", err)
			}
			_, err = a.Acquire(h.ctx, "a", holdfast.MaxWait(50*time.Millisecond))
			if !errors.As(err, &held) || !held.Self {
				h.Errorf("Acquire of a lock of our own: %v", err)
			}
			queued := h.queue(1, b, "a")
			_, err = b.TryAcquire(h.ctx, "a")
			if !errors.As(err, &held) || held.Self || len(held.Holders) != 1 || held.Holders[0].Own {
				h.Errorf("TryAcquire of what another holds and we wait for: %v", err)
			}
			h.release(l)
			h.release(h.granted(queued, h.soon))
			h.empty("a")
		},
	},
	{
		name: "max wait",
		rule: "MaxWait gives up after that long with ErrHeld, and leaves nothing behind",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			l := h.acquire(a, "a")
			for _, wait := range []time.Duration{0, busy.Times(20 * time.Millisecond), busy.Times(150 * time.Millisecond)} {
				h.held(wait, func(wait time.Duration) error {
					began := time.Now()
					_, err := b.Acquire(h.ctx, "a", holdfast.MaxWait(wait))
					if took := time.Since(began); took < wait || took > wait+h.soon {
						h.Errorf("MaxWait(%v) took %v", wait, took)
					}
					h.waiting("a", 0)
					return err
				})
			}
			h.release(l)
			h.empty("a")
			h.release(h.acquire(b, "a", holdfast.MaxWait(h.soon)))
		},
	},
	{
		name: "cancel",
		rule: "ctx bounds the wait: its Err is in the chain, and ErrHeld where someone is in the way; nothing is left behind (P5)",
		run: func(h *clients) {
			a, b, c := h.client(longTTL), h.client(longTTL), h.client(longTTL)
			l := h.acquire(a, "a")
			ctx, cancel := context.WithCancel(h.ctx)
			asked := h.askFor(ctx, b, "a")
			h.waiting("a", 1)
			behind := h.queue(2, c, "a")
			cancel()
			err := h.answered(asked, h.soon).err
			h.is("a cancelled Acquire", err, context.Canceled, holdfast.ErrHeld)
			h.waiting("a", 1)

			ctx, cancel = context.WithTimeout(h.ctx, 100*time.Millisecond)
			defer cancel()
			_, err = b.Acquire(ctx, "a")
			h.is("an Acquire with a deadline", err, context.DeadlineExceeded, holdfast.ErrHeld)
			if got := err.Error(); !strings.HasPrefix(got, `acquire "a": context deadline exceeded after `) || !strings.Contains(got, ": held by ") || !strings.HasSuffix(got, ", 1 waiting before us") {
				h.Errorf("the error is %q", got)
			}
			_, err = b.Acquire(ctx, "b")
			h.is("an Acquire with a ctx that is done", err, context.DeadlineExceeded)
			h.waiting("a", 1)
			h.release(l)
			h.release(h.granted(behind, h.soon))
			h.empty("a", "b")
		},
	},
	{
		name: "cancel at once",
		rule: "a ctx that ends in the very moment of the asking or the grant leaves no lock and no claim behind",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			for i := range 40 {
				l := h.acquire(a, "a")
				ctx, cancel := context.WithCancel(h.ctx)
				asked := h.askFor(ctx, b, "a")
				if i%2 == 0 {
					h.waiting("a", 1)
				}
				go cancel()
				h.release(l)
				if got := h.answered(asked, h.soon); got.lock != nil {
					h.release(got.lock)
				} else {
					h.is("Acquire", got.err, context.Canceled)
				}
				h.empty("a")
			}
			l := h.acquire(a, "a")
			for _, name := range []string{"a", "b"} {
				for range 20 {
					ctx, cancel := context.WithCancel(h.ctx)
					got, err := a.TryAcquire(endingContext{ctx, cancel}, name)
					cancel()
					if got != nil {
						h.release(got)
					} else if !errors.Is(err, context.Canceled) && !errors.Is(err, holdfast.ErrHeld) {
						h.Fatalf("TryAcquire: %v", err)
					}
				}
			}
			h.release(l)
			h.empty("a", "b")
		},
	},
	{
		name: "silent store",
		rule: "who waits and gets no answer from the store is told so, with the store's error and its ctx's, and not ErrHeld (P7)",
		run: func(h *clients) {
			c, p := h.process(&holdfast.Options{TTL: midTTL})
			h.release(h.acquire(c, "a"))
			p.Partition(true)
			ctx, cancel := context.WithTimeout(h.ctx, 300*time.Millisecond)
			defer cancel()
			_, err := c.Acquire(ctx, "a")
			h.is("Acquire", err, context.DeadlineExceeded)
			if errors.Is(err, holdfast.ErrHeld) {
				h.Errorf("the store is silent, and the error says that the lock is held: %v", err)
			}
			p.Partition(false)
			h.eventually(2*midTTL+h.soon, "it goes on when the store is back", func() bool {
				l, err := c.TryAcquire(h.ctx, "a")
				if err == nil {
					h.release(l)
				}
				return err == nil
			})
			h.free("a")
		},
	},
}
