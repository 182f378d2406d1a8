package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// watchCases are for stores that can notify of changes.
var watchCases = []testCase{
	{
		name: "watch",
		rule: "Watch calls changed with the key of each Write that had Notify set and won, and with no record but what that made",
		need: watches,
		run: func(h *harness) {
			w := h.watch(h.store)
			k := name("a")
			first := h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone})
			w.expect(k)
			second := h.win(driver.Write{Key: k, Old: first.Version, Value: []byte("2"), Notify: driver.Everyone, Lazy: true})
			w.expect(k)
			last := h.win(driver.Write{Key: k, Old: second.Version, Notify: driver.Everyone})
			w.expect(k)
			w.tells(k, first, second, last)
		},
	},
	{
		name: "watch a batch",
		rule: "each write of a batch that has Notify set and wins is told of",
		need: watches,
		run: func(h *harness) {
			w := h.watch(h.store)
			h.put(name("held"), "1")
			h.swapAll(
				driver.Write{Key: name("quiet"), Old: driver.IfEmpty, Value: []byte("1")},
				driver.Write{Key: name("b"), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone},
				driver.Write{Key: name("held"), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone},
				driver.Write{Key: driver.Key{Space: driver.Sessions, Name: "a"}, Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone},
			)
			w.expect(name("b"), driver.Key{Space: driver.Sessions, Name: "a"})
		},
	},
	{
		name: "watch strange keys",
		rule: "a notification names exactly the key that was written",
		need: watches,
		run: func(h *harness) {
			w := h.watch(h.store)
			written := map[driver.Key]bool{probe: true, {}: true}
			for i, n := range strangeNames {
				k := driver.Key{Space: spaces[i%len(spaces)], Name: n}
				written[k] = true
				h.win(driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone, Lazy: true})
				w.expect(k)
			}
			for k := range w.seen {
				if !written[k] {
					h.Errorf("a notification names %s, which nobody wrote", describe(k))
				}
			}
		},
	},
	{
		name: "watch ends",
		rule: "Watch ends when ctx is done, and returns why it ended",
		need: watches,
		run: func(h *harness) {
			w := h.watch(h.store)
			w.cancel()
			select {
			case err := <-w.ended:
				if !errors.Is(err, context.Canceled) {
					h.Errorf("Watch returned %v, want %v", err, context.Canceled)
				}
			case <-time.After(notificationWait()):
				h.Fatalf("Watch goes on %v after its context was cancelled", notificationWait())
			}
			// Nobody listens, and nobody minds.
			h.win(driver.Write{Key: name("a"), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone})

			ctx, cancel := context.WithCancel(h.ctx)
			cancel()
			if err := watcher(h.store).Watch(ctx, nil, func(driver.Notification) {}); !errors.Is(err, context.Canceled) {
				h.Errorf("Watch with a context that was done returned %v, want %v", err, context.Canceled)
			}
		},
	},
	{
		name: "watch twice",
		rule: "any number of goroutines may watch; calls of one Watch do not overlap",
		need: watches,
		run: func(h *harness) {
			first, second := h.watch(h.store), h.watch(h.store)
			h.win(driver.Write{Key: name("a"), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone})
			first.expect(name("a"))
			second.expect(name("a"))
			first.cancel()
			h.win(driver.Write{Key: name("b"), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone})
			second.expect(name("b"))
		},
	},
	{
		name: "watch a storm",
		rule: "a watcher that is slow blocks no writer, and hears of what comes after",
		need: watches,
		run: func(h *harness) {
			w := h.watch(h.store)
			w.slow.Store(true)
			calls, each := 100, 100
			if testing.Short() {
				calls = 40
			}
			for i := range calls {
				writes := make([]driver.Write, each)
				for j := range writes {
					writes[j] = driver.Write{Key: name("%d %d", i, j), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone, Lazy: true}
				}
				h.swapAll(writes...)
			}
			w.slow.Store(false)
			h.win(driver.Write{Key: name("last"), Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone})
			w.expect(name("last"))
		},
	},
}

