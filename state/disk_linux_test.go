package state

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// mount mounts a file system for a test, and skips aloud where it may not.
func mount(t *testing.T, source, dir, kind string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, dir, kind, flags, data); err != nil {
		t.Skipf("NOT TESTED: mounting a %s: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// K6: on a full disk a write is refused, one that has begun cannot end, and
// leaves its entry; with space again it can, or a reader does it.
func TestFullDisk(t *testing.T) {
	path := t.TempDir()
	mount(t, "tmpfs", path, "tmpfs", 0, "size=256k")
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	w, w2 := begin(t, s), begin(t, s)
	filler := filepath.Join(path, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	if err := w.End(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("End on a full disk: %v", err)
	}
	if n := len(entries(t, path)); n != 2 {
		t.Errorf("%d entries, want both", n)
	}
	err := s.Write(t.Context(), func(context.Context) error { t.Error("a write was begun on a full disk"); return nil })
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Write on a full disk: %v", err)
	}
	// The first writer's proof is gone, and nobody can change the key for it.
	if k, err := s.Key(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk the key is %+v, error %v", k, err)
	}
	if n := len(entries(t, path)); n != 2 {
		t.Errorf("%d entries, want both", n)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if k := anyKey(t, s); !k.Writing || k.Equal(before) || len(entries(t, path)) != 1 {
		t.Errorf("with space again the key is %+v, and was %+v; entries: %q", k, before, entries(t, path))
	}
	if err := w.End(t.Context()); err != nil {
		t.Errorf("a second End: %v", err)
	}
	if err := w2.End(t.Context()); err != nil {
		t.Error(err)
	}
	keyOf(t, s)
	if left, _ := os.ReadDir(filepath.Join(path, "state")); len(left) != 2 {
		t.Errorf("%v is left", left)
	}
}

// K6: a rename that fails for real leaves the entry too.
func TestNoRoomForKey(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	w := begin(t, s)
	name := filepath.Join(path, "state/key")
	if err := os.MkdirAll(filepath.Join(name, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.End(t.Context()); !errors.Is(err, errNoRoom) {
		t.Errorf("End: %v", err)
	}
	if len(entries(t, path)) != 1 {
		t.Error("the entry is gone")
	}
	os.RemoveAll(name)
	keyOf(t, s)
}

// asAnyone runs f without the rights of root, on a thread that is given up
// afterwards.
func asAnyone(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED, another user: this is not root")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		if now, _ := unix.SetfsuidRetUid(-1); now != 65534 {
			done <- errors.New("still root")
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Skipf("NOT TESTED: giving up root: %v", err)
	}
}

// A user who may only read a directory reads the key, learns of writers, also that they
// have died, and is refused to write.
func TestReadOnly(t *testing.T) {
	top, err := os.MkdirTemp("", "readonly") // t.TempDir is for its owner only
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	check := func(s *State, path string) {
		before := keyOf(t, openDir(t, path, nil))
		w := begin(t, openDir(t, path, nil))
		asAnyone(t, func() {
			if k, err := s.Key(t.Context()); err != nil || !k.Writing || k.ID != before.ID {
				t.Errorf("while someone writes the key is %+v, error %v; want %+v", k, err, before)
			}
			if _, err := s.Begin(t.Context()); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
				t.Errorf("a write begins, error %v", err)
			}
			if err := s.Clear(t.Context()); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
				t.Errorf("Clear: %v", err)
			}
		})
		if err := w.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		asAnyone(t, func() {
			if k, err := s.Key(t.Context()); err != nil || k.Writing || k.Equal(before) {
				t.Errorf("after it the key is %+v, error %v, and was %+v", k, err, before)
			}
		})
		p := startRole(t, "write", path)
		p.line()
		p.kill()
		asAnyone(t, func() {
			if k, err := s.Key(t.Context()); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
				t.Errorf("with a dead writer the key is %+v, error %v", k, err)
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		path := filepath.Join(top, "a")
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chmod(path, 0o755), os.Chmod(top, 0o755)); err != nil {
			t.Fatal(err)
		}
		check(openDir(t, path, nil), path)
	})
	t.Run("mount", func(t *testing.T) {
		path, view := filepath.Join(top, "b"), filepath.Join(top, "view")
		if err := errors.Join(os.Mkdir(path, 0o755), os.Mkdir(view, 0o755)); err != nil {
			t.Fatal(err)
		}
		mount(t, path, view, "bind", unix.MS_BIND, "")
		if err := unix.Mount("", view, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Skipf("NOT TESTED: a read-only mount: %v", err)
		}
		check(openDir(t, view, nil), path)
	})
}

// An entry that others may not read, as mktemp makes it, counts by its age.
func TestUnreadableEntry(t *testing.T) {
	path, err := os.MkdirTemp("", "unreadable")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(path)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	keyOf(t, openDir(t, path, nil))
	name := plant(t, path, "pending/x", "", 0)
	if err := os.Chmod(name, 0); err != nil {
		t.Fatal(err)
	}
	s := openDir(t, path, nil)
	asAnyone(t, func() {
		if k, err := s.Key(t.Context()); err != nil || !k.Writing {
			t.Errorf("the key is %+v, error %v", k, err)
		}
	})
}

// What is made is for those who may use the directory, whatever the umask; names
// in a directory that all may write to are not.
func TestModes(t *testing.T) {
	for _, test := range []struct{ top, dir, file os.FileMode }{
		{0o700, 0o700, 0o600},
		{0o755, 0o755, 0o644},
		{0o770 | os.ModeSetgid, 0o770 | os.ModeSetgid, 0o640},
		{0o777 | os.ModeSticky, 0, 0},
	} {
		path := t.TempDir()
		if err := os.Chmod(path, test.top); err != nil {
			t.Fatal(err)
		}
		s := openDir(t, path, nil)
		keyOf(t, s)
		w := begin(t, s)
		for name, want := range map[string]os.FileMode{"state": test.dir, "state/pending": test.dir, "state/key": test.file, "entry": test.file} {
			name = filepath.Join(path, name)
			if filepath.Base(name) == "entry" {
				name = entries(t, path)[0]
			}
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			got := info.Mode() &^ os.ModeDir
			if want == 0 && got&0o022 != 0 || want != 0 && got != want {
				t.Errorf("in a directory of mode %v %s has %v, want %v", test.top, filepath.Base(name), got, want)
			}
		}
		if err := w.End(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
