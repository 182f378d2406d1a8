//go:build linux || darwin

package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// K6: whatever keeps End from changing the key leaves the entry, so that readers
// do it; a second End may succeed.
func TestK6(t *testing.T) {
	for _, what := range []string{"write key", "sync file", "rename key", "sync key"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			step, fail := failing()
			s := openWith(t, path, 3*time.Second, step)
			reader := openDir(t, path, nil)
			before := keyOf(t, reader)
			w, w2 := begin(t, s), begin(t, s)
			hide(t, path)
			fail(what)
			if err := w.End(t.Context()); !errors.Is(err, errFault) || isLost(err) {
				t.Errorf("%s fails: End: %v, want that error", what, err)
			}
			if n := len(entries(t, path)); n != 2 {
				t.Errorf("%s fails: %d entries, want both", what, n)
			}
			if k := anyKey(t, reader); !k.Writing {
				t.Errorf("%s fails: the key is %+v, want that someone writes", what, k)
			}
			if _, err := s.Key(t.Context()); err != nil {
				t.Errorf("%s fails: %v, though there is a key", what, err)
			}
			fail("")
			if err := w.End(t.Context()); err != nil {
				t.Errorf("a second End: %v", err)
			}
			if k := anyKey(t, reader); k.Equal(before) || len(entries(t, path)) != 1 {
				t.Errorf("after a second End the key is %+v, and was %+v; entries: %q", k, before, entries(t, path))
			}
			fail(what)
			w2.End(t.Context()) // and nobody repeats that
			fail("")
			before = anyKey(t, reader)
			if k := eventually(t, reader); k.Equal(before) {
				t.Errorf("%s fails: later the key is still %+v", what, k)
			}
		})
	}
}

// K6: a reader that cannot change the key for a dead writer says so, and leaves
// the entry.
func TestK6Reader(t *testing.T) {
	for _, what := range []string{"write key", "sync file", "rename key", "sync key"} {
		path := t.TempDir()
		step, fail := failing()
		s := openWith(t, path, holdfast.MinTTL, step)
		before := keyOf(t, s)
		plant(t, path, "pending/x", "", 2*time.Hour)
		fail(what)
		if k, err := s.Key(t.Context()); !errors.Is(err, errFault) {
			t.Errorf("%s fails: key %+v, error %v; want that error", what, k, err)
		}
		if len(entries(t, path)) != 1 {
			t.Errorf("%s fails: the entry is gone", what)
		}
		fail("")
		if k := keyOf(t, s); k.Equal(before) {
			t.Errorf("%s fails: later the key is still %+v", what, k)
		}
	}
}

// K6: a write is refused if its entry cannot be made, or not be put on disk, and
// nothing is left of it.
func TestK6Begin(t *testing.T) {
	for _, what := range []string{"write entry", "sync file", "rename entry", "sync entry"} {
		path := t.TempDir()
		step, fail := failing()
		s := openWith(t, path, holdfast.MinTTL, step)
		before := keyOf(t, s)
		fail(what)
		err := s.Write(t.Context(), func(context.Context) error { t.Errorf("%s fails: the write was begun", what); return nil })
		if !errors.Is(err, errFault) {
			t.Errorf("%s fails: Write: %v, want that error", what, err)
		}
		fail("")
		if k := keyOf(t, s); !k.Equal(before) {
			t.Errorf("%s fails: the key has changed", what)
		}
		if left, _ := os.ReadDir(filepath.Join(path, "state")); len(left) > 2 {
			t.Errorf("%s fails: %v is left", what, left)
		}
	}
	s := openDir(t, filepath.Join(t.TempDir(), "missing"), nil)
	if _, err := s.Begin(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Begin in a directory that is not there: %v", err)
	}
	if k, err := s.Key(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there has the key %+v, error %v", k, err)
	}
}

// K7: the new key is on disk before the entry goes, and the entry is before the
// write begins.
func TestK7(t *testing.T) {
	path := t.TempDir()
	var steps []string
	key := func() string { text, _ := os.ReadFile(filepath.Join(path, "state/key")); return string(text) }
	before := ""
	s := openWith(t, path, holdfast.MinTTL, func(what string) error {
		steps = append(steps, what)
		if what == "remove entry" && key() == before {
			t.Errorf("the entry goes before the key has changed")
		}
		return nil
	})
	expect := func(when, want string) {
		t.Helper()
		if got := strings.Join(steps, ", "); got != want {
			t.Errorf("%s: steps %s; want %s", when, got, want)
		}
		steps = nil
	}
	anyKey(t, s)
	steps = nil
	before = key()
	w := begin(t, s)
	expect("Begin", "write entry, sync file, rename entry, sync entry")
	if err := w.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("End", "write key, sync file, rename key, sync key, remove entry")
	before = key()
	plant(t, path, "pending/"+nameOf(2*time.Second), "{}", 2*time.Hour)
	anyKey(t, s)
	expect("Key after a death", "probe, read entry, write key, sync file, rename key, sync key, remove entry")
}

// K8: Clear changes the key and removes the dead; writers at work stay, whatever
// program they are.
func TestK8(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	w := begin(t, s)
	alive := plant(t, path, "pending/alive", "", 50*time.Minute)
	dead := plant(t, path, "pending/dead", "", 70*time.Minute)
	torn := plant(t, path, temporary+"torn", "", 70*time.Minute)
	fresh := plant(t, path, temporary+"fresh", "", 0)
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{alive: true, dead: false, torn: false, fresh: true} {
		if _, err := os.Stat(name); err == nil != want {
			t.Errorf("after Clear %s is there: %v", filepath.Base(name), err == nil)
		}
	}
	k := anyKey(t, s)
	if !k.Writing || k.ID == before.ID {
		t.Errorf("after Clear the key is %+v, and was %+v", k, before)
	}
	if err := w.End(t.Context()); err != nil {
		t.Errorf("a writer at work: %v", err)
	}
	os.Remove(alive)
	before = keyOf(t, s)
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k := keyOf(t, s); k.ID == before.ID {
		t.Errorf("after Clear the key is still %+v", k)
	}
}

// K9: a key that comes back with a backup is another, though it reads the same.
func TestK9(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	name := filepath.Join(path, "state/key")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	backup, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, restore := range []func() error{
		func() error { return os.WriteFile(name, backup, 0o644) },
		func() error { os.Remove(name); return os.WriteFile(name, backup, 0o644) },
		func() error { // where it was, as a program does that writes in place
			before = keyOf(t, s)
			time.Sleep(20 * time.Millisecond) // times of files may have that grain
			return errors.Join(os.WriteFile(name, []byte("another-key"), 0o644), os.WriteFile(name, backup, 0o644))
		},
	} {
		if err := restore(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		k := keyOf(t, s)
		if k.ID != before.ID {
			t.Fatalf("the restored key is %+v, want %q", k, before.ID)
		}
		if k.Equal(before) {
			t.Error("a key from a backup passes for the one that it was")
		}
		if !k.Equal(keyOf(t, openDir(t, path, nil))) {
			t.Error("two readers have different keys")
		}
	}
}

// K10: all who find no key get the same.
func TestK10(t *testing.T) {
	for range 30 {
		path := t.TempDir()
		var all sync.WaitGroup
		keys := make([]Key, 8)
		for i := range keys {
			s := openDir(t, path, nil)
			all.Go(func() { keys[i], _ = s.Key(context.Background()) })
		}
		all.Wait()
		for i, k := range keys {
			if k.ID == "" || k.Writing || !k.Equal(keys[0]) {
				t.Fatalf("reader %d has %+v, and the first has %+v", i, k, keys[0])
			}
		}
	}
}
