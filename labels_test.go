package holdfast_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// A process that waited for 5 s and has held for 2 s is shown as having held for 2 s.
func TestHeldSinceTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		first, next, other := newClient(t, store, nil), newClient(t, store, &holdfast.Options{Owner: holdfast.Owner{User: "ana", Host: "db1", PID: 2784}}), newClient(t, store, nil)
		defer first.Close()
		defer next.Close()
		defer other.Close()
		l, err := first.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		asked := time.Now()
		got := make(chan *holdfast.Lock, 1)
		go func() {
			l, err := next.Acquire(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		time.Sleep(5 * time.Second)
		if w := show(t, other, "a").Waiters; len(w) != 1 || !w[0].Requested.Equal(asked) || !w[0].Granted.IsZero() || w[0].Waited != 5*time.Second {
			t.Errorf("who waits is shown as %+v", w)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-got
		time.Sleep(2 * time.Second)
		h := show(t, other, "a").Holders
		if len(h) != 1 || !h[0].Requested.Equal(asked) || h[0].Waited.Round(time.Second/10) != 5*time.Second || time.Since(h[0].Granted).Round(time.Second/10) != 2*time.Second {
			t.Errorf("the holder is shown as %+v", h)
		}
		_, err = other.TryAcquire(t.Context(), "a")
		if want := `acquire "a": held by ana@db1 (pid 2784) for 2s (last heartbeat `; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("refused with %v, want %s", err, want)
		}
		_, err = next.TryAcquire(t.Context(), "a")
		if want := "held by this process for 2s"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("refused with %v, want %s", err, want)
		}
		claim, err := other.AcquireFor(t.Context(), "b", time.Minute, holdfast.Labels(map[string]string{"ticket": "815"}))
		if err != nil || claim.Granted.IsZero() || claim.Waited != 0 || !claim.Detached || claim.Labels["ticket"] != "815" || claim.Owner.Host == "" {
			t.Errorf("AcquireFor returns %+v, %v", claim, err)
		}
		if h := show(t, other, "b").Holders; len(h) != 1 || !h[0].Granted.Equal(claim.Granted) || h[0].ID != claim.ID || h[0].Token != claim.Token || h[0].Labels["ticket"] != "815" {
			t.Errorf("and it is shown as %+v", h)
		}
	})
}

func show(t *testing.T, c *holdfast.Client, name string) holdfast.Info {
	t.Helper()
	info, err := c.Show(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// A countingStore counts the writes of locks and of sessions.
type countingStore struct {
	driver.Store
	names, sessions atomic.Int64
}

func (s *countingStore) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for _, w := range writes {
		switch w.Key.Space {
		case driver.Names:
			s.names.Add(1)
		case driver.Sessions:
			s.sessions.Add(1)
		}
	}
	return s.Store.CompareAndSwap(ctx, writes)
}

// Labels that a lock changes are seen with the next heartbeat, and cost no write.
func TestSetLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted := &countingStore{Store: memory.New()}
		c, other := newClient(t, counted, nil), newClient(t, counted.Store, nil)
		defer c.Close()
		defer other.Close()
		set, err := c.AcquireAll(t.Context(), []string{"a", "b"}, holdfast.Labels(map[string]string{"build": "7", "step": "1"}), holdfast.Labels(map[string]string{"step": "2"}))
		if err != nil {
			t.Fatal(err)
		}
		shown := func(name string, want map[string]string) {
			t.Helper()
			if h := show(t, other, name).Holders; len(h) != 1 || !maps.Equal(h[0].Labels, want) {
				t.Errorf("%s is shown as %+v, want labels %v", name, h, want)
			}
		}
		two := map[string]string{"build": "7", "step": "2"}
		shown("a", two)
		shown("b", two)

		names, beats, began := counted.names.Load(), counted.sessions.Load(), time.Now()
		three := map[string]string{"step": "3"}
		if err := set.Locks()[0].SetLabels(three); err != nil {
			t.Fatal(err)
		}
		three["step"] = "changed by the caller"
		three = map[string]string{"step": "3"}
		if took := time.Since(began); took != 0 {
			t.Errorf("SetLabels took %v", took)
		}
		shown("a", two)
		time.Sleep(holdfast.DefaultTTL/3 + time.Second)
		shown("a", three)
		shown("b", two)
		if err := set.Locks()[0].SetLabels(nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(holdfast.DefaultTTL / 3)
		shown("a", nil)
		if err := set.Locks()[0].SetLabels(two); err != nil {
			t.Fatal(err)
		}
		time.Sleep(holdfast.DefaultTTL / 3)
		shown("a", two)
		if n, b := counted.names.Load()-names, counted.sessions.Load()-beats; n != 0 || b != 3 {
			t.Errorf("%d writes of locks and %d heartbeats in three beats", n, b)
		}
		if err := set.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := set.Locks()[0].SetLabels(three); !errors.Is(err, holdfast.ErrReleased) {
			t.Errorf("SetLabels of a lock that was released: %v", err)
		}
	})
}

