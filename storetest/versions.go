package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-lock/holdfast"
)

// versionCases are about how versions grow.
var versionCases = []testCase{
	{
		name: "versions grow",
		rule: "Version grows strictly with every write of the key, also over writes that empty it",
		run: func(h *harness) {
			k, old, last := name("a"), holdfast.IfEmpty, int64(0)
			n := 1000 // fast enough that a clock stands still between some of them
			if testing.Short() {
				n = 200
			}
			for i := range n {
				w := holdfast.Write{Key: k, Old: old, Value: []byte("1"), Lazy: i%50 != 0}
				if i%3 == 2 {
					w.Value = nil
				}
				won := h.win(w)
				if won.Version <= last {
					h.Fatalf("write %d won version %d after version %d", i, won.Version, last)
				}
				last, old = won.Version, won.Version
				if i%3 == 2 && i%2 == 0 {
					old = holdfast.IfEmpty
				}
			}
			if got := h.load(k).Version; got != last {
				h.Errorf("the key has version %d, want %d", got, last)
			}
		},
	},
	{
		name: "versions are kept",
		rule: "a key that holds nothing keeps its Version",
		run: func(h *harness) {
			var keys []holdfast.Key
			var want []holdfast.Record
			for i := range 20 {
				k := name("a%d", i)
				empty := h.win(holdfast.Write{Key: k, Old: h.put(k, "1").Version})
				keys, want = append(keys, k), append(want, empty)
			}
			for i, r := range h.loadAll(keys...) {
				h.same("an emptied key", r, want[i])
			}
		},
	},
}

// raceCases are about many who want the same.
var raceCases = []testCase{
	{
		name: "race to follow",
		rule: "of all who want to follow version N of a key, exactly one may; the others are told what they lost to",
		run: func(h *harness) {
			won := h.put(name("a"), "1")
			for range 10 {
				won = race(h, name("a"), won.Version, won.Version)
			}
		},
	},
	{
		name: "race to take",
		rule: "of all who want to take a key that holds nothing, exactly one may; the others are told what they lost to",
		run: func(h *harness) {
			for i := range 10 {
				k := name("absent %d", i%5)
				before := h.load(k)
				won := race(h, k, holdfast.IfEmpty, before.Version)
				h.win(holdfast.Write{Key: k, Old: won.Version})
			}
		},
	},
	{
		name: "race to empty",
		rule: "a write that empties a key and one that keeps it are rivals like others",
		run: func(h *harness) {
			stores, k := h.both(), name("a")
			for range 10 {
				old := h.put(k, "1")
				outcomes := make([]holdfast.Outcome, 8)
				h.each(len(outcomes), func(i int) error {
					w := holdfast.Write{Key: k, Old: old.Version}
					if i%2 == 0 {
						w.Value = []byte("2")
					}
					got, err := swap(h.ctx, stores[i%len(stores)], w)
					if err == nil {
						outcomes[i] = got[0]
					}
					return err
				})
				var winners []holdfast.Record
				for _, o := range outcomes {
					if o.Won {
						winners = append(winners, o.Record)
					}
				}
				if len(winners) != 1 {
					h.Fatalf("%d writes followed version %d, want 1", len(winners), old.Version)
				}
				h.same("the key", h.load(k), winners[0])
			}
		},
	},
	{
		name: "race and go on",
		rule: "no write is lost: each version is followed by exactly one writer, who knows what it followed",
		run:  counter,
	},
}

// race has 32 rivals write the same key at once, and returns what won.
func race(h *harness, k holdfast.Key, old, above int64) holdfast.Record {
	h.Helper()
	stores := h.both()
	outcomes := make([]holdfast.Outcome, 32)
	h.each(len(outcomes), func(i int) error {
		got, err := swap(h.ctx, stores[i%len(stores)], holdfast.Write{Key: k, Old: old, Value: fmt.Appendf(nil, "rival %d", i)})
		if err == nil {
			outcomes[i] = got[0]
		}
		return err
	})

	winner := -1
	for i, o := range outcomes {
		if !o.Won {
			continue
		}
		if winner >= 0 {
			h.Fatalf("rivals %d and %d both followed version %d of %s", winner, i, old, describe(k))
		}
		winner = i
	}
	if winner < 0 {
		h.Fatalf("none of %d rivals won %s", len(outcomes), describe(k))
	}
	won := outcomes[winner].Record
	h.same("what the winner was told", won, holdfast.Record{Version: won.Version, Value: fmt.Appendf(nil, "rival %d", winner)})
	if won.Version <= above {
		h.Fatalf("the winner has version %d after version %d", won.Version, above)
	}
	for i, o := range outcomes {
		h.same(fmt.Sprintf("what rival %d lost to", i), o.Record, won)
	}
	h.same("the key after a race", h.load(k), won)
	return won
}

// counter has goroutines add one to the same value, by compare-and-swap.
func counter(h *harness) {
	const adders, rounds = 8, 10
	stores := h.both()
	k := name("counter")
	h.win(holdfast.Write{Key: k, Old: holdfast.IfEmpty, Value: []byte("0")})
	versions := make([][]int64, adders)
	h.each(adders, func(i int) error {
		s := stores[i%len(stores)]
		records, err := load(h.ctx, s, k)
		if err != nil {
			return err
		}
		now := records[0]
		for len(versions[i]) < rounds {
			var n int
			if _, err := fmt.Sscan(string(now.Value), &n); err != nil {
				return fmt.Errorf("the counter is %q: %w", now.Value, err)
			}
			got, err := swap(h.ctx, s, holdfast.Write{Key: k, Old: now.Version, Value: fmt.Append(nil, n+1), Lazy: true})
			if err != nil {
				return err
			}
			if !got[0].Won && got[0].Record.Version <= now.Version {
				return fmt.Errorf("a write after version %d lost to version %d", now.Version, got[0].Record.Version)
			}
			now = got[0].Record
			if got[0].Won {
				versions[i] = append(versions[i], now.Version)
			}
			if h.ctx.Err() != nil {
				return errors.New("the adders do not come to an end")
			}
		}
		return nil
	})
	if got, want := string(h.load(k).Value), fmt.Sprint(adders*rounds); got != want {
		h.Errorf("the counter is %s after %s additions", got, want)
	}
	all := slices.Sorted(slices.Values(slices.Concat(versions...)))
	if len(slices.Compact(all)) != adders*rounds {
		h.Errorf("a version was given twice")
	}
}
