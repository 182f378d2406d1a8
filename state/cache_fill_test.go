//go:build linux || darwin

package state

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// A fill that panics leaves nothing, and those who wait for it go on.
func TestCacheFillPanics(t *testing.T) {
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	inside, others := make(chan bool), make(chan string)
	go func() {
		defer func() { recover() }()
		c.Get(t.Context(), s, "refs", func(ctx context.Context, w io.Writer) error {
			says("half")(ctx, w)
			inside <- true
			<-inside
			panic("out of refs")
		})
	}()
	<-inside
	for range 3 {
		go func() { others <- get(t, c, s, "refs", says("whole")) }()
	}
	inside <- true
	for range 3 {
		if got := <-others; got != "whole" {
			t.Errorf("after a panic got %q", got)
		}
	}
	if blobs, other := files(t, c); len(blobs) != 1 || other != nil {
		t.Errorf("a panic leaves %q beside the blob %q", other, blobs)
	}
}

// A fill whose writer failed is not kept, whatever the fill makes of that, and
// what it leaves behind cannot write on.
func TestCacheWriter(t *testing.T) {
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	ctx, cancel := context.WithCancel(t.Context())
	b, err := c.Get(ctx, s, "refs", func(ctx context.Context, w io.Writer) error {
		says("half")(ctx, w)
		cancel()
		if _, err := w.Write([]byte("more")); !errors.Is(err, context.Canceled) {
			t.Errorf("a write after the context ended: %v", err)
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || b != nil {
		t.Errorf("a fill that was canceled: %v, %v", b, err)
	}
	if blobs, other := files(t, c); blobs != nil || other != nil {
		t.Errorf("it leaves %q and %q", blobs, other)
	}
	var left io.Writer
	if got := get(t, c, s, "refs", func(ctx context.Context, w io.Writer) error {
		left = w
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("ten goroutines that fill: %v", r)
					}
				}()
				for range 50 {
					says(strings.Repeat("x", 10000))(ctx, w)
				}
			})
		}
		all.Wait()
		return nil
	}); got != strings.Repeat("x", 5000000) {
		t.Errorf("ten goroutines fill %d bytes", len(got))
	}
	if _, err := left.Write([]byte("late")); err == nil {
		t.Error("a write after the fill has returned succeeds")
	}
	if got := get(t, c, s, "refs", not(t)); len(got) != 5000000 {
		t.Errorf("then the blob has %d bytes", len(got))
	}
}

// A caller that gives up ends its own fill; those who waited for it fill anew, once.
func TestCacheFillCanceled(t *testing.T) {
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	ctx, cancel := context.WithCancel(t.Context())
	inside, first := make(chan bool), make(chan error)
	go func() {
		_, err := c.Get(ctx, s, "refs", func(ctx context.Context, w io.Writer) error {
			inside <- true
			<-ctx.Done()
			return errors.New("signal: killed")
		})
		first <- err
	}()
	<-inside
	var all sync.WaitGroup
	fills := make(chan bool, 20)
	for range 20 {
		all.Go(func() {
			if got := get(t, c, s, "refs", func(ctx context.Context, w io.Writer) error {
				fills <- true
				time.Sleep(10 * time.Millisecond)
				return says("whole")(ctx, w)
			}); got != "whole" {
				t.Errorf("got %q", got)
			}
		})
	}
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := c.Get(short, s, "refs", not(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who waits for 10 ms gets %v", err)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("who gave up gets %v", err)
	}
	all.Wait()
	if len(fills) != 1 {
		t.Errorf("%d of those who waited fill, want one", len(fills))
	}
}

// However many give up one after the other, the rest fill once.
func TestCacheFillsCanceled(t *testing.T) {
	const n, giveUp = 10, 4
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	inside, goOn := make(chan context.CancelFunc, n), make(chan bool)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b, err := c.Get(ctx, s, "refs", func(ctx context.Context, w io.Writer) error {
				inside <- cancel
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-goOn:
					return says("whole")(ctx, w)
				}
			})
			if err == nil {
				b.Close()
			}
		})
	}
	for range giveUp {
		(<-inside)()
	}
	<-inside
	close(goOn)
	all.Wait()
	if more := len(inside); more > 0 {
		t.Errorf("after %d gave up %d fill, want one", giveUp, more+1)
	}
}

