package holdfast_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// aPoll is the longest time between two looks of a waiter.
const aPoll = 2500 * time.Millisecond

// A name that was locked with MinHold stays shut for that long when the lock is released, when
// the client is closed, and when the process dies, and no longer than that.
func TestMinHold(t *testing.T) {
	const d = time.Minute
	for how, end := range map[string]func(t *testing.T, c *holdfast.Client, l *holdfast.Lock, s *wire.Cut){
		"released": func(t *testing.T, c *holdfast.Client, l *holdfast.Lock, _ *wire.Cut) {
			for range 2 {
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
			if !errors.Is(l.Err(), holdfast.ErrReleased) {
				t.Errorf("it ended with %v", l.Err())
			}
		},
		"closed": func(t *testing.T, c *holdfast.Client, l *holdfast.Lock, _ *wire.Cut) {
			if err := c.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if !errors.Is(l.Err(), holdfast.ErrClosed) {
				t.Errorf("it ended with %v", l.Err())
			}
		},
		"dead": func(t *testing.T, c *holdfast.Client, l *holdfast.Lock, s *wire.Cut) { s.Off.Store(true) },
	} {
		t.Run(how, func(t *testing.T) {
			onBoth(t, func(t *testing.T, s driver.Store) {
				cut := &wire.Cut{Store: s}
				c, other := newClient(t, cut, nil), newClient(t, s, nil)
				defer c.Close()
				defer other.Close()
				began := time.Now()
				l, err := c.Acquire(t.Context(), "a", holdfast.MinHold(d))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				end(t, c, l, cut)
				_, err = other.TryAcquire(t.Context(), "a")
				var held *holdfast.HeldError
				if !errors.As(err, &held) || len(held.Holders) != 1 {
					t.Fatalf("while it is to be shut: %v", err)
				}
				cl, until := held.Holders[0], began.Add(d)
				if cl.Kept != (how != "dead") || cl.Detached != cl.Kept || cl.KeptUntil.Sub(until).Abs() > 10*time.Millisecond {
					t.Errorf("shown as %+v, want until %v", cl, until)
				}
				if want := " until " + cl.KeptUntil.Format(time.TimeOnly); !strings.Contains(err.Error(), want) {
					t.Errorf("the refusal %q does not say %q", err, want)
				}
				next, err := other.Acquire(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				most := d + aPoll
				if _, clock := s.(clockless); clock {
					most += time.Second // from when the other has first looked
				}
				if took := time.Since(began); took < d || took > most {
					t.Errorf("shut for %v, want %v", took, d)
				}
				if err := next.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A job that takes longer than MinHold keeps its lock, as any other does, and gives it back at
// once.
func TestMinHoldOfALongJob(t *testing.T) {
	for _, d := range []time.Duration{time.Second, 4 * time.Second, 50 * time.Second} {
		onBoth(t, func(t *testing.T, s driver.Store) {
			c, other := newClient(t, s, nil), newClient(t, s, nil)
			defer c.Close()
			defer other.Close()
			err := c.Do(t.Context(), "a", func(ctx context.Context, l *holdfast.Lock) error {
				for range 8 {
					time.Sleep(d / 3)
					if err := ctx.Err(); err != nil || l.Err() != nil {
						t.Errorf("%v, %v", context.Cause(ctx), l.Err())
					}
					if _, err := other.TryAcquire(ctx, "a"); !errors.Is(err, holdfast.ErrHeld) {
						t.Errorf("while it is held: %v", err)
					}
				}
				if l.TTL() != holdfast.DefaultTTL {
					t.Errorf("after %v its TTL is %v", d, l.TTL())
				}
				return nil
			}, holdfast.MinHold(d))
			if err != nil {
				t.Fatal(err)
			}
			next, err := other.TryAcquire(t.Context(), "a")
			if err != nil {
				t.Fatalf("after its release: %v", err)
			}
			next.Release(t.Context())
		})
	}
}

// MinHold counts from the grant, however long the wait was. Processes that only ask once, each a
// new one, get in when it is over.
func TestMinHoldInLine(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		const d = 20 * time.Second
		first, c := newClient(t, s, nil), newClient(t, s, nil)
		defer first.Close()
		defer c.Close()
		l, err := first.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(2*d, func() { l.Release(context.Background()) })
		if err := c.Do(t.Context(), "a", func(context.Context, *holdfast.Lock) error { return nil }, holdfast.MinHold(d)); err != nil {
			t.Fatal(err)
		}
		o := holdfast.Options{RuntimeDir: filepath.Join(t.TempDir(), "run")}
		if took := tries(t, s, o, time.Second, 10*d, true); took < d-10*time.Millisecond || took > d+aPoll {
			t.Errorf("a try got the lock %v after a hold for %v", took, d)
		}
	})
}

// Break ends a hold with MinHold before its time. The holder learns of it while it holds.
func TestMinHoldBroken(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		const d = time.Hour
		c, other := newClient(t, s, nil), newClient(t, s, nil)
		defer c.Close()
		defer other.Close()
		told := make(chan error, 1)
		err := c.Do(t.Context(), "a", func(ctx context.Context, l *holdfast.Lock) error {
			go func() { told <- other.Break(t.Context(), "a", l.Token(), "test") }()
			<-ctx.Done()
			time.Sleep(time.Second)
			if _, err := other.TryAcquire(t.Context(), "a"); !errors.Is(err, holdfast.ErrHeld) {
				t.Errorf("while its work goes on: %v", err)
			}
			return nil
		}, holdfast.MinHold(d))
		if !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("the holder is told %v", err)
		}
		if err := <-told; err != nil {
			t.Errorf("Break of a holder: %v", err)
		}
		l, err := c.TryAcquire(t.Context(), "a", holdfast.MinHold(d))
		if err != nil {
			t.Fatalf("after the break: %v", err)
		}
		if err := other.ReleaseToken(t.Context(), "a", l.Token()); err == nil || errors.Is(err, holdfast.ErrReleased) {
			t.Errorf("ReleaseToken of what a program holds: %v", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := other.ReleaseToken(t.Context(), "a", l.Token()); !errors.Is(err, holdfast.ErrReleased) {
			t.Errorf("ReleaseToken of what is kept: %v", err)
		}
		began := time.Now()
		if err := other.Break(t.Context(), "a", l.Token(), "test"); err != nil || time.Since(began) > time.Second {
			t.Errorf("Break of what is kept, after %v: %v", time.Since(began), err)
		}
		if next, err := other.TryAcquire(t.Context(), "a"); err != nil {
			t.Errorf("after the break: %v", err)
		} else {
			next.Release(t.Context())
		}
	})
}

// Shutdown waits for what is held with MinHold, and for no longer.
func TestMinHoldShutdown(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		c := newClient(t, s, nil)
		l, err := c.Acquire(t.Context(), "a", holdfast.MinHold(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 1)
		go func() { _, err := c.Acquire(t.Context(), "a", holdfast.MinHold(time.Hour)); waits <- err }()
		time.Sleep(time.Second)
		began := time.Now()
		time.AfterFunc(time.Minute, func() {
			if err := l.Err(); err != nil {
				t.Errorf("during Shutdown: %v", err)
			}
			l.Release(context.Background())
		})
		if err := c.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("Shutdown took %v", took)
		}
		if err := <-waits; !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("who waited is told %v", err)
		}
		if _, err := c.Acquire(t.Context(), "b", holdfast.MinHold(time.Hour)); !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// A holder with MinHold that is cut off from the store loses its lock before its name opens.
func TestMinHoldLost(t *testing.T) {
	onBoth(t, func(t *testing.T, s driver.Store) {
		for _, d := range []time.Duration{4 * time.Second, time.Minute} {
			cut := &wire.Cut{Store: s}
			c := newClient(t, cut, nil)
			l, err := c.Acquire(t.Context(), "a", holdfast.MinHold(d))
			if err != nil {
				t.Fatal(err)
			}
			cut.Off.Store(true)
			got := waits(t, s)
			<-l.Context().Done()
			if !errors.Is(l.Err(), holdfast.ErrLost) {
				t.Errorf("it ended with %v", l.Err())
			}
			select {
			case took := <-got:
				t.Errorf("another had it after %v, before it was lost", took)
			default:
			}
			<-got
			if err := l.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("Release: %v", err)
			}
			c.Close()
		}
	})
}

// The death of a process with MinHold, which its host would prove, opens nothing before its time:
// there is no proof of its life. It goes by the proofs of others.
func TestMinHoldHasNoProof(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	c := newClient(t, stores()["with a clock"], &holdfast.Options{RuntimeDir: dir})
	defer c.Close()
	l, err := c.Acquire(t.Context(), "a", holdfast.MinHold(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(dir); l.Proof() != nil || err != nil || len(files) > 0 {
		t.Errorf("proof %v; in the runtime directory are %v, %v", l.Proof(), files, err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMinHoldRefused(t *testing.T) {
	s := stores()["with a clock"]
	c := newClient(t, s, nil)
	defer c.Close()
	opt := holdfast.MinHold(time.Minute)
	_, set := c.AcquireAll(t.Context(), []string{"a", "b"}, opt)
	_, detached := c.AcquireFor(t.Context(), "a", time.Minute, opt)
	for what, err := range map[string]error{
		"AcquireAll": set, "AcquireFor": detached, "Election": c.Election("a", opt).Run(t.Context(), nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "MinHold is for one lock") {
			t.Errorf("%s with MinHold: %v", what, err)
		}
	}
	for _, d := range []time.Duration{-1, 0, time.Second - 1, 367 * 24 * time.Hour} {
		if _, err := c.TryAcquire(t.Context(), "a", holdfast.MinHold(d)); err == nil || !strings.Contains(err.Error(), "is not between 1s and") {
			t.Errorf("MinHold(%v): %v", d, err)
		}
	}
}
