package holdfast_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A curious is a log handler that asks the client about every line.
type curious struct {
	slog.Handler
	ask func(line string)
}

func (h curious) Enabled(context.Context, slog.Level) bool { return true }

func (h curious) Handle(_ context.Context, r slog.Record) error {
	h.ask(r.Message)
	return nil
}

// A log handler may use the client and its locks: it is called when nothing of theirs is
// locked.
func TestLoggerUsesClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lock *holdfast.Lock
		lines := make(map[string]bool)
		logger := slog.New(curious{ask: func(line string) {
			lines[line] = true
			if lock != nil {
				_ = lock.TTL()
				_ = lock.Err()
			}
		}})
		store := memory.New()
		c, err := holdfast.New(store, &holdfast.Options{Logger: logger, TTL: time.Second, RuntimeDir: "/dev/null"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if lock, err = c.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		store.Restore(driver.Key{Space: driver.Names, Name: "a"}, driver.Record{})
		other, err := c.Acquire(t.Context(), "a", holdfast.Shared()) // looks, and finds the claim gone
		if err != nil {
			t.Fatal(err)
		}
		other.Release(t.Context())
		if lock.Err() == nil || !lines["lock lost"] {
			t.Fatalf("the claim is gone, the lock says %v, and there are these lines: %v", lock.Err(), lines)
		}
	})
}
