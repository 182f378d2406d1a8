package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// unsure keeps back one write, once, and says of it alone or of the whole call that
// nobody knows what became of it.
type unsure struct {
	driver.Store
	space  driver.Space
	alone  bool
	blind  bool   // also one for an empty name
	then   func() // before it answers
	armed  atomic.Bool
	behind atomic.Pointer[driver.Write]
}

func (s *unsure) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	time.Sleep(10 * time.Millisecond) // so slow a store is sent batches
	at := slices.IndexFunc(writes, func(w driver.Write) bool {
		return w.Key.Space == s.space && (s.space == driver.Sessions || w.Key == lockA) && (s.blind || w.Old > 0)
	})
	if at < 0 || !s.armed.CompareAndSwap(true, false) {
		return s.Store.CompareAndSwap(ctx, writes)
	}
	w := writes[at]
	s.behind.Store(&w)
	outs := make([]driver.Outcome, len(writes))
	for i := range writes {
		if i == at {
			outs[i].Err = errFails
			continue
		}
		one, err := s.Store.CompareAndSwap(ctx, writes[i:i+1])
		if err != nil {
			return nil, err
		}
		outs[i] = one[0]
	}
	if s.then != nil {
		s.then()
	}
	if !s.alone {
		return nil, errFails
	}
	return outs, nil
}

// A write of which nobody knows what became, for a lock that is no longer wanted, keeps
// nobody from it. One that follows a version is closed by another write: a read that does
// not show it says nothing of what comes late. One that takes the name when it is empty,
// as a session's first claim does, can come at any time, and is undone then.
func TestUnknownIsClosed(t *testing.T) {
	for _, test := range []struct {
		name         string
		alone, first bool
	}{
		{"a call fails", false, false},
		{"a write of a batch fails", true, false},
		{"a session's first call fails", false, true},
		{"the claim of a session's first call fails", true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New()
				reader := newClient(t, inner, nil)
				defer reader.Close()
				shared, err := reader.Acquire(t.Context(), "a", holdfast.Shared())
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				s := &unsure{Store: inner, space: driver.Names, alone: test.alone, blind: test.first, then: cancel}
				c := newClient(t, s, nil)
				defer c.Close()
				other := func() { // has its session live on
					if _, err := c.Acquire(t.Context(), "z"); err != nil {
						t.Fatal(err)
					}
				}
				if !test.first {
					other()
				}
				s.armed.Store(true)
				if _, err := c.Acquire(ctx, "a", holdfast.Shared()); !errors.Is(err, context.Canceled) {
					t.Fatalf("got %v, want what the context says", err)
				}
				if test.first {
					other()
				}
				time.Sleep(2 * time.Second)
				if test.first {
					if err := shared.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				outs, err := inner.CompareAndSwap(t.Context(), []driver.Write{*s.behind.Load()})
				if err != nil || outs[0].Won != test.first {
					t.Errorf("the write of which nobody knew was done two seconds later: %v, %v", outs, err)
				}
				if !test.first {
					if err := shared.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				soon, cancel := context.WithTimeout(t.Context(), 3*holdfast.DefaultTTL)
				defer cancel()
				if _, err := reader.Acquire(soon, "a"); err != nil {
					t.Errorf("nobody wants the lock, and another does not get it: %v", err)
				}
			})
		})
	}
}

// A session whose first heartbeat has no answer says so, and goes on.
func TestUnknownFirstBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unsure{Store: memory.New(), space: driver.Sessions, alone: true, blind: true}
		s.armed.Store(true)
		beats := make(chan error, 100)
		c := newClient(t, s, &holdfast.Options{Trace: &holdfast.Trace{
			Heartbeat: func(_ context.Context, e holdfast.Event) { beats <- e.Err },
		}})
		defer c.Close()
		if _, err := c.Acquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := <-beats; !errors.Is(err, errFails) {
			t.Errorf("of the first heartbeat the trace says %v, want %v", err, errFails)
		}
		info, err := c.Show(t.Context(), "a")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("got %+v, %v", info, err)
		}
		if got, want := info.Holders[0].Owner.Session, s.behind.Load().Key.Name; got != want {
			t.Errorf("the lock is held by session %s, want the first, %s", got, want)
		}
	})
}
