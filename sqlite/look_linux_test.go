package sqlite

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// sees waits until the looker has seen something.
func sees(t *testing.T, out *bufio.Scanner, want string) {
	t.Helper()
	got := ""
	for out.Scan() {
		if got = out.Text(); got == want {
			return
		}
	}
	t.Fatalf("the looker has ended, and saw %s last, not %s", got, want)
}

// A user who may read the file, and nothing else, sees what is held: while others have it open, while
// nobody has, and when somebody has died with it. It makes nothing there.
func TestLook(t *testing.T) {
	for _, test := range []struct {
		name      string
		file, dir fs.FileMode
	}{
		{"directory of others", 0o644, 0o755},
		{"directory of everybody", 0o444, 0o777},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			top, err := os.MkdirTemp("", "holdfast") // t.TempDir is for its owner only
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(top) })
			dir := filepath.Join(top, "dir")
			path := filepath.Join(dir, "locks.db")
			if err := errors.Join(os.Chmod(top, 0o755), os.Mkdir(dir, 0o755), Migrate(t.Context(), path)); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Chmod(dir, test.dir), os.Chmod(path, test.file)); err != nil {
				t.Fatal(err)
			}
			_, out := process(t, "look", path)
			sees(t, out, `[]  true`)
			files := func() []string {
				names, err := filepath.Glob(filepath.Join(dir, "*"))
				if err != nil {
					t.Fatal(err)
				}
				return names
			}
			if got := files(); !slices.Equal(got, []string{path}) {
				t.Errorf("there is %q, want nothing but the file", got)
			}
			for i := range 3 {
				s, err := Open(t.Context(), path, nil)
				if err != nil {
					t.Fatal(err)
				}
				held := fmt.Sprintf("held %d", i)
				hold(t, s, "a", held)
				sees(t, out, `["a"] `+held+` true`)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				for range 100 { // also while others come and go
					s, err := Open(t.Context(), path, nil)
					if err != nil {
						t.Fatal(err)
					}
					hold(t, s, "b", held)
					hold(t, s, "b", "")
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}

			// The files of a process that has died are there as they were.
			s := open(t, path, nil)
			hold(t, s, "a", "by the dead")
			dead := filepath.Join(top, "dead")
			if err := os.Mkdir(dead, test.dir); err != nil {
				t.Fatal(err)
			}
			for _, name := range files() {
				text, err := os.ReadFile(name)
				if strings.HasSuffix(name, "-wake") {
					continue
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(dead, filepath.Base(name)), text, test.file)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			_, out = process(t, "look", filepath.Join(dead, "locks.db"))
			sees(t, out, `["a"] by the dead true`)
		})
	}
}

// A process that looks and locks is not in its own way.
func TestLookBesideWriter(t *testing.T) {
	s := fresh(t)
	path := s.path
	r := open(t, path, &Options{ReadOnly: true})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan error)
	for range 4 {
		go func() {
			for {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				if _, err := r.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	other, _ := process(t, "watch", path)
	defer other.Process.Kill()
	for range 200 {
		w, err := Open(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		hold(t, w, "a", "x")
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	for range 4 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A store that only looks refuses to write.
func TestLookWrites(t *testing.T) {
	s := fresh(t)
	hold(t, s, "a", "x")
	r := open(t, s.path, &Options{ReadOnly: true})
	if _, err := r.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "b"}, Old: driver.IfEmpty, Value: []byte("x")}}); err == nil {
		t.Error("it writes")
	}
	if got, err := r.Load(t.Context(), []driver.Key{{Name: "a"}}, driver.Fresh); err != nil || string(got[0].Value) != "x" {
		t.Errorf("after it: %+v, error %v", got, err)
	}
	if err := Verify(t.Context(), s.path); err != nil {
		t.Error(err)
	}
	if findings, err := r.Diagnose(t.Context()); err != nil {
		t.Errorf("%+v, error %v", findings, err)
	}
}
