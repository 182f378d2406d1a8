//go:build linux

package holdfast_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// proofIn acquires a lock with a runtime directory.
func proofIn(t *testing.T, dir string) (*holdfast.Client, *holdfast.Lock) {
	t.Helper()
	c := newClient(t, memory.New(), &holdfast.Options{RuntimeDir: dir})
	l, err := c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, l
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// The proof of life is one file for all locks of a session, named after it,
// which nobody else can read, and which goes with the client.
func TestProofFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	c, l := proofIn(t, dir)
	if l.Proof() == nil {
		t.Skip("the temporary directory is on a file system where there is no proof")
	}
	again, err := c.Acquire(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if again.Proof() != l.Proof() {
		t.Error("two locks of one session have two proofs")
	}
	info, err := c.Show(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got := files(t, dir); len(got) != 1 || got[0] != info.Holders[0].Owner.Session {
		t.Errorf("the files are %q, want one named after the session, %q", got, info.Holders[0].Owner.Session)
	}
	stat, err := os.Stat(dir)
	if err != nil || stat.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, error %v", stat.Mode(), err)
	}
	stat, err = l.Proof().Stat()
	if err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, error %v", stat.Mode(), err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("after Close the files are %q", got)
	}
}

// A runtime directory that others could change is not used: locks work, and
// only the TTL decides.
func TestProofRefused(t *testing.T) {
	own := t.TempDir()
	mode := func(name string, mode os.FileMode) string {
		dir := filepath.Join(own, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	good := mode("good", 0o700)
	link, file := filepath.Join(own, "link"), filepath.Join(own, "file")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, dir := range map[string]string{
		"writable by the group":  mode("group", 0o770),
		"readable by the group":  mode("readable", 0o750),
		"writable by all":        mode("all", 0o777),
		"sticky, as /tmp":        mode("sticky", 0o777|os.ModeSticky),
		"a symbolic link":        link,
		"a file":                 file,
		"in no directory":        filepath.Join(own, "no", "such"),
		"on another file system": "/proc",
		"none":                   os.DevNull,
	} {
		if _, l := proofIn(t, dir); l.Proof() != nil {
			t.Errorf("a directory that is %s is used for proofs: %s", what, l.Proof().Name())
		}
	}
	if got := files(t, good); len(got) != 0 {
		t.Errorf("through the link came %q", got)
	}
}

// Whoever looks at sessions of this host, is refused because of them or waits for them keeps none of
// their files open when they have ended.
func TestProofsAreClosed(t *testing.T) {
	t.Run("looks", func(t *testing.T) { proofsAreClosed(t, 0) })
	t.Run("waits", func(t *testing.T) { proofsAreClosed(t, time.Second) })
}

// proofsAreClosed is TestProofsAreClosed of a client that waits for so long; 0: not at all.
func proofsAreClosed(t *testing.T, wait time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		store := memory.New()
		options := &holdfast.Options{RuntimeDir: dir}
		looker, blocker := newClient(t, store, options), newClient(t, store, options)
		defer looker.Close()
		defer blocker.Close()
		last, err := blocker.Acquire(t.Context(), "last")
		if err != nil {
			t.Fatal(err)
		}
		if last.Proof() == nil {
			t.Skip("the temporary directory is on a file system where there is no proof")
		}
		waits := make(chan error, 1)
		go func() { // its poll loop goes on all the time
			if wait == 0 {
				waits <- nil
				return
			}
			l, err := looker.Acquire(t.Context(), "last")
			if err == nil {
				err = l.Release(t.Context())
			}
			waits <- err
		}()
		for i := range 20 {
			c := newClient(t, store, options)
			name := fmt.Sprint(i)
			if _, err := c.Acquire(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if info, err := looker.Show(t.Context(), name); err != nil || info.Holders[0].Dead {
				t.Fatal(info, err)
			}
			for range looker.Sessions(t.Context()) {
			}
			if _, err := looker.Acquire(t.Context(), name, holdfast.MaxWait(wait)); !errors.Is(err, holdfast.ErrHeld) {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(holdfast.DefaultTTL)
		var open []string
		for _, name := range files(t, "/proc/self/fd") {
			if to, err := os.Readlink(filepath.Join("/proc/self/fd", name)); err == nil && strings.HasPrefix(to, dir) {
				open = append(open, to)
			}
		}
		if len(open) > 3 { // of the two clients, and of the one that is waited for
			t.Errorf("the open files are %q", open)
		}
		if err := last.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-waits; err != nil {
			t.Fatal(err)
		}
	})
}
