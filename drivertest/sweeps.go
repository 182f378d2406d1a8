package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// sweepCases are for stores that keep rows of keys that hold nothing.
var sweepCases = []testCase{
	{
		name: "sweep",
		rule: "Sweep removes rows of keys that have held nothing for at least idle, and says how many; a key that was swept has Version 0",
		run: func(h *harness) {
			held := h.put(name("held"), "1")
			var keys []driver.Key
			for i := range 10 {
				keys = append(keys, driver.Key{Space: spaces[i%len(spaces)], Name: fmt.Sprintf("%d\x00\xff", i)})
				h.win(driver.Write{Key: keys[i], Old: h.put(keys[i], "1").Version})
			}
			there := 0 // rows of sessions may have gone already
			for i, r := range h.loadAll(keys...) {
				if r.Version != 0 || keys[i].Space != driver.Sessions {
					there++
				}
			}
			if n := h.sweep(0); n != there {
				h.Errorf("%d rows were removed, want %d", n, there)
			}
			for i, r := range h.loadAll(keys...) {
				h.same("swept "+describe(keys[i]), r, driver.Record{})
			}
			h.same("a key that holds something", h.load(name("held")), held)
			if n := h.sweep(0); n != 0 {
				h.Errorf("%d more rows were removed, want none", n)
			}
		},
	},
	{
		name: "sweep too young",
		rule: "Sweep leaves keys that hold something, and those that have held nothing for less than idle",
		run: func(h *harness) {
			var want []driver.Record
			var keys []driver.Key
			for i := range 4 {
				k := name("%d", i)
				r := h.put(k, "1")
				if i%2 == 0 {
					r = h.win(driver.Write{Key: k, Old: r.Version})
				}
				keys, want = append(keys, k), append(want, r)
			}
			if n := h.sweep(time.Hour); n != 0 {
				h.Errorf("%d rows were removed that are not an hour old", n)
			}
			for i, r := range h.loadAll(keys...) {
				h.same(describe(keys[i]), r, want[i])
			}
		},
	},
	{
		name: "sweep by age",
		rule: "idle is counted from the write that emptied the key, by the store's clock",
		run: func(h *harness) {
			const idle = 300 * time.Millisecond
			k, began := name("a"), time.Now()
			h.win(driver.Write{Key: k, Old: h.put(k, "1").Version})
			for h.sweep(idle) == 0 {
				if time.Since(began) > 20*time.Second {
					h.Fatalf("a key that holds nothing for %v was not removed by Sweep(%v)", time.Since(began), idle)
				}
				time.Sleep(5 * time.Millisecond)
			}
			if took := time.Since(began); took < idle*9/10 {
				h.Errorf("a key was removed %v after it was last written, and idle was %v", took, idle)
			}
		},
	},
	{
		name: "sweep and write again",
		rule: "a key that is written again after a sweep starts above every version it had",
		run: func(h *harness) {
			k := name("a")
			var last int64
			for range 20 {
				first := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1")})
				if first.Version <= last {
					h.Fatalf("version %d follows version %d, which was swept", first.Version, last)
				}
				// Many fast writes may bring a version ahead of the clock.
				for range 5 {
					first = h.win(driver.Write{Key: k, Old: first.Version, Value: []byte("1"), Lazy: true})
				}
				empty := h.win(driver.Write{Key: k, Old: first.Version})
				if n := h.sweep(0); n != 1 {
					h.Fatalf("%d rows were removed, want 1", n)
				}
				h.same("what a late write to a swept key lost to", h.lose(driver.Write{Key: k, Old: empty.Version, Value: []byte("late")}), driver.Record{})
				h.lose(driver.Write{Key: k, Old: first.Version, Value: []byte("late")})
				last = empty.Version
			}
		},
	},
	{
		name: "sweep against writers",
		rule: "versions grow strictly per key, for ever, also when a key is swept while others write it",
		run:  sweepRace,
	},
}

// sweep calls Sweep until it removes nothing more; a store may do it in parts.
func (h *harness) sweep(idle time.Duration) (removed int) {
	h.Helper()
	for {
		n, err := h.store.Sweep(h.ctx, idle)
		if err != nil {
			h.Fatalf("sweep: %v", err)
		}
		if n == 0 {
			return removed
		}
		removed += n
	}
}

// sweepRace makes holders take and free a few keys while these are swept. While a
// key is held, nobody else writes it; so the versions of its holds may not
// overlap.
func sweepRace(h *harness) {
	const holders, rounds, nkeys = 6, 40, 3
	type hold struct{ taken, freed int64 }
	var (
		stores = h.both()
		mu     sync.Mutex // guards holds
		holds  [nkeys][]hold
		done   atomic.Int32
	)
	h.each(holders+1, func(i int) error {
		s := stores[i%len(stores)]
		if i == holders {
			for done.Load() < holders && h.ctx.Err() == nil {
				if _, err := s.Sweep(h.ctx, 0); err != nil {
					return fmt.Errorf("sweep: %w", err)
				}
			}
			return nil
		}
		defer done.Add(1)
		for n := range rounds {
			at := (i + n) % nkeys
			k := name("key %d", at)
			taken, err := contend(h.ctx, s, driver.Write{Key: k, Old: driver.IfEmpty, Value: fmt.Append(nil, i)})
			if err != nil {
				return err
			}
			if !taken[0].Won {
				continue
			}
			free := driver.Write{Key: k, Old: taken[0].Record.Version, Lazy: n%2 == 0}
			freed, err := contend(h.ctx, s, free)
			if err == nil && freed[0].Err != nil { // it may win now, or have won before
				for err == nil && freed[0].Err != nil {
					freed, err = contend(h.ctx, s, free)
				}
				if err == nil {
					continue
				}
			}
			if err != nil {
				return err
			}
			if !freed[0].Won {
				return errors.New("a key that was held has changed")
			}
			mu.Lock()
			holds[at] = append(holds[at], hold{taken[0].Record.Version, freed[0].Record.Version})
			mu.Unlock()
		}
		return nil
	})
	for _, list := range holds {
		slices.SortFunc(list, func(a, b hold) int { return int(min(1, max(-1, a.taken-b.taken))) })
		var last int64
		for _, x := range list {
			if x.taken <= last || x.freed <= x.taken {
				h.Fatalf("a key was taken as version %d and freed as version %d, after version %d", x.taken, x.freed, last)
			}
			last = x.freed
		}
	}
}