func watches(s driver.Store) bool { _, ok := driver.Find[driver.Watcher](s); return ok }

// watcher is the store as a Watcher; need has checked that it is one.
func watcher(s driver.Store) driver.Watcher { w, _ := driver.Find[driver.Watcher](s); return w }

// notificationWait is how long to wait before a notification counts as missing. The contract allows
// missing ones; but where they are frequent, notifications are of no use.
func notificationWait() time.Duration { return busy.Times(5 * time.Second) }

// probe is written until a watch is up.
var probe = driver.Key{Space: driver.Settings, Name: "drivertest probe"}

// A watch is a running Watch.
type watch struct {
	h             *harness
	cancel        context.CancelFunc
	notifications chan driver.Key
	ended         chan error
	slow          atomic.Bool         // each call takes a millisecond
	seen          map[driver.Key]bool // what was expected, and what came with it

	mu   sync.Mutex
	told []driver.Notification // those that carry the record
}

// watch starts a Watch and returns when it reports writes.
func (h *harness) watch(s driver.Store) *watch {
	h.Helper()
	ctx, cancel := context.WithCancel(h.ctx)
	w := &watch{h: h, cancel: cancel, notifications: make(chan driver.Key, 20_000), ended: make(chan error, 1), seen: map[driver.Key]bool{}}
	var inside atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.ended <- watcher(s).Watch(ctx, nil, func(notification driver.Notification) {
			if inside.Add(1) != 1 {
				h.Errorf("calls of changed overlap")
			}
			if w.slow.Load() {
				time.Sleep(time.Millisecond)
			}
			if notification.Version != 0 || notification.Value != "" {
				w.mu.Lock()
				w.told = append(w.told, notification)
				w.mu.Unlock()
			}
			select {
			case w.notifications <- notification.Key:
			default:
			}
			inside.Add(-1)
		})
	}()
	h.Cleanup(func() { cancel(); <-done })

	for began := time.Now(); ; {
		old := h.load(probe).Version
		if old == 0 {
			old = driver.IfEmpty
		}
		h.win(driver.Write{Key: probe, Old: old, Value: []byte("1"), Notify: driver.Everyone})
		select {
		case <-w.notifications:
			return w
		case err := <-w.ended:
			h.Fatalf("Watch ended: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Since(began) > notificationWait()*2 {
			h.Fatalf("Watch tells of no write in %v", time.Since(began))
		}
	}
}

// expect waits for notifications of all keys, or for one that may mean any key.
func (w *watch) expect(keys ...driver.Key) {
	w.h.Helper()
	missing := map[driver.Key]bool{}
	for _, k := range keys {
		missing[k] = true
	}
	late := time.After(notificationWait())
	for len(missing) > 0 {
		select {
		case k := <-w.notifications:
			w.seen[k] = true
			delete(missing, k)
			if k == (driver.Key{}) {
				return
			}
		case err := <-w.ended:
			w.h.Fatalf("Watch ended: %v", err)
		case <-late:
			var names []string
			for k := range missing {
				names = append(names, describe(k))
			}
			w.h.Fatalf("no notification of %s in %v", fmt.Sprint(names), notificationWait())
		}
	}
}

// tells checks that notifications of a key carry no record but these, and that they carry some if
// the store says so.
func (w *watch) tells(k driver.Key, written ...driver.Record) {
	w.h.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.h.store.Traits().TellsRecords && len(w.told) == 0 {
		w.h.Errorf("no notification carries a record, and the store's Traits say that they do")
	}
	for _, n := range w.told {
		if n.Key == k && !slices.ContainsFunc(written, func(r driver.Record) bool { return r.Version == n.Version && string(r.Value) == n.Value }) {
			w.h.Errorf("a notification of %s tells version %d, %q; written were %+v", describe(k), n.Version, n.Value, written)
		}
	}
}
