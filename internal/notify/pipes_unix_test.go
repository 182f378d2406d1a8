//go:build unix

package notify

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"golang.org/x/sys/unix"
)

// A writer never waits for a watcher that does not read, and the watcher then
// hears that anything may have changed.
func TestFullPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, other := &Board{Path: path}, &Board{Path: path}
	ctx, cancel := context.WithCancel(t.Context())
	keys, done := make(chan driver.Key, 10000), make(chan error, 1)
	go func() { done <- b.Watch(ctx, func(n driver.Notification) { keys <- n.Key }) }()
	for k := range keys {
		if k == (driver.Key{}) { // it has begun
			break
		}
	}
	var w *watcher
	for _, w = range b.watchers {
	}
	w.mu.Lock() // as if it were still busy with the last call
	long := driver.Notification{Key: driver.Key{Name: strings.Repeat("x", 255)}, To: driver.Everyone}
	for range 1000 {
		other.Tell([]driver.Notification{long})
	}
	w.mu.Unlock()
	for k := range keys {
		if k == (driver.Key{}) {
			break
		}
	}
	cancel()
	if err := <-done; err != context.Canceled {
		t.Error(err)
	}
}

// A name that does not fit into a message of any version means that anything may have changed.
func TestLongName(t *testing.T) {
	for _, size := range []int{256, 1024} {
		sent := message(driver.Notification{Key: driver.Key{Space: 1, Name: strings.Repeat("x", size)}, To: driver.Everyone})
		if all, left := split(sent); len(all) != 1 || all[0] != (driver.Notification{}) || len(left) != 0 {
			t.Errorf("a name of %d bytes is sent as %q, and read as %+v, left %q", size, sent, all, left)
		}
	}
}

func TestSplit(t *testing.T) {
	k := []driver.Notification{{Key: driver.Key{Space: 1, Name: "a"}, To: driver.Everyone}, {Key: driver.Key{Name: strings.Repeat("\x00", 255)}}}
	sent := append(message(k[0]), message(k[1])...)
	for cut := range sent {
		first, rest := split(sent[:cut:cut])
		second, left := split(append(rest, sent[cut:]...))
		if all := append(first, second...); len(all) != 2 || all[0] != k[0] || all[1] != k[1] || len(left) != 0 {
			t.Fatalf("cut at %d: got %+v, left %q", cut, all, left)
		}
	}
}

// The pipe of a process that died before it had given it its name goes; one that is being made stays.
func TestPipesWithoutName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dead, young := filepath.Join(path+"-wake", ".DEAD"), filepath.Join(path+"-wake", ".YOUNG")
	if err := os.Mkdir(path+"-wake", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, pipe := range []string{dead, young} {
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if old := time.Now().Add(-2 * time.Minute); os.Chtimes(dead, old, old) != nil {
		t.Fatal("the time of a pipe cannot be set")
	}
	(&Board{Path: path}).Tell([]driver.Notification{{Key: driver.Key{Name: "x"}, To: driver.Everyone}})
	if _, err := os.Lstat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pipe of a dead process is still there (%v)", err)
	}
	if _, err := os.Lstat(young); err != nil {
		t.Error(err)
	}
}
