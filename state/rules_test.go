//go:build linux || darwin

package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// The tests of the files rules_… are named for the holes of the protocol as it was first
// described, K1 to K11. Each fails when the rule that closes the hole is taken
// out.

var errFault = errors.New("fault")

// openWith opens a state that calls step before each step.
func openWith(t testing.TB, path string, lease time.Duration, step func(what string) error) *State {
	t.Helper()
	s := openDir(t, path, &DirOptions{Lease: lease})
	s.keeper.(*dir).step = step
	return s
}

// failing fails a step from now on, until it is told "".
func failing() (step func(string) error, fail func(what string)) {
	var mu sync.Mutex
	var now string
	step = func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		if what == now {
			return fmt.Errorf("%s: %w", what, errFault)
		}
		return nil
	}
	return step, func(what string) {
		mu.Lock()
		defer mu.Unlock()
		now = what
	}
}

// plant puts a file of an age into a state's directory.
func plant(t testing.TB, path, name, text string, age time.Duration) string {
	t.Helper()
	name = filepath.Join(path, "state", name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if age != 0 {
		at := time.Now().Add(-age)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// inTime fails the test if fn hangs.
func inTime(t testing.TB, what string, fn func()) {
	t.Helper()
	done := make(chan bool)
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s hangs", what)
	}
}

// Names and texts of others never reach a message as they are.
func TestHostileNames(t *testing.T) {
	s := openDir(t, filepath.Join(t.TempDir(), "a\x1b[31m\n"), nil)
	_, err := s.Key(t.Context())
	_, begun := s.Begin(t.Context())
	for _, err := range []error{err, begun, s.Clear(t.Context())} {
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("the error is %v", err)
		}
	}
}
