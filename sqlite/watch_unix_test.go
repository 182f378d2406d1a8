//go:build unix

package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"golang.org/x/sys/unix"
)

// watching runs Watch and returns what it calls; stop ends it.
func watching(t *testing.T, s *Store) (keys chan driver.Key, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	keys, done := make(chan driver.Key, 10000), make(chan error, 1)
	go func() { done <- s.Watch(ctx, nil, func(h driver.Notification) { keys <- h.Key }) }()
	return keys, func() error {
		cancel()
		return <-done
	}
}

func wake(t *testing.T, s *Store, name string) {
	t.Helper()
	k := driver.Key{Name: name}
	r, err := s.Load(t.Context(), []driver.Key{k}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	old := r[0].Version
	if old == 0 {
		old = driver.IfEmpty
	}
	o, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: old, Value: []byte("x"), Notify: driver.Everyone}})
	if err != nil || !o[0].Won {
		t.Fatalf("%+v, error %v", o, err)
	}
}

// begun waits until Watch is woken, of which it tells itself.
func begun(keys chan driver.Key) {
	for k := range keys {
		if k == (driver.Key{}) {
			return
		}
	}
}

// What lies in the directory of pipes is not trusted, and does no harm.
func TestStrangePipes(t *testing.T) {
	s := fresh(t)
	keys, stop := watching(t, s)
	begun(keys)
	mine := pipes(t, s)
	if len(mine) != 1 {
		t.Fatalf("pipes of one watcher: %q", mine)
	}
	dir := filepath.Dir(mine[0])
	for name, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, mine[0]: 0o600 | os.ModeNamedPipe} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, error %v, want %v", name, info.Mode(), err, want)
		}
	}

	secret := filepath.Join(t.TempDir(), "secret")
	for _, err := range []error{
		os.WriteFile(secret, nil, 0o600),
		os.Symlink(secret, filepath.Join(dir, "LINK")),
		os.WriteFile(filepath.Join(dir, "FILE"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, "DIRECTORY"), 0o700),
		unix.Mkfifo(filepath.Join(dir, "DEAD"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	other := open(t, s.path, nil)
	wake(t, other, "through the pipe")
	if k := <-keys; k != (driver.Key{Name: "through the pipe"}) {
		t.Errorf("woken for %v", k)
	}
	for _, name := range []string{secret, filepath.Join(dir, "FILE")} {
		if content, err := os.ReadFile(name); err != nil || len(content) != 0 {
			t.Errorf("%s has been written: %q, error %v", name, content, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "DEAD")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pipe that nobody reads is still there: %v", err)
	}

	// Rubbish means that anything may have changed.
	p, err := os.OpenFile(mine[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.WriteString("\xff\xff\xff"); err != nil {
		t.Fatal(err)
	}
	if k := <-keys; k != (driver.Key{}) {
		t.Errorf("rubbish woke %v", k)
	}
	wake(t, other, "after rubbish")
	if k := <-keys; k != (driver.Key{Name: "after rubbish"}) {
		t.Errorf("woken for %v", k)
	}

	if err := stop(); err != context.Canceled {
		t.Errorf("Watch returned %v, want %v", err, context.Canceled)
	}
	if _, err := os.Lstat(mine[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pipe is still there after Watch: %v", err)
	}
}

// Where pipes cannot be made Watch says so.
func TestWatchImpossible(t *testing.T) {
	s := fresh(t)
	if err := os.WriteFile(s.path+"-wake", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := s.Watch(t.Context(), nil, func(driver.Notification) {})
	if err == nil || !strings.HasPrefix(err.Error(), "waiters poll, for they cannot be woken: ") {
		t.Errorf("got %v", err)
	}
	wake(t, s, "a")
}
