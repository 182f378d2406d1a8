package sqlite

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of a few pages.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("NOT TESTED, a full disk: mounting a small one: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// On a full disk a write fails cleanly, and succeeds when there is space again.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	s := open(t, filepath.Join(dir, "locks.db"), &Options{Create: true})
	version := hold(t, s, "a", `{}`)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	write := driver.Write{Key: driver.Key{Name: "a"}, Old: version, Value: bytes.Repeat([]byte("x"), 20000)}
	other := driver.Write{Key: driver.Key{Name: "b"}, Old: driver.IfEmpty, Value: write.Value}
	for _, writes := range [][]driver.Write{{write}, {write, other}, {write}} {
		_, err := s.CompareAndSwap(t.Context(), writes)
		if want := s.path + ": disk is full; nothing was changed"; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Fatalf("got %v, want %s", err, want)
		}
		r, err := s.Load(t.Context(), []driver.Key{write.Key, other.Key}, driver.Fresh)
		if err != nil || r[0].Version != version || r[1].Version != 0 {
			t.Fatalf("after it: %+v, error %v; want version %d and none", r, err, version)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if o, err := s.CompareAndSwap(t.Context(), []driver.Write{write, other}); err != nil || !o[0].Won || !o[1].Won {
		t.Fatalf("with space again: %+v, error %v", o, err)
	}
}

// asAnyone runs f without the rights of root, on a thread that is given up
// afterwards.
func asAnyone(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if err := unix.Setfsuid(65534); err != nil {
				done <- err
				return
			}
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Skipf("NOT TESTED: giving up root: %v", err)
	}
}

// A client that may not write says so by name, and never takes it for a missing file.
func TestPermissions(t *testing.T) {
	for _, test := range []struct {
		name      string
		file, dir fs.FileMode
		want      string
	}{
		{"unreadable file", 0, 0o777, "open %: permission denied"},
		{"read-only file", 0o444, 0o777, "open %: permission denied"},
		{"read-only directory", 0o666, 0o555, "SQLite keeps its log beside the database: write %: permission denied"},
		{"closed directory", 0o666, 0, "stat %: permission denied"},
	} {
		t.Run(test.name, func(t *testing.T) {
			top, err := os.MkdirTemp("", "holdfast")
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(top, "dir")
			t.Cleanup(func() {
				os.Chmod(dir, 0o700)
				os.RemoveAll(top)
			})
			if err := errors.Join(os.Chmod(top, 0o755), os.Mkdir(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "locks.db")
			if err := Migrate(t.Context(), path); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Chmod(path, test.file), os.Chmod(dir, test.dir)); err != nil {
				t.Fatal(err)
			}
			subject := path
			if strings.Contains(test.want, "write") {
				subject = dir
			}
			asAnyone(t, func() {
				_, err := Open(t.Context(), path, nil)
				if want := strings.ReplaceAll(test.want, "%", subject); err == nil || err.Error() != want || !errors.Is(err, fs.ErrPermission) {
					t.Errorf("got %v, want %s", err, want)
				}
			})
		})
	}
}

// A client that cannot see any more whether the file is still the one that was opened does
// not go on with it.
func TestFileUnseen(t *testing.T) {
	s := fresh(t)
	if _, err := s.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(s.path)
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700)
	asAnyone(t, func() {
		if _, err := s.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got %v, want that it cannot be seen", err)
		}
	})
}