// A lock that is handed on within a process shows the labels of whoever has it, and forgets
// labels that were set.
func TestLabelsOfAHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		c, other := newClient(t, store, nil), newClient(t, store, nil)
		defer c.Close()
		defer other.Close()
		first, err := c.Acquire(t.Context(), "a", holdfast.Labels(map[string]string{"who": "first"}))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *holdfast.Lock)
		for range 3 {
			go func() {
				l, err := c.Acquire(t.Context(), "a", holdfast.Labels(map[string]string{"who": "next"}))
				if err != nil {
					t.Error(err)
				}
				got <- l
			}()
		}
		synctest.Wait()
		if err := first.SetLabels(map[string]string{"who": "first, at work"}); err != nil {
			t.Fatal(err)
		}
		first.Release(t.Context())
		for range 3 {
			l := <-got
			time.Sleep(holdfast.DefaultTTL/3 + time.Second)
			if h := show(t, other, "a").Holders; len(h) != 1 || h[0].Labels["who"] != "next" {
				t.Errorf("the next holder is shown as %+v", h)
			}
			if err := l.SetLabels(map[string]string{"who": "at work"}); err != nil {
				t.Error(err)
			}
			time.Sleep(holdfast.DefaultTTL/3 + time.Second)
			if h := show(t, other, "a").Holders; len(h) != 1 || h[0].Labels["who"] != "at work" {
				t.Errorf("the next holder is shown as %+v", h)
			}
			l.Release(t.Context())
		}
	})
}

// Labels have bounds, of which the error tells.
func TestLabelBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memory.New(), nil)
		defer c.Close()
		big := map[string]string{"k": strings.Repeat("x", 1024-len(`{"k":""}`))}
		l, err := c.Acquire(t.Context(), "a", holdfast.Labels(big))
		if err != nil {
			t.Fatal(err)
		}
		for text, labels := range map[string]map[string]string{
			"the labels take 1025 bytes as JSON, at most 1024": {"k": big["k"] + "x"},
			"the labels take 1208 bytes as JSON, at most 1024": {"k": strings.Repeat("<", 200)},
			"a key of Labels is empty":                         {"": "x"},
		} {
			if _, err := c.Acquire(t.Context(), "b", holdfast.Labels(labels)); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("Acquire says %v, want %s", err, text)
			}
			if _, err := c.AcquireAll(t.Context(), []string{"b", "c"}, holdfast.Labels(labels)); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("AcquireAll says %v, want %s", err, text)
			}
			if err := l.SetLabels(labels); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("SetLabels says %v, want %s", err, text)
			}
		}

		names := 0
		for ; err == nil && names < 100; names++ {
			var l *holdfast.Lock
			if l, err = c.Acquire(t.Context(), "n"+string(rune('0'+names))); err == nil {
				err = l.SetLabels(big)
			}
		}
		if names < 60 || names > 64 || !strings.Contains(err.Error(), "the changed labels of this client would take more than 65536 bytes") {
			t.Errorf("after %d locks whose labels were changed: %v", names, err)
		}
		time.Sleep(holdfast.DefaultTTL)
		if err := l.Err(); err != nil {
			t.Errorf("with as many labels as there may be: %v", err)
		}
		if h := show(t, c, "n0").Holders; len(h) != 1 || !maps.Equal(h[0].Labels, big) {
			t.Errorf("shown as %+v", h)
		}

		_, err = c.Acquire(t.Context(), "odd", holdfast.Labels(map[string]string{"bad\xff": "\xfe"}))
		if err != nil {
			t.Fatal(err)
		}
		if h := show(t, c, "odd").Holders; len(h) != 1 || !maps.Equal(h[0].Labels, map[string]string{"bad\uFFFD": "\uFFFD"}) {
			t.Errorf("shown as %+v", h)
		}
		if _, err := holdfast.New(memory.New(), &holdfast.Options{Owner: holdfast.Owner{Name: strings.Repeat("x", 256)}}); err == nil || !strings.Contains(err.Error(), "field Name of Owner has 256 bytes") {
			t.Errorf("an owner with a long name: %v", err)
		}
	})
}

// What a stranger has written does nothing to the terminal on which an error is shown.
func TestHeldErrorIsPrintable(t *testing.T) {
	err := &holdfast.HeldError{Holders: []holdfast.Claim{{Owner: holdfast.Owner{Name: "web\x1b[2J", Host: "db1"}, Reason: "\x07 release"}}}
	if want := `held by web\x1b[2J (db1): \x07 release`; err.Error() != want {
		t.Errorf("it says %q, want %q", err, want)
	}
}
