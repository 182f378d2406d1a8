package drivertest

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// failureCases are about calls that end early.
var failureCases = []testCase{
	{
		name: "cancelled before",
		rule: "a call with a context that is done fails, and does nothing",
		run: func(h *harness) {
			ctx, cancel := context.WithCancel(h.ctx)
			cancel()
			k := name("a")
			if _, err := h.store.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1")}}); err == nil {
				h.Errorf("CompareAndSwap was answered")
			}
			if _, err := h.store.Load(ctx, []driver.Key{k}, driver.Fresh); err == nil {
				h.Errorf("Load was answered")
			}
			if _, err := h.store.Keys(ctx, driver.Names, "", 10); err == nil {
				h.Errorf("Keys was answered")
			}
			h.same("the key", h.load(k), driver.Record{})
		},
	},
	{
		name: "cancelled between",
		rule: "an error is ambiguous: the write was applied whole, may be later, or never; after an answer never again",
		run:  cancelled,
	},
	{
		name: "a late write",
		rule: "a write that names a version loses once the key has moved on",
		run: func(h *harness) {
			k := name("a")
			first := h.put(k, "1")
			late := driver.Write{Key: k, Old: first.Version, Value: []byte("late")}
			empty := h.win(driver.Write{Key: k, Old: first.Version})
			h.same("what a late write to an emptied key lost to", h.lose(late), empty)
			second := h.put(k, "1")
			h.same("what a late write to a key with the same value lost to", h.lose(late), second)
			h.same("what a late IfEmpty lost to", h.lose(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("late")}), second)
		},
	},
}

// cancelled makes many calls run into their deadlines, at whatever point luck
// finds, and then looks for impossible results.
func cancelled(h *harness) {
	stores := h.both()
	const callers, rounds = 4, 40
	shared := name("shared")
	h.each(callers, func(i int) error {
		s := stores[i%len(stores)]
		own, mine, known := name("caller %d", i), driver.IfEmpty, driver.Record{}
		for n := range rounds {
			ctx, cancel := context.WithTimeout(h.ctx, time.Duration(n*n)*time.Microsecond)
			value := fmt.Sprintf("%d: %d", i, n)
			outcomes, err := swap(ctx, s,
				driver.Write{Key: own, Old: mine, Value: []byte(value)},
				driver.Write{Key: shared, Old: driver.IfEmpty, Value: []byte(value)},
			)
			cancel()
			if err == nil && !outcomes[0].Won {
				// Only a write of ours whose outcome was unknown may be there.
				got := outcomes[0].Record
				if got.Version <= known.Version {
					return fmt.Errorf("a write lost to %s, and version %d was known", show(got), known.Version)
				}
				known, mine = got, got.Version
				continue
			}
			if err == nil {
				known, mine = outcomes[0].Record, outcomes[0].Record.Version
			}
			// A load may be cut short like a write; if it is not, it tells the truth.
			ctx, cancel = context.WithTimeout(h.ctx, time.Duration(n*n)*time.Microsecond)
			records, err := load(ctx, s, own, shared)
			cancel()
			if err != nil {
				continue
			}
			if got := records[0]; got.Version < known.Version || got.Version == known.Version && string(got.Value) != string(known.Value) {
				return fmt.Errorf("%s was known, then %s was read", show(known), show(got))
			}
		}
		// An answer settles it: the key stays what it is after a write that won.
		for tries := 0; ; tries++ {
			got, err := swap(h.ctx, s, driver.Write{Key: own, Old: mine, Value: []byte("last")})
			if err != nil {
				return err
			}
			mine, known = got[0].Record.Version, got[0].Record
			if got[0].Won {
				break
			}
			if tries > rounds {
				return fmt.Errorf("the key still moves after %d tries", tries)
			}
		}
		return nil
	})
	for i := range callers {
		if got := h.load(name("caller %d", i)); string(got.Value) != "last" {
			h.Errorf("a key holds %s after its last write had won", show(got))
		}
	}
}
