package drivertest

import (
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// handleCases are for stores that can be opened twice. Beside them, every race
// is one between the handles.
var handleCases = []testCase{
	{
		name: "two handles",
		rule: "what one handle reports as won, every other sees",
		need: reopens,
		run: func(h *harness) {
			stores, k, old := h.both(), name("a"), driver.IfEmpty
			for i := range 40 {
				writer, reader := stores[i%2], stores[1-i%2]
				won, err := swap(h.ctx, writer, driver.Write{Key: k, Old: old, Value: []byte{byte(i)}, Lazy: i%4 < 2})
				if err != nil {
					h.Fatal(err)
				}
				if !won[0].Won {
					h.Fatalf("write %d lost to %s, and nobody else writes", i, show(won[0].Record))
				}
				seen, err := load(h.ctx, reader, k)
				if err != nil {
					h.Fatal(err)
				}
				h.same("what the other handle reads", seen[0], won[0].Record)
				names, err := reader.Keys(h.ctx, driver.Names, "", 10)
				if err != nil || !slices.Equal(names, []string{"a"}) {
					h.Fatalf("the other handle lists %q, error %v", names, err)
				}
				if clock := won[0].Record.Age >= 0; clock != (seen[0].Age >= 0) || seen[0].Age > 10*time.Second {
					h.Fatalf("a record is %v old to its writer and %v to the other handle", won[0].Record.Age, seen[0].Age)
				}
				old = won[0].Record.Version
			}
		},
	},
	{
		name: "two handles watch",
		rule: "a write by one handle wakes the watchers of every other",
		need: func(s driver.Store) bool { return reopens(s) && watches(s) },
		run: func(h *harness) {
			stores := h.both()
			w := h.watch(stores[1])
			first := h.win(driver.Write{Key: name("a"), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone})
			w.expect(name("a"))
			h.win(driver.Write{Key: name("a"), Old: first.Version, Notify: driver.Everyone})
			w.expect(name("a"))
		},
	},
	{
		name: "two handles sweep",
		rule: "the floor that one handle raises holds for every other",
		need: func(s driver.Store) bool { return reopens(s) },
		run: func(h *harness) {
			stores, k := h.both(), name("a")
			var last int64
			for i := range 10 {
				s := stores[i%2]
				won, err := swap(h.ctx, s, driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1")})
				if err != nil {
					h.Fatal(err)
				}
				if !won[0].Won || won[0].Record.Version <= last {
					h.Fatalf("won is %v with version %d, after version %d was swept by the other handle", won[0].Won, won[0].Record.Version, last)
				}
				last = h.win(driver.Write{Key: k, Old: won[0].Record.Version}).Version
				if _, err := s.Sweep(h.ctx, 0); err != nil {
					h.Fatalf("sweep: %v", err)
				}
			}
		},
	},
}

func reopens(s driver.Store) bool { _, ok := s.(Reopener); return ok }
