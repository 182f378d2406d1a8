package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
	"github.com/holdfast-lock/holdfast/memory"
)

// A session that is lost while its client closes was not ended in order, and Close says so.
func TestLostWhileClosing(t *testing.T) {
	for _, before := range []time.Duration{time.Millisecond, 100 * time.Millisecond} { // the end of the window
		synctest.Test(t, func(t *testing.T) {
			cut := &wire.Cut{Store: memory.New()}
			c := newClient(t, cut, &holdfast.Options{TTL: 2 * time.Second})
			l, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			cut.Off.Store(true)
			time.Sleep(time.Until(l.Deadline()) - before)
			if err := c.Close(); err == nil {
				t.Errorf("Close %v before the end of the window says that all is given back, and the store has not heard of it", before)
			}
		})
	}
}

// A session that is lost while a set is collected costs the set its place in line, as it
// does a single name, and not the set.
func TestSetOutlivesSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		other := newClient(t, store, nil)
		defer other.Close()
		held, err := other.Acquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		cut, lost := &wire.Cut{Store: store}, make(chan error, 1)
		c := newClient(t, cut, &holdfast.Options{Trace: &holdfast.Trace{Lost: func(_ context.Context, e holdfast.Event) {
			if e.Name == "a" {
				lost <- e.Err
			}
		}}})
		defer c.Close()
		type answer struct {
			locks *holdfast.LockSet
			err   error
		}
		got := make(chan answer, 1)
		go func() {
			locks, err := c.AcquireAll(t.Context(), []string{"a", "b"})
			got <- answer{locks, err}
		}()
		time.Sleep(time.Second)
		cut.Off.Store(true)
		if err := <-lost; !errors.Is(err, holdfast.ErrLost) {
			t.Fatalf("%q ended with %v", "a", err)
		}
		cut.Off.Store(false)
		time.Sleep(time.Second)
		held.Release(t.Context())
		a := <-got
		if a.err != nil {
			t.Fatal(a.err)
		}
		for _, l := range a.locks.Locks() {
			if err := l.Err(); err != nil {
				t.Error(err)
			}
		}
		if err := a.locks.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Whoever waits for a set without a limit gives a store that does not answer, or answers
// late, the same time as whoever waits for one lock.
func TestSetWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := &wire.Cut{Store: memory.New()}
		c := newClient(t, cut, nil)
		defer c.Close()
		if _, err := c.Acquire(t.Context(), "warm"); err != nil {
			t.Fatal(err)
		}
		cut.Off.Store(true)
		time.AfterFunc(10*time.Second, func() { cut.Off.Store(false) })
		locks, err := c.AcquireAll(t.Context(), []string{"a", "b", "c"})
		if err != nil {
			t.Fatal(err)
		}
		if err := locks.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A set of which somebody breaks a lock while it is collected does not take it again.
func TestSetIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		other, c := newClient(t, store, nil), newClient(t, store, nil)
		defer other.Close()
		defer c.Close()
		held, err := other.Acquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := c.AcquireAll(t.Context(), []string{"a", "b"})
			got <- err
		}()
		time.Sleep(time.Second)
		info, err := other.Show(t.Context(), "a")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		go other.Break(t.Context(), info.Holders[0].Name, info.Holders[0].Token, "test")
		time.Sleep(time.Second)
		held.Release(t.Context())
		if err := <-got; !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the set whose lock was broken: %v, want ErrLost", err)
		}
	})
}

// A shutStore is one where a transaction of another program keeps the row of a name
// locked: writes of it lose, after a second, to the record that they were to follow.
type shutStore struct {
	driver.Store
	shut  atomic.Bool
	tried atomic.Int64 // how often
}

func (s *shutStore) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outs := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		if s.shut.Load() && w.Key == (driver.Key{Space: driver.Names, Name: "a"}) {
			s.tried.Add(1)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			recs, err := s.Store.Load(ctx, []driver.Key{w.Key}, driver.Fresh)
			if err != nil {
				return nil, err
			}
			outs[i].Record = recs[0]
			continue
		}
		out, err := s.Store.CompareAndSwap(ctx, []driver.Write{w})
		if err != nil {
			return nil, err
		}
		outs[i] = out[0]
	}
	return outs, nil
}

