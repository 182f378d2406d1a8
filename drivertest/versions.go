package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// versionCases are about how versions grow.
var versionCases = []testCase{
	{
		name: "versions grow",
		rule: "Version grows strictly with every write of the key, also over writes that empty it",
		run: func(h *harness) {
			k, old, last := name("a"), driver.IfEmpty, int64(0)
			n := 1000 // fast enough that a clock stands still between some of them
			if testing.Short() {
				n = 200
			}
			for i := range n {
				w := driver.Write{Key: k, Old: old, Value: []byte("1"), Lazy: i%50 != 0}
				if i%3 == 2 {
					w.Value = nil
				}
				won := h.win(w)
				if won.Version <= last {
					h.Fatalf("write %d won version %d after version %d", i, won.Version, last)
				}
				last, old = won.Version, won.Version
				if i%3 == 2 && i%2 == 0 {
					old = driver.IfEmpty
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
			var keys []driver.Key
			var want []driver.Record
			for i := range 20 {
				k := name("a%d", i)
				empty := h.win(driver.Write{Key: k, Old: h.put(k, "1").Version})
				keys, want = append(keys, k), append(want, empty)
			}
			for i, r := range h.loadAll(keys...) {
				h.same("an emptied key", r, want[i])
			}
		},
	},
}

// raceCases are about many rivals for the same key.
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
				won := race(h, k, driver.IfEmpty, before.Version)
				h.win(driver.Write{Key: k, Old: won.Version})
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
				outcomes := make([]driver.Outcome, 8)
				h.each(len(outcomes), func(i int) error {
					w := driver.Write{Key: k, Old: old.Version}
					if i%2 == 0 {
						w.Value = []byte("2")
					}
					got, err := contend(h.ctx, stores[i%len(stores)], w)
					if err == nil {
						outcomes[i] = got[0]
					}
					return err
				})
				var winners []driver.Record
				for _, o := range outcomes {
					if o.Won {
						winners = append(winners, o.Record)
					}
				}
				if now, unsure := h.settle(outcomes, driver.Write{Key: k, Old: old.Version}); unsure {
					winners = append(winners, now)
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

// race makes 32 rivals write the same key at once, and returns what won.
func race(h *harness, k driver.Key, old, above int64) driver.Record {
	h.Helper()
	stores := h.both()
	outcomes := make([]driver.Outcome, 32)
	h.each(len(outcomes), func(i int) error {
		got, err := contend(h.ctx, stores[i%len(stores)], driver.Write{Key: k, Old: old, Value: fmt.Appendf(nil, "rival %d", i)})
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
	won, unsure := h.settle(outcomes, driver.Write{Key: k, Old: old})
	switch {
	case unsure:
	case winner < 0:
		h.Fatalf("none of %d rivals won %s", len(outcomes), describe(k))
	default:
		h.same("what the winner was told", won, driver.Record{Version: won.Version, Value: fmt.Appendf(nil, "rival %d", winner)})
	}
	if won.Version <= above {
		h.Fatalf("the winner has version %d after version %d", won.Version, above)
	}
	for i, o := range outcomes {
		if o.Err == nil {
			h.same(fmt.Sprintf("what rival %d lost to", i), o.Record, won)
		}
	}
	h.same("the key after a race", h.load(k), won)
	return won
}

// counter makes goroutines add one to the same value, by compare-and-swap. Each has
// a part of its own, so that it can find out about a write whose outcome is unknown.
func counter(h *harness) {
	const adders, rounds = 8, 10
	type parts [adders]int
	stores := h.both()
	k := name("counter")
	h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: fmt.Append(nil, parts{})})
	versions := make([][]int64, adders)
	h.each(adders, func(i int) error {
		s := stores[i%len(stores)]
		records, err := load(h.ctx, s, k)
		if err != nil {
			return err
		}
		now := records[0]
		for added := 0; ; {
			all, err := readParts(now.Value, adders)
			if err != nil {
				return err
			}
			if all[i] < added || all[i] > rounds {
				return fmt.Errorf("adder %d has added %d times, and the counter holds %d", i, added, all[i])
			}
			if added = all[i]; added == rounds {
				return nil
			}
			all[i]++
			got, err := contend(h.ctx, s, driver.Write{Key: k, Old: now.Version, Value: fmt.Append(nil, all), Lazy: true})
			if err != nil {
				return err
			}
			if h.ctx.Err() != nil {
				return errors.New("the adders do not come to an end")
			}
			if got[0].Err != nil {
				if records, err = load(h.ctx, s, k); err != nil {
					return err
				}
				now = records[0]
				continue
			}
			if !got[0].Won && got[0].Record.Version <= now.Version {
				return fmt.Errorf("a write after version %d lost to version %d", now.Version, got[0].Record.Version)
			}
			now = got[0].Record
			if got[0].Won {
				versions[i] = append(versions[i], now.Version)
			}
		}
	})
	all, err := readParts(h.load(k).Value, adders)
	if err != nil {
		h.Fatal(err)
	}
	for i, n := range all {
		if n != rounds {
			h.Errorf("the counter has %d of adder %d after %d additions", n, i, rounds)
		}
	}
	known := slices.Sorted(slices.Values(slices.Concat(versions...)))
	if len(slices.Compact(slices.Clone(known))) != len(known) {
		h.Errorf("a version was given twice")
	}
}

// readParts reads n numbers as fmt writes them.
func readParts(value []byte, n int) ([]int, error) {
	parts := make([]int, n)
	fields := strings.Fields(strings.Trim(string(value), "[]"))
	if len(fields) != n {
		return nil, fmt.Errorf("the counter is %q", value)
	}
	for i, f := range fields {
		var err error
		if parts[i], err = strconv.Atoi(f); err != nil {
			return nil, fmt.Errorf("the counter is %q: %w", value, err)
		}
	}
	return parts, nil
}
