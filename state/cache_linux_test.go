package state

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// On a full disk the cache gives up what it has, then goes elsewhere, and says so
// if there is no room either.
func TestCacheFullDisk(t *testing.T) {
	path, temp := t.TempDir(), t.TempDir()
	mount(t, "tmpfs", path, "tmpfs", 0, "size=1m")
	t.Setenv("TMPDIR", temp)
	c, err := OpenCache(filepath.Join(path, "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	old, young, giant := &State{newFake("old")}, &State{newFake("young")}, &State{newFake("giant")}
	text := strings.Repeat("0123456789", 70000)
	get(t, c, old, "refs", says(text))
	for range 2 {
		if got := get(t, c, young, "refs", says(text)); got != text {
			t.Errorf("where there is room for one: got %d bytes", len(got))
		}
	}
	if blobs, other := files(t, c); len(blobs) != 1 || other != nil {
		t.Errorf("where there is room for one there are %q and %q", blobs, other)
	}
	if got := get(t, c, young, "refs", not(t)); got != text {
		t.Errorf("then got %d bytes", len(got))
	}
	large := strings.Repeat(text, 3)
	if got := get(t, c, giant, "refs", says(large)); got != large {
		t.Errorf("where there is no room for it: got %d bytes", len(got))
	}
	check := func(dir string) {
		t.Helper()
		if blobs, other := files(t, &Cache{dir: dir}); blobs != nil || other != nil {
			t.Errorf("%s has %q and %q", dir, blobs, other)
		}
	}
	check(c.dir)
	check(temp)

	t.Setenv("TMPDIR", path)
	_, err = c.Get(t.Context(), giant, "refs", func(ctx context.Context, w io.Writer) error {
		says(large)(ctx, w)
		return nil // as if all were well
	})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "TMPDIR") || !strings.Contains(err.Error(), c.dir) {
		t.Errorf("where there is no room anywhere: %v", err)
	}
	check(c.dir)
	if got := get(t, c, young, "refs", says(text)); got != text {
		t.Errorf("with room again: got %d bytes", len(got))
	}
	if got := get(t, c, young, "refs", not(t)); got != text {
		t.Errorf("with room again: got %d bytes from the cache", len(got))
	}
}

// What a cache has is served also if it may only read; the rest is not kept.
func TestCacheReadOnly(t *testing.T) {
	path := t.TempDir()
	mount(t, "tmpfs", path, "tmpfs", 0, "size=1m")
	c, err := OpenCache(filepath.Join(path, "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, other := &State{newFake("repo")}, &State{newFake("other")}
	get(t, c, s, "refs", says("kept"))
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	again, err := OpenCache(c.dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, c := range []*Cache{c, again} {
		if got := get(t, c, s, "refs", not(t)); got != "kept" {
			t.Errorf("got %q", got)
		}
		if got := get(t, c, other, "refs", says("filled")); got != "filled" {
			t.Errorf("got %q", got)
		}
	}
}
