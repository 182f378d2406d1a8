package state

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

// kinds are both kinds of state, each with a function that opens the same state
// as another process would.
func kinds(t *testing.T, test func(t *testing.T, open func() *State)) {
	t.Run("dir", func(t *testing.T) {
		path := t.TempDir()
		test(t, func() *State { return openDir(t, path, nil) })
	})
	t.Run("on", func(t *testing.T) {
		store := memory.New()
		test(t, func() *State { return On(newClient(t, store), "refs") })
	})
}

func openDir(t testing.TB, path string, opts *DirOptions) *State {
	t.Helper()
	s, err := Dir(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newClient(t testing.TB, store driver.Store) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(store, &holdfast.Options{TTL: holdfast.MinTTL, RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// keyOf is the key of a state at which nobody writes.
func keyOf(t testing.TB, s *State) Key {
	t.Helper()
	k := anyKey(t, s)
	if k.Writing || k.ID == "" {
		t.Fatalf("the key is %+v, want one with nobody writing", k)
	}
	return k
}

func anyKey(t testing.TB, s *State) Key {
	t.Helper()
	k, err := s.Key(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func begin(t testing.TB, s *State) *Writer {
	t.Helper()
	w, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A key stays while nobody writes, and all who ask get the same.
func TestKeyStays(t *testing.T) {
	kinds(t, func(t *testing.T, open func() *State) {
		a, b := open(), open()
		k := keyOf(t, a)
		if other := keyOf(t, b); !other.Equal(k) {
			t.Errorf("another reader has %+v, want %+v", other, k)
		}
		if again := keyOf(t, a); !again.Equal(k) {
			t.Errorf("later the key is %+v, want %+v", again, k)
		}
	})
}

// Readers see a writer from Begin to End, and after it the key is
// another; so it is after each of two that write at the same time.
func TestWrite(t *testing.T) {
	kinds(t, func(t *testing.T, open func() *State) {
		reader := open()
		before := keyOf(t, reader)
		w := begin(t, open())
		if k := anyKey(t, reader); !k.Writing {
			t.Errorf("while someone writes the key is %+v", k)
		}
		w2 := begin(t, open())
		if err := w.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(w.Context()); !errors.Is(cause, holdfast.ErrReleased) {
			t.Errorf("after End the context's cause is %v", cause)
		}
		if k := anyKey(t, reader); !k.Writing || k.Equal(before) {
			t.Errorf("after the first of two writers has ended the key is %+v, and was %+v", k, before)
		}
		if err := w2.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		if k := keyOf(t, reader); k.Equal(before) {
			t.Errorf("the key is still %+v", k)
		}
		if err := w.End(t.Context()); err != nil {
			t.Errorf("a second End: %v", err)
		}
	})
}

// A name that was never written gets a version from the first who asks.
func TestKeyUnwritten(t *testing.T) {
	kinds(t, func(t *testing.T, open func() *State) {
		if k := keyOf(t, open()); k.ID == "0" {
			t.Errorf("the key is %+v", k)
		}
	})
}

// Write ends whatever its function does, with that function's error, and the
// function's context ends with the caller's.
func TestWriteFunction(t *testing.T) {
	kinds(t, func(t *testing.T, open func() *State) {
		s := open()
		before := keyOf(t, s)
		bad := errors.New("bad")
		ctx, cancel := context.WithCancel(t.Context())
		err := s.Write(ctx, func(ctx context.Context) error {
			if k := anyKey(t, s); !k.Writing {
				t.Errorf("in Write the key is %+v", k)
			}
			cancel()
			<-ctx.Done()
			return bad
		})
		if !errors.Is(err, bad) {
			t.Errorf("Write returns %v, want what its function did", err)
		}
		k := keyOf(t, s)
		if k.Equal(before) {
			t.Errorf("after a write that failed the key is still %+v", k)
		}
		func() {
			defer func() { recover() }()
			s.Write(t.Context(), func(context.Context) error { panic("bad") })
		}()
		if after := keyOf(t, s); after.Equal(k) {
			t.Errorf("after a write that panicked the key is still %+v", k)
		}
		if s.Write(ctx, func(context.Context) error { t.Error("run with a ctx that has ended"); return nil }) == nil {
			t.Error("Write with a ctx that has ended has no error")
		}
	})
}

// Clear changes the key, and leaves writers at work.
func TestClear(t *testing.T) {
	kinds(t, func(t *testing.T, open func() *State) {
		s := open()
		before := keyOf(t, s)
		if err := open().Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		if k := keyOf(t, s); k.Equal(before) {
			t.Errorf("after Clear the key is still %+v", k)
		}
		w := begin(t, open())
		before = anyKey(t, s)
		if err := open().Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		if k := anyKey(t, s); !k.Writing || k.Equal(before) {
			t.Errorf("after Clear while someone writes the key is %+v, and was %+v", k, before)
		}
		if err := w.End(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func isLost(err error) bool { return errors.Is(err, holdfast.ErrLost) }
