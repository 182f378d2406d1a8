package batch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

func now() lease.Instant { return lease.Instant(clock.Steady()) }

// A call's context ends after its timeout, with its parent, a moment after its caller and
// when the call has returned, whether somebody waits for that or asks.
func TestCallContext(t *testing.T) {
	const timeout = time.Second
	for name, c := range map[string]struct {
		end   func(stop, leave context.CancelFunc, x *callContext)
		after time.Duration
		err   error
	}{
		"timeout": {func(_, _ context.CancelFunc, _ *callContext) {}, timeout, context.DeadlineExceeded},
		"parent":  {func(stop, _ context.CancelFunc, _ *callContext) { stop() }, 0, context.Canceled},
		"caller":  {func(_, leave context.CancelFunc, _ *callContext) { leave() }, quickCall, context.Canceled},
		"return":  {func(_, _ context.CancelFunc, x *callContext) { x.end() }, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, stop := context.WithCancel(t.Context())
				defer stop()
				caller, leave := context.WithCancel(t.Context())
				defer leave()
				x := &callContext{of: &Batcher{ctx: parent, now: now}, caller: caller, sent: now(), timeout: timeout}
				defer x.end()
				if d, ok := x.Deadline(); !ok || time.Until(d) != timeout {
					t.Fatalf("deadline in %v, %v", time.Until(d), ok)
				}
				derived, cancel := context.WithCancel(x)
				defer cancel()
				if err := errors.Join(x.Err(), derived.Err()); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				c.end(stop, leave, x)
				<-derived.Done()
				if took := time.Since(began); took != c.after || !errors.Is(x.Err(), c.err) || !errors.Is(derived.Err(), c.err) {
					t.Fatalf("ended after %v with %v and %v, want %v and %v", took, x.Err(), derived.Err(), c.after, c.err)
				}
			})
		})
	}
}

// Nothing of a call's context is made when nobody waits for its end, and it says all the
// same that the time is over.
func TestCallContextUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &callContext{of: &Batcher{ctx: t.Context(), now: now}, sent: now(), timeout: time.Second}
		time.Sleep(time.Second - 1)
		if err := x.Err(); err != nil {
			t.Fatalf("before its end: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err := x.Err(); !errors.Is(err, context.DeadlineExceeded) || x.made.Load() != nil {
			t.Fatalf("at its end: %v", err)
		}
		x.end()
		if err := x.Err(); err == nil {
			t.Fatal("after the call has returned it has no end")
		}
	})
}
