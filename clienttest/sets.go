package clienttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// setCases are about several names at once.
var setCases = []clientCase{
	{
		name: "a set",
		rule: "AcquireAll gives the locks in the order asked, doubles once, with one context for all",
		run: func(h *clients) {
			c := h.client(longTTL)
			set, err := c.AcquireAll(h.ctx, []string{"b", "a", "c", "b"})
			if err != nil {
				h.Fatal(err)
			}
			locks := set.Locks()
			if len(locks) != 4 || locks[0].Name() != "b" || locks[1].Name() != "a" || locks[2].Name() != "c" || locks[3] != locks[0] {
				h.Fatalf("%d locks, of %q first", len(locks), locks[0].Name())
			}
			work := locks[0].Context()
			if work != locks[1].Context() || work != set.Context() || work.Err() != nil || set.Err() != nil {
				h.Error("not one context for all")
			}
			for _, n := range []string{"a", "b", "c"} {
				if _, err := h.look().TryAcquire(h.ctx, n); !errors.Is(err, holdfast.ErrHeld) {
					h.Errorf("TryAcquire of %q: %v", n, err)
				}
			}
			if err := set.Release(h.ctx); err != nil {
				h.Fatal(err)
			}
			if work.Err() == nil || !errors.Is(set.Err(), holdfast.ErrReleased) {
				h.Error("the context goes on after Release")
			}
			h.empty("a", "b", "c")
			if _, err := c.AcquireAll(h.ctx, nil); err == nil {
				h.Error("a set of no names was acquired")
			}
		},
	},
	{
		name: "all or none",
		rule: "AcquireAll gives all or none; the error tells which of how many was in the way, and nothing is left behind",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			l := h.acquire(a, "b", holdfast.Reason("rent"))
			for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
				var locks *holdfast.LockSet
				err := h.held(wait, func(wait time.Duration) (err error) {
					locks, err = b.AcquireAll(h.ctx, []string{"c", "b", "a"}, holdfast.MaxWait(wait))
					return err
				})
				var held *holdfast.HeldError
				if locks != nil || !errors.As(err, &held) || len(held.Holders) != 1 || held.Holders[0].Token != l.Token() {
					h.Errorf("%v and error %v", locks, err)
				}
				if got := err.Error(); !strings.HasPrefix(got, `acquire "b" (2 of 3 names): held by `) || !strings.HasSuffix(got, ": rent") {
					h.Errorf("error %q", got)
				}
				h.empty("a", "c")
				h.waiting("b", 0)
			}
			for _, bad := range []string{"", "b\x00"} {
				if _, err := b.AcquireAll(h.ctx, []string{"a", bad, "c"}); err == nil {
					h.Errorf("a set with the name %q was acquired", bad)
				}
				h.empty("a", "c")
			}

			collecting := make(chan error, 1)
			var locks *holdfast.LockSet
			go func() {
				var err error
				locks, err = b.AcquireAll(h.ctx, []string{"c", "b", "a"})
				collecting <- err
			}()
			h.waiting("b", 1)
			h.eventually(h.soon, "what lies below is kept, what lies above given back", func() bool {
				return len(h.show("a").Holders) == 1 && len(h.show("c").Holders) == 0
			})
			if got := h.show("b").Waiters[0].Collecting; got != "1 of 3" {
				h.Errorf("who waits is shown as collecting %q, want 1 of 3", got)
			}
			h.release(l)
			if err := <-collecting; err != nil {
				h.Fatal(err)
			}
			if err := locks.Release(h.ctx); err != nil {
				h.Fatal(err)
			}
			h.free("a", "b", "c")
		},
	},
	{
		name: "sets that overlap",
		rule: "processes that take sets in any order never wait for each other in a circle (P6)",
		run: func(h *clients) {
			var inside [5]atomic.Int32
			var wg sync.WaitGroup
			for p := range 4 {
				c := h.client(longTTL)
				for g := range 2 {
					wg.Go(func() {
						random := rand.New(rand.NewPCG(uint64(p), uint64(g)))
						for range 6 {
							ids := random.Perm(5)[:1+random.IntN(3)]
							var names []string
							for _, id := range ids {
								names = append(names, fmt.Sprint(id))
							}
							locks, err := c.AcquireAll(h.ctx, names)
							if err != nil {
								h.Errorf("%q: %v", names, err)
								return
							}
							for _, id := range ids {
								if n := inside[id].Add(1); n != 1 {
									h.Errorf("%d inside %d", n, id)
								}
							}
							time.Sleep(time.Millisecond)
							for _, id := range ids {
								inside[id].Add(-1)
							}
							if err := locks.Release(h.ctx); err != nil {
								h.Error(err)
							}
						}
					})
				}
			}
			wg.Wait()
			h.free("0", "1", "2", "3", "4")
		},
	},
	{
		name: "losing one of a set",
		rule: "losing one lock of a set ends all, and the others are given back",
		run: func(h *clients) {
			set, err := h.client(midTTL).AcquireAll(h.ctx, []string{"a", "b", "c"})
			if err != nil {
				h.Fatal(err)
			}
			locks := set.Locks()
			broken := make(chan error, 1)
			claim := h.show("b").Holders[0]
			go func() { broken <- h.look().Break(h.ctx, claim.Name, claim.Token, "test") }()
			select {
			case <-set.Context().Done():
			case <-time.After(midTTL/3 + h.soon):
				h.Fatal("the context of the set goes on")
			}
			h.eventually(h.soon, "all are lost", func() bool { return locks[0].Err() != nil && locks[1].Err() != nil && locks[2].Err() != nil })
			for _, l := range locks {
				h.is(l.Name(), l.Err(), holdfast.ErrLost)
			}
			h.is("Err of the set", set.Err(), holdfast.ErrLost)
			h.is("Release", set.Release(h.ctx), holdfast.ErrLost)
			if err := <-broken; err != nil {
				h.Error(err)
			}
			h.free("a", "b", "c")
		},
	},
}