// Fills that fail slowly are not waited for one after the other.
func TestCacheWaitsForTwo(t *testing.T) {
	const n = 10
	for _, apart := range []bool{false, true} {
		name := "together"
		if apart {
			name = "apart" // as in so many processes
		}
		t.Run(name, func(t *testing.T) {
			c, f := newCache(t, nil), newFake("repo")
			bad := errors.New("git has no time")
			asked, inside, fail := make(chan bool, 10*n), make(chan bool, n), make(chan bool, n)
			f.ask = func() { asked <- true }
			var all sync.WaitGroup
			for range n {
				c := c
				if apart {
					var err error
					if c, err = OpenCache(c.dir, nil); err != nil {
						t.Fatal(err)
					}
					defer c.Close()
				}
				all.Go(func() {
					if _, err := c.Get(t.Context(), &State{f}, "refs", func(context.Context, io.Writer) error {
						inside <- true
						<-fail
						return bad
					}); !errors.Is(err, bad) {
						t.Errorf("got %v", err)
					}
				})
			}
			for range n {
				<-asked
			}
			// Two fail; the others are to be inside at once then, save for those
			// that came late.
			fills, failed := 0, 0
			for late := 0; fills < n; {
				select {
				case <-inside:
					if fills++; failed < 2 {
						failed++
						fail <- true
					}
				case <-time.After(2 * time.Second):
					if late++; late == 3 {
						t.Errorf("%d of %d fill, and the others wait for one that will fail", fills, n)
					}
					for ; failed < fills; failed++ {
						fail <- true
					}
				}
			}
			for ; failed < n; failed++ {
				fail <- true
			}
			all.Wait()
		})
	}
}

// Another process is waited for as long as it is at work.
func TestCacheSlow(t *testing.T) {
	c := newCache(t, nil)
	other, err := OpenCache(c.dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c.beat, other.beat = 100*time.Millisecond, 400*time.Millisecond
	s := &State{newFake("repo")}
	inside, done := make(chan bool), make(chan string)
	go func() {
		done <- get(t, c, s, "refs", func(ctx context.Context, w io.Writer) error {
			inside <- true
			time.Sleep(3 * time.Second) // longer than who stands still is waited for
			return says("slow")(ctx, w)
		})
	}()
	<-inside
	if got := get(t, other, s, "refs", not(t)); got != "slow" {
		t.Errorf("who waited got %q", got)
	}
	<-done
}

// A sweep does not take a fill that is under way for one that has died.
func TestCacheSweptWhileFilling(t *testing.T) {
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	get(t, c, s, "refs", func(ctx context.Context, w io.Writer) error {
		other, err := OpenCache(c.dir, nil)
		if err != nil {
			return err
		}
		defer other.Close()
		_, err = other.sweep(other.directory(), 0)
		return errors.Join(err, says("whole")(ctx, w))
	})
	if got := get(t, c, s, "refs", not(t)); got != "whole" {
		t.Errorf("got %q", got)
	}
}

// A caller that asks after a write has ended never gets what was read before, not by
// waiting either.
func TestCacheJoinsNothingOlder(t *testing.T) {
	c, f := newCache(t, nil), newFake("repo")
	s := &State{f}
	inside, first := make(chan bool), make(chan string)
	go func() {
		first <- get(t, c, s, "refs", func(ctx context.Context, w io.Writer) error {
			inside <- true
			<-inside
			return says("old")(ctx, w)
		})
	}()
	<-inside
	f.set(Key{ID: "two", stamp: "1"})
	for range 2 {
		if got := get(t, c, s, "refs", says("new")); got != "new" {
			t.Errorf("after the write got %q", got)
		}
	}
	inside <- true
	if got := <-first; got != "old" {
		t.Errorf("who asked before the write got %q", got)
	}
	if got := get(t, c, s, "refs", not(t)); got != "new" {
		t.Errorf("then got %q", got)
	}
}

// A gibibyte is filled and read without being in memory.
func TestCacheStreams(t *testing.T) {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm") // spare the disk
	}
	dir, err := os.MkdirTemp("", "holdfast-cache")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c, err := OpenCache(filepath.Join(dir, "c"), &CacheOptions{MaxBytes: 2 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := &State{newFake("repo")}
	size, chunk := int64(1)<<30, make([]byte, 256<<10)
	if testing.Short() {
		size = 64 << 20
	}
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	before := allocated()
	for i := range 2 {
		b, err := c.Get(t.Context(), s, "refs", func(_ context.Context, w io.Writer) error {
			if i > 0 {
				t.Error("it was not kept")
			}
			for n := int64(0); n < size; n += int64(len(chunk)) {
				if _, err := w.Write(chunk); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, b)
		if b.Close(); err != nil || n != size {
			t.Errorf("read %d bytes, %v, want %d", n, err, size)
		}
	}
	if used := allocated() - before; used > 4<<20 {
		t.Errorf("%d MiB are filled and read with %d KiB of memory in all", size>>20, used>>10)
	}
}

// A blob that is open is read to its end, whatever becomes of it.
func TestCacheSlowReader(t *testing.T) {
	c := newCache(t, nil)
	s := &State{newFake("repo")}
	text := strings.Repeat("0123456789", 100000)
	get(t, c, s, "refs", says(text))
	b, err := c.Get(t.Context(), s, "refs", not(t))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var got strings.Builder
	io.CopyN(&got, b, 100)
	c.sweep(c.directory(), 0)
	if blobs, _ := files(t, c); blobs != nil {
		t.Fatalf("%q are left", blobs)
	}
	get(t, c, s, "refs", says("another"))
	c.Close()
	if _, err := io.Copy(&got, b); err != nil || got.String() != text {
		t.Errorf("read %d bytes, %v, want all %d", got.Len(), err, len(text))
	}
	if _, err := c.Get(t.Context(), s, "refs", not(t)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a cache that was closed: %v", err)
	}
}