// No try, bounded wait, Release or Close takes longer than it promises, and a second,
// where a row stays locked: with nobody in the record, one who lives, or one who is dead.
func TestBoundsOfLockedRow(t *testing.T) {
	for _, kind := range []string{"free", "held", "held by the dead", "held by us"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shutStore{Store: memory.New()}
				cut := &wire.Cut{Store: s}
				holder, c := newClient(t, cut, nil), newClient(t, s, nil)
				var ours *holdfast.Lock
				if kind != "free" {
					who := holder
					if kind == "held by us" {
						who = c
					}
					l, err := who.Acquire(t.Context(), "a")
					if err != nil {
						t.Fatal(err)
					}
					if kind == "held by us" {
						ours = l
					}
				}
				s.shut.Store(true)
				cut.Off.Store(kind == "held by the dead")
				time.Sleep(3 * holdfast.DefaultTTL)
				within := func(what string, promised time.Duration, do func() error) error {
					t.Helper()
					began := time.Now()
					err := do()
					if took := time.Since(began); took > promised+1100*time.Millisecond {
						t.Errorf("%s took %v, and promises %v", what, took, promised)
					}
					return err
				}
				if kind != "held by us" {
					err := within("TryAcquire", 0, func() error { _, err := c.TryAcquire(t.Context(), "a"); return err })
					if !errors.Is(err, holdfast.ErrHeld) {
						t.Errorf("TryAcquire: %v, want ErrHeld", err)
					}
					for _, d := range []time.Duration{3 * time.Second, 20 * time.Second} {
						err := within("MaxWait", d, func() error { _, err := c.Acquire(t.Context(), "a", holdfast.MaxWait(d)); return err })
						if !errors.Is(err, holdfast.ErrHeld) {
							t.Errorf("MaxWait: %v, want ErrHeld", err)
						}
						within("AcquireAll", d, func() error {
							_, err := c.AcquireAll(t.Context(), []string{"0", "a"}, holdfast.MaxWait(d))
							return err
						})
					}
					ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
					defer cancel()
					if err := within("a context", 4*time.Second, func() error { _, err := c.Acquire(ctx, "a"); return err }); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("a context of 4s: %v", err)
					}
					time.Sleep(5 * time.Second)
					before := s.tried.Load()
					time.Sleep(time.Minute)
					if n := s.tried.Load() - before; n > 0 {
						t.Errorf("%d writes of a name in which nobody here has an interest any more", n)
					}
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					defer cancel()
					within("Release", 2*time.Second, func() error { return ours.Release(ctx) })
				}
				if err := within("Close", time.Second, c.Close); err != nil {
					t.Errorf("Close: %v", err)
				}
				s.shut.Store(false)
				cut.Off.Store(false)
				last := newClient(t, s.Store, nil)
				if kind == "held" {
					holder.Close()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if _, err := last.Acquire(ctx, "a"); err != nil {
					t.Errorf("when the row is free again: %v", err)
				}
				holder.Close()
				last.Close()
			})
		})
	}
}

// A hold that waits outlasts a row that stays locked for a while.
func TestHoldWaitsForLockedRow(t *testing.T) {
	for _, names := range [][]string{{"a"}, {"a", "b"}} {
		synctest.Test(t, func(t *testing.T) {
			s := &shutStore{Store: memory.New()}
			c := newClient(t, s, nil)
			defer c.Close()
			s.shut.Store(true)
			time.AfterFunc(2500*time.Millisecond, func() { s.shut.Store(false) })
			h, err := c.Enter(t.Context(), holdfast.HoldRequest{ID: strings.Repeat("5", 32), Names: names, Wait: true})
			if err != nil || !h.Held {
				t.Errorf("%q: held: %v, %v", names, h.Held, err)
			}
		})
	}
}

