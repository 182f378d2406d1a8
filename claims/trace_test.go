package claims

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A transaction causes events for each of its locks, in order. Lost has the reason.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		var lost holdfast.Event
		note := func(what string) func(context.Context, holdfast.Event) {
			return func(_ context.Context, e holdfast.Event) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, what+" "+e.Name)
				if what == "lost" {
					lost = e
				}
			}
		}
		opts := small
		beats := 0
		opts.Trace = &holdfast.Trace{Queued: note("queued"), Acquired: note("acquired"), Refused: note("refused"), GaveUp: note("gave up"),
			Released: note("released"), Lost: note("lost"), Heartbeat: func(_ context.Context, e holdfast.Event) {
				mu.Lock()
				defer mu.Unlock()
				if beats++; e.Err == nil && time.Until(e.Until) <= 0 {
					t.Errorf("renewed, and trusted for %v", time.Until(e.Until))
				}
			}}
		said := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !reflect.DeepEqual(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
			told = nil
		}
		x := newTable()
		l, other := locker(t, x, "a", nil, opts), locker(t, x, "b", nil, small)
		key := func(col string) string { return (&claim{key: testKey, column: []byte(col)}).String() }

		tx := l.Begin(nil)
		for _, col := range []string{"x", "y"} {
			if err := tx.Write(t.Context(), testKey, []byte(col), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		tx.Check(t.Context())
		tx.Delete(t.Context())
		said("acquired "+key("x"), "acquired "+key("y"), "released "+key("x"), "released "+key("y"))

		held, err := other.Acquire(t.Context(), testKey, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		tx = l.Begin(nil)
		tx.Write(t.Context(), testKey, []byte("x"), nil)
		if err := tx.Check(t.Context()); !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		said("refused " + key("x"))
		ctx, cancel := context.WithTimeout(t.Context(), opts.Expire/4)
		defer cancel()
		if _, err := l.Acquire(ctx, testKey, []byte("x")); !errors.Is(err, holdfast.ErrHeld) {
			t.Fatal(err)
		}
		said("queued "+key("x"), "gave up "+key("x"))
		held.Release(t.Context())

		mine, err := l.Acquire(t.Context(), testKey, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		said("acquired " + key("x"))
		time.Sleep(2 * opts.Expire)
		mu.Lock()
		if beats < 2 {
			t.Errorf("%d renewals were told", beats)
		}
		mu.Unlock()
		x.cut("a")
		<-mine.Done()
		said("lost " + key("x"))
		if lost.Reason == "" || lost.Held < 2*opts.Expire || !errors.Is(lost.Err, holdfast.ErrLost) {
			t.Errorf("lost: %+v", lost)
		}
	})
}
