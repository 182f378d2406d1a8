package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A batchless store makes the writes of a call one after the other, names first, with a
// pause between them: a batch promises nothing beyond its single writes.
type batchless struct {
	driver.Store
	pause time.Duration
}

func (s batchless) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outs := make([]driver.Outcome, len(writes))
	for _, names := range []bool{true, false} {
		for i, w := range writes {
			if names != (w.Key.Space == driver.Names) {
				continue
			}
			out, err := s.Store.CompareAndSwap(ctx, []driver.Write{w})
			if err != nil {
				return nil, err
			}
			outs[i] = out[0]
			if len(writes) > 1 && names {
				time.Sleep(s.pause)
			}
		}
	}
	return outs, nil
}

// A claim that is seen before its session is shown with its owner, also by Watch, where
// the session comes late.
func TestShowBeforeTheSession(t *testing.T) {
	for _, pause := range []time.Duration{50 * time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			c, watcher := newClient(t, batchless{store, pause}, nil), newClient(t, store, nil)
			defer c.Close()
			defer watcher.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go c.Acquire(ctx, "a")
			time.Sleep(time.Millisecond)
			owner := func(info holdfast.Info, err error) string {
				if err != nil || len(info.Holders) != 1 {
					t.Fatalf("seen: %+v, %v", info, err)
				}
				return info.Holders[0].Owner.Host
			}
			if pause < time.Second {
				if host := owner(watcher.Show(ctx, "a")); host == "" {
					t.Error("Show tells of no owner")
				}
				return
			}
			for info, err := range watcher.Watch(ctx, "a") {
				if owner(info, err) != "" {
					return
				}
			}
			t.Error("Watch tells of no owner")
		})
	}
}

// So is one of a list; and a name whose holder has ended meanwhile is not listed.
func TestListBeforeTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		c, looker := newClient(t, batchless{store, 50 * time.Millisecond}, nil), newClient(t, store, nil)
		defer c.Close()
		defer looker.Close()
		go func() {
			if l, err := c.Acquire(t.Context(), "a"); err == nil {
				l.Release(t.Context())
				c.Acquire(t.Context(), "b")
			}
		}()
		time.Sleep(time.Millisecond)
		for info, err := range looker.List(t.Context(), "") {
			if err != nil || info.Name != "b" || len(info.Holders) != 1 || info.Holders[0].Owner.Host == "" {
				t.Errorf("listed: %+v, %v", info, err)
			}
		}
	})
}

// A listing ends with an error when its context or its client does, and Close does not wait for
// who reads it.
func TestListEnds(t *testing.T) {
	store := memory.New()
	holder, err := holdfast.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	for i := range 1200 { // more than a page
		if _, err := holder.Acquire(t.Context(), fmt.Sprintf("%04d", i)); err != nil {
			t.Fatal(err)
		}
	}
	listing := func(ctx context.Context, c *holdfast.Client, atFirst func()) (n int, last error) {
		for _, err := range c.List(ctx, "") {
			if last = err; err == nil {
				if n++; n == 1 {
					atFirst()
				}
			}
		}
		return n, last
	}
	for _, closed := range []bool{false, true} {
		c, err := holdfast.New(store, &holdfast.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		want := context.Canceled
		end := cancel
		if closed {
			want, end = holdfast.ErrClosed, func() { c.Close() }
		}
		if n, err := listing(ctx, c, end); !errors.Is(err, want) || n == 1200 {
			t.Errorf("ended with %v after %d of 1200, want %v", err, n, want)
		}
		c.Close()
		cancel()
	}
	c, err := holdfast.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if n, err := listing(t.Context(), c, func() {}); n != 1200 || err != nil {
		t.Errorf("a closed client lists %d, %v", n, err)
	}
}