// The same with a store that hangs.
func TestBoundsOfSilentStore(t *testing.T) {
	for _, kind := range []string{"nothing", "released", "held"} {
		synctest.Test(t, func(t *testing.T) {
			s := &hungStore{Store: memory.New()}
			c := newClient(t, s, nil)
			if kind != "nothing" {
				l, err := c.Acquire(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				if kind == "released" {
					l.Release(t.Context())
					s.hangs.Store(true)
					time.Sleep(holdfast.DefaultTTL/3 + time.Second) // a heartbeat is under way
					began := time.Now()
					if err := c.Close(); err == nil || time.Since(began) > 1100*time.Millisecond {
						t.Errorf("Close with nothing held took %v: %v", time.Since(began), err)
					}
					return
				}
			}
			s.hangs.Store(true)
			within := func(what string, promised time.Duration, do func() error) {
				t.Helper()
				began := time.Now()
				err := do()
				if took := time.Since(began); err == nil && (kind == "held" || what != "Close") || took > promised+1100*time.Millisecond {
					t.Errorf("%s took %v, and promises %v: %v", what, took, promised, err)
				}
			}
			name := "b"
			within("TryAcquire", 5*time.Second, func() error { _, err := c.TryAcquire(t.Context(), name); return err })
			within("MaxWait", 2*time.Second, func() error {
				_, err := c.Acquire(t.Context(), name, holdfast.MaxWait(2*time.Second))
				return err
			})
			within("AcquireAll", 2*time.Second, func() error {
				_, err := c.AcquireAll(t.Context(), []string{"c", name}, holdfast.MaxWait(2*time.Second))
				return err
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			within("a context", time.Second, func() error { _, err := c.Acquire(ctx, name); return err })
			promised := time.Second
			if kind == "held" {
				promised = holdfast.DefaultTTL
			}
			within("Close", promised, c.Close)
		})
	}
}

// AcquireFor waits, and asks, no longer than its client is open.
func TestAcquireForEndsWithItsClient(t *testing.T) {
	for how, end := range map[string]func(*holdfast.Client) error{
		"Close":    (*holdfast.Client).Close,
		"Shutdown": func(c *holdfast.Client) error { return c.Shutdown(context.Background()) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.New()
			c, other := newClient(t, s, nil), newClient(t, s, nil)
			defer other.Close()
			if _, err := other.Acquire(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			waits := make(chan error, 1)
			go func() { _, err := c.AcquireFor(t.Context(), "a", time.Minute); waits <- err }()
			synctest.Wait()
			if err := end(c); err != nil {
				t.Errorf("%s: %v", how, err)
			}
			synctest.Wait()
			select {
			case err := <-waits:
				if !errors.Is(err, holdfast.ErrClosed) {
					t.Errorf("after %s: %v", how, err)
				}
			default:
				t.Errorf("after %s it waits on", how)
			}
			if info, err := other.Show(t.Context(), "a"); err != nil || len(info.Waiters) > 0 {
				t.Errorf("after %s %+v wait, %v", how, info.Waiters, err)
			}
		})
	}
}

// A client that holds nothing is closed without an error though its store is slow.
func TestCloseOnASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{Store: memory.New()}
		c := newClient(t, s, nil)
		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.by.Store(int64(3 * time.Second))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A slowStore answers late.
type slowStore struct {
	driver.Store
	by atomic.Int64
}

func (s *slowStore) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	select {
	case <-time.After(time.Duration(s.by.Load())):
		return s.Store.CompareAndSwap(ctx, w)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A hungStore does not answer.
type hungStore struct {
	driver.Store
	hangs atomic.Bool
}

func (s *hungStore) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if s.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Store.Load(ctx, keys, how)
}

func (s *hungStore) CompareAndSwap(ctx context.Context, w []driver.Write) ([]driver.Outcome, error) {
	if s.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Store.CompareAndSwap(ctx, w)
}
