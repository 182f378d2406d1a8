package drivertest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// handleCases are for stores that can be opened twice. The races of other cases are
// between the handles, too.
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
	{
		name: "closed",
		rule: "once its user has closed a store every call ends at once with ErrClosed, in one line, a Watch that is under way too; the other handle goes on",
		need: reopens,
		run: func(h *harness) {
			closed := h.both()[1]
			closer, ok := driver.Find[io.Closer](closed)
			if !ok {
				h.Skip("the store has nothing to close")
			}
			held := h.put(name("a"), "held")
			watching := make(chan error, 1)
			watcher, watches := driver.Find[driver.Watcher](closed)
			if watches {
				begun := make(chan struct{}, 1)
				go func() {
					watching <- watcher.Watch(h.ctx, nil, func(driver.Notification) {
						select {
						case begun <- struct{}{}:
						default:
						}
					})
				}()
				select {
				case <-begun:
				case err := <-watching:
					h.Logf("it cannot be watched here: %v", err)
					watches = false
				}
			}
			if err := closer.Close(); err != nil {
				h.Fatalf("close: %v", err)
			}
			if watches {
				select {
				case err := <-watching:
					if !errors.Is(err, driver.ErrClosed) {
						h.Errorf("a Watch ends with %q when its store is closed", err)
					}
				case <-time.After(busy.Times(5 * time.Second)):
					h.Errorf("a Watch does not end when its store is closed")
				}
			}
			one := driver.Write{Key: name("a"), Old: held.Version, Value: []byte("late")}
			many := []driver.Write{one}
			for i := range 300 {
				many = append(many, driver.Write{Key: name("%d", i), Old: driver.IfEmpty, Value: []byte("late")})
			}
			calls := map[string]func(context.Context) error{
				"Load": func(ctx context.Context) error {
					_, err := closed.Load(ctx, []driver.Key{one.Key}, driver.Fresh)
					return err
				},
				"a stale Load": func(ctx context.Context) error {
					_, err := closed.Load(ctx, []driver.Key{one.Key}, driver.Stale)
					return err
				},
				"CompareAndSwap":            func(ctx context.Context) error { _, err := closed.CompareAndSwap(ctx, many[:1]); return err },
				"CompareAndSwap of a batch": func(ctx context.Context) error { _, err := closed.CompareAndSwap(ctx, many); return err },
				"Keys":                      func(ctx context.Context) error { _, err := closed.Keys(ctx, driver.Names, "", 10); return err },
				"Sweep":                     func(ctx context.Context) error { _, err := closed.Sweep(ctx, 0); return err },
			}
			if watches {
				calls["Watch"] = func(ctx context.Context) error { return watcher.Watch(ctx, nil, func(driver.Notification) {}) }
			}
			for what, call := range calls {
				ctx, cancel := context.WithTimeout(h.ctx, busy.Times(5*time.Second))
				err := call(ctx)
				cancel()
				if !errors.Is(err, driver.ErrClosed) || strings.Contains(err.Error(), "\n") {
					h.Errorf("%s of a closed store ends with %q", what, err)
				}
			}
			h.same("what the other handle reads", h.load(one.Key), held)
		},
	},
	{
		name: "restart",
		rule: "what was reported as won is there after a restart, records keep their versions, and these go on growing",
		need: func(s driver.Store) bool { _, ok := s.(Restarter); return ok },
		run: func(h *harness) {
			held, emptied, swept := h.put(name("held"), "held"), h.put(name("emptied"), "emptied"), h.put(name("swept"), "swept")
			emptied = h.win(driver.Write{Key: name("emptied"), Old: emptied.Version})
			swept = h.win(driver.Write{Key: name("swept"), Old: swept.Version})
			batch := h.swapAll(
				driver.Write{Key: driver.Sessions.Key("one"), Old: driver.IfEmpty, Value: []byte("beat")},
				driver.Write{Key: name("batch"), Old: driver.IfEmpty, Value: []byte("batch")},
			)
			if _, err := h.store.Sweep(h.ctx, 0); err != nil {
				h.Fatal(err)
			}
			for range 2 {
				h.store = h.store.(Restarter).Restart(h.T)
				h.same("what was held", h.load(name("held")), held)
				h.same("a session", h.load(driver.Sessions.Key("one")), batch[0].Record)
				h.same("the write beside it", h.load(name("batch")), batch[1].Record)
				for _, was := range []struct {
					key  string
					last *driver.Record
				}{{"emptied", &emptied}, {"swept", &swept}} {
					k := name("%s", was.key)
					out := h.swap(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("again")})
					if !out.Won || out.Record.Version <= was.last.Version {
						h.Fatalf("%s is written again with version %d, won is %v; it had %d", was.key, out.Record.Version, out.Won, was.last.Version)
					}
					*was.last = h.win(driver.Write{Key: k, Old: out.Record.Version})
				}
				late := h.swap(driver.Write{Key: name("held"), Old: held.Version - 1, Value: []byte("late")})
				if late.Won {
					h.Fatal("an old version is followed after a restart")
				}
				held = h.win(driver.Write{Key: name("held"), Old: held.Version, Value: []byte("held")})
			}
		},
	},
}

func reopens(s driver.Store) bool { _, ok := s.(Reopener); return ok }
