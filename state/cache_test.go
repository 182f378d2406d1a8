//go:build linux || darwin

package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A fake is a keeper for tests of the cache alone: a key that tests change.
type fake struct {
	name string
	mu   sync.Mutex
	now  Key
	err  error
	ask  func() // told of each question
}

func newFake(name string) *fake { return &fake{name: name, now: Key{ID: "one", stamp: "1"}} }

func (f *fake) id() string { return f.name }
func (f *fake) key(context.Context) (Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ask != nil {
		f.ask()
	}
	return f.now, f.err
}
func (f *fake) set(k Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = k
}
func (f *fake) begin(context.Context) (*Writer, error) { panic("a fake has no writers") }
func (f *fake) clear(context.Context) error            { panic("a fake is not cleared") }

func newCache(t testing.TB, opts *CacheOptions) *Cache {
	t.Helper()
	c, err := OpenCache(filepath.Join(t.TempDir(), "cache"), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// says is a fill.
func says(text string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// not is a fill that is not to run.
func not(t testing.TB) func(context.Context, io.Writer) error {
	return func(context.Context, io.Writer) error {
		t.Error("it was filled, though it was there")
		return nil
	}
}

func get(t testing.TB, c *Cache, s *State, kind string, fill func(context.Context, io.Writer) error) string {
	t.Helper()
	b, err := c.Get(t.Context(), s, kind, fill)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	text, err := io.ReadAll(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// files are the names in the cache's directory, without those that are always there.
func files(t testing.TB, c *Cache) (blobs, other []string) {
	t.Helper()
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch {
		case e.Name() == tagName || e.Name() == countName:
		case len(e.Name()) == 64:
			blobs = append(blobs, e.Name())
		default:
			other = append(other, e.Name())
		}
	}
	return blobs, other
}

// What was filled is served until the key changes.
func TestCache(t *testing.T) {
	c, f := newCache(t, nil), newFake("repo")
	s := &State{f}
	if got := get(t, c, s, "refs", says("first")); got != "first" {
		t.Errorf("filled with %q, got %q", "first", got)
	}
	if got := get(t, c, s, "refs", not(t)); got != "first" {
		t.Errorf("got %q from the cache, want %q", got, "first")
	}
	f.set(Key{ID: "two", stamp: "1"})
	if got := get(t, c, s, "refs", says("second")); got != "second" {
		t.Errorf("got %q after a write, want %q", got, "second")
	}
	if _, other := files(t, c); other != nil {
		t.Errorf("fills leave %q behind", other)
	}
}

// Each Get causes one event, which says whether it was a hit, a fill, and kept.
func TestCacheTrace(t *testing.T) {
	var told []CacheEvent
	c := newCache(t, &CacheOptions{Trace: func(_ context.Context, e CacheEvent) { told = append(told, e) }})
	f := newFake("repo")
	s := &State{f}
	get(t, c, s, "refs", says("first"))
	get(t, c, s, "refs", not(t))
	f.set(Key{ID: "two", Writing: true})
	get(t, c, s, "refs", says("half"))
	if _, err := c.Get(t.Context(), s, "refs", func(context.Context, io.Writer) error { return os.ErrInvalid }); !errors.Is(err, os.ErrInvalid) {
		t.Fatal(err)
	}
	if len(told) != 4 {
		t.Fatalf("told %+v", told)
	}
	for i, want := range []CacheEvent{{Kind: "refs", Kept: true, Bytes: 5}, {Kind: "refs", Hit: true}, {Kind: "refs", Bytes: 4}, {Kind: "refs"}} {
		got := told[i]
		if filled := got.Took > 0; filled == want.Hit || got.Waited < 0 || (i == 3) != errors.Is(got.Err, os.ErrInvalid) {
			t.Errorf("told %+v", got)
		}
		got.Took, got.Waited, got.Err = 0, 0, nil
		if got != want {
			t.Errorf("told %+v, want %+v", got, want)
		}
	}
}

// What differs in any part is another blob, also if parts only look alike when
// they are put together.
func TestCacheParts(t *testing.T) {
	c := newCache(t, nil)
	seen := make(map[string]string)
	for _, p := range [][4]string{
		{"a", "b", "c", "d"}, {"ab", "", "c", "d"}, {"", "ab", "c", "d"}, {"a", "bc", "", "d"},
		{"a", "b", "cd", ""}, {"a", "b", "c", ""}, {"a", "b\x00c", "", "d"}, {"a\x00b", "c", "d", ""},
		{"a/b", "c", "d", ""}, {"a", "/bc", "d", ""}, {"a", "b ", "c", "d"}, {"a", "b", "c", "d "},
	} {
		f := newFake(p[0])
		f.set(Key{ID: p[2] + "k", stamp: p[3]})
		text := fmt.Sprintf("%q", p)
		if got := get(t, c, &State{f}, p[1], says(text)); got != text {
			t.Errorf("%s is served what is %s's", text, got)
		}
		seen[blobName(p[0], p[1], f.now)] = text
	}
	if len(seen) != 12 {
		t.Errorf("12 blobs have %d names", len(seen))
	}
}

// What is filled while someone writes, or while the key changes, goes to its
// caller and to nobody else.
func TestCacheRechecks(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after Key
		kept          bool
	}{
		{"nothing happens", Key{ID: "1", stamp: "a"}, Key{ID: "1", stamp: "a"}, true},
		{"a write", Key{ID: "1", stamp: "a"}, Key{ID: "2", stamp: "a"}, false},
		{"a key that came back", Key{ID: "1", stamp: "a"}, Key{ID: "1", stamp: "b"}, false},
		{"a write begins", Key{ID: "1", stamp: "a"}, Key{ID: "1", stamp: "a", Writing: true}, false},
		{"a write ends", Key{ID: "1", stamp: "a", Writing: true}, Key{ID: "1", stamp: "a"}, false},
		{"a long write", Key{ID: "1", stamp: "a", Writing: true}, Key{ID: "1", stamp: "a", Writing: true}, false},
		{"no key", Key{Writing: true}, Key{Writing: true}, false},
		{"no key, and nobody writes", Key{}, Key{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, f := newCache(t, nil), newFake("repo")
			f.set(test.before)
			got := get(t, c, &State{f}, "refs", func(ctx context.Context, w io.Writer) error {
				f.set(test.after)
				return says("filled")(ctx, w)
			})
			if got != "filled" {
				t.Errorf("got %q, want what was filled", got)
			}
			blobs, other := files(t, c)
			if kept := len(blobs) > 0; kept != test.kept || other != nil {
				t.Errorf("kept %v, want %v; and %q", blobs, test.kept, other)
			}
		})
	}
}

// If the key cannot be read after a fill nothing is kept; before one that is an
// error.
func TestCacheKeyFails(t *testing.T) {
	c, f := newCache(t, nil), newFake("repo")
	s, bad := &State{f}, errors.New("no state today")
	get(t, c, s, "refs", func(context.Context, io.Writer) error {
		f.mu.Lock()
		f.err = bad
		f.mu.Unlock()
		return nil
	})
	if blobs, _ := files(t, c); blobs != nil {
		t.Errorf("kept %q, though the key could not be read again", blobs)
	}
	if _, err := c.Get(t.Context(), s, "refs", not(t)); !errors.Is(err, bad) {
		t.Errorf("got %v, want %v", err, bad)
	}
}

// One of many goroutines fills, and all get what it has filled.
func TestCacheOneFill(t *testing.T) {
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	var fills atomic.Int32
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			b, err := c.Get(t.Context(), s, "refs", func(ctx context.Context, w io.Writer) error {
				fills.Add(1)
				time.Sleep(20 * time.Millisecond) // so that the others come
				return says("once")(ctx, w)
			})
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			if got, err := io.ReadAll(b); string(got) != "once" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	all.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("100 goroutines fill %d times, want once", n)
	}
}

// Nothing is served or kept of a fill that fails, and the next one is asked.
func TestCacheFillFails(t *testing.T) {
	bad := errors.New("git has no time")
	for name, fill := range map[string]func(context.Context, io.Writer) error{
		"at once":  func(context.Context, io.Writer) error { return bad },
		"half way": func(ctx context.Context, w io.Writer) error { return errors.Join(says("half")(ctx, w), bad) },
	} {
		c := newCache(t, nil)
		s := &State{newFake("repo")}
		if b, err := c.Get(t.Context(), s, "refs", fill); !errors.Is(err, bad) || b != nil || !strings.Contains(err.Error(), `"refs"`) {
			t.Errorf("%s: got %v, %v, want the error, and what it is of", name, b, err)
		}
		if blobs, other := files(t, c); blobs != nil || other != nil {
			t.Errorf("%s: it leaves %q and %q", name, blobs, other)
		}
		if got := get(t, c, s, "refs", says("whole")); got != "whole" {
			t.Errorf("%s: then got %q", name, got)
		}
	}
}

// An empty answer is an answer, and so is a long one.
func TestCacheSizes(t *testing.T) {
	c := newCache(t, nil)
	for _, n := range []int{0, 1, headerLen, 64<<10 - headerLen, 64 << 10, 128<<10 - headerLen, 128 << 10, 1<<20 + 1} {
		s := &State{newFake(fmt.Sprint(n))}
		text := strings.Repeat("x", n)
		for range 2 {
			var got bytes.Buffer
			b, err := c.Get(t.Context(), s, "refs", says(text))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(&got, b); err != nil || got.String() != text {
				t.Errorf("got %d bytes, %v, want %d", got.Len(), err, n)
			}
			b.Close()
		}
	}
	if blobs, _ := files(t, c); len(blobs) != 8 {
		t.Errorf("%d blobs, want 8", len(blobs))
	}
}
