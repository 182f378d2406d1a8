//go:build linux || darwin

package state

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// K11: what was planted as an entry or a key is no lease and no key, leads
// nowhere, and holds nobody up.
func TestK11(t *testing.T) {
	const secret = "do-not-read-me"
	planted := map[string]func(name, outside string) error{
		"FIFO":          func(name, _ string) error { return unix.Mkfifo(name, 0o666) },
		"symlink":       func(name, outside string) error { return os.Symlink(outside, name) },
		"dangling link": func(name, outside string) error { return os.Symlink(outside+"-not", name) },
		"link to FIFO": func(name, outside string) error {
			if err := unix.Mkfifo(outside+"-fifo", 0o666); err != nil {
				return err
			}
			return os.Symlink(outside+"-fifo", name)
		},
		"directory": func(name, _ string) error { return os.MkdirAll(name+"/full", 0o755) },
		"socket": func(name, _ string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name})
			if err == nil {
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			return err
		},
	}
	for what, plantIt := range planted {
		t.Run(what, func(t *testing.T) {
			path, err := os.MkdirTemp("", "k11") // short, for the socket
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(path)
			outside := filepath.Join(path, "secret")
			if err := os.WriteFile(outside, []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
			untouched, _ := os.Stat(outside)
			s := openDir(t, path, &DirOptions{Limit: time.Second})
			before := keyOf(t, s)
			if err := os.MkdirAll(path+"/state/pending", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := plantIt(path+"/state/pending/x", outside); err != nil {
				t.Fatal(err)
			}
			inTime(t, "Key with a planted entry", func() {
				if k := anyKey(t, s); k.Writing || !k.Equal(before) {
					t.Errorf("with it as an entry the key is %+v, and was %+v", k, before)
				}
				if err := s.Write(t.Context(), func(context.Context) error { return nil }); err != nil {
					t.Errorf("with it as an entry: %v", err)
				}
				if err := s.Clear(t.Context()); err != nil {
					t.Errorf("with it as an entry: Clear: %v", err)
				}
			})
			os.RemoveAll(outside + "-fifo")
			os.Remove(path + "/state/key")
			if err := plantIt(path+"/state/key", outside); err != nil {
				t.Fatal(err)
			}
			inTime(t, "Key with a planted key", func() {
				k, err := s.Key(t.Context())
				if what == "directory" {
					if err == nil || !strings.Contains(err.Error(), "remove it") {
						t.Errorf("with it as the key: %+v, error %v; want one that says what to do", k, err)
					}
				} else if err != nil || k.Writing || k.ID == secret || k.Equal(before) {
					t.Errorf("with it as the key: %+v, error %v", k, err)
				}
			})
			after, err := os.Stat(outside)
			if text, _ := os.ReadFile(outside); err != nil || string(text) != secret || !after.ModTime().Equal(untouched.ModTime()) {
				t.Errorf("what was outside is %q now, error %v", text, err)
			}
		})
	}
	for _, name := range []string{"state", "state/pending"} {
		path, elsewhere := t.TempDir(), t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(path, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
		s := openDir(t, path, nil)
		if k, err := s.Key(t.Context()); err == nil {
			t.Errorf("with a symbolic link as %s the key is %+v", name, k)
		}
		if _, err := s.Begin(t.Context()); err == nil {
			t.Errorf("with a symbolic link as %s a write begins", name)
		}
		if in, _ := os.ReadDir(elsewhere); len(in) > 0 {
			t.Errorf("%s led elsewhere: %v", name, in)
		}
	}
}

// K11: a file that can be changed under a second name is no key, and as an entry
// it ages like any other.
func TestK11HardLink(t *testing.T) {
	path := t.TempDir()
	s := openDir(t, path, nil)
	outside := filepath.Join(path, "outside")
	if err := os.WriteFile(outside, []byte("not-the-key"), 0o644); err != nil {
		t.Fatal(err)
	}
	keyOf(t, s)
	os.Remove(path + "/state/key")
	if err := os.Link(outside, path+"/state/key"); err != nil {
		t.Fatal(err)
	}
	if k := keyOf(t, s); k.ID == "not-the-key" {
		t.Errorf("the key is %+v", k)
	}
	if err := os.MkdirAll(path+"/state/pending", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(outside, path+"/state/pending/x"); err != nil {
		t.Fatal(err)
	}
	if k := anyKey(t, s); !k.Writing {
		t.Errorf("with a young entry the key is %+v", k)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(outside, old, old); err != nil {
		t.Fatal(err)
	}
	keyOf(t, openDir(t, path, nil))
	if text, err := os.ReadFile(outside); err != nil || string(text) != "not-the-key" {
		t.Errorf("what was outside is %q now, error %v", text, err)
	}
}

// K11: a crowd of entries takes no more than so many to be looked at in one go:
// of the dead all go in the end, and of what is none of a writer's it is said.
func TestK11Crowd(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	s := openDir(t, path, nil)
	before := keyOf(t, s)
	for i := range 2*maxPending + 10 {
		plant(t, path, fmt.Sprintf("pending/x%d", i), "", 2*time.Hour)
	}
	if k := keyOf(t, s); k.Equal(before) || len(entries(t, path)) > 0 {
		t.Errorf("after a crowd of the dead the key is %+v, and was %+v; %d entries", k, before, len(entries(t, path)))
	}
	if n := len(s.keeper.(*dir).seen); n > maxPending {
		t.Errorf("%d entries are remembered", n)
	}
	for i := range 2 * maxPending {
		if err := os.Symlink("x", filepath.Join(path, "state/pending", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if k, err := s.Key(t.Context()); err == nil || !strings.Contains(err.Error(), "remove them") {
		t.Errorf("in a crowd of links the key is %+v, error %v; want one that says what to do", k, err)
	}
	if err := s.Clear(t.Context()); err == nil || !strings.Contains(err.Error(), "remove them") {
		t.Errorf("in a crowd of links: Clear: %v; want one that says what to do", err)
	}
}
