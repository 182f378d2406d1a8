//go:build linux || darwin

package state

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestCacheWorker is another process: it waits for a line, then asks the cache
// for the same blob many times at once, and tells what it got. Each fill adds a
// line to a log, and waits for another line if it is to.
func TestCacheWorker(t *testing.T) {
	top := os.Getenv("HOLDFAST_TEST_CACHE")
	if top == "" {
		return // nobody has started it
	}
	c, err := OpenCache(filepath.Join(top, "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Dir(top, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	wait := in.Text() == "wait"
	var all sync.WaitGroup
	for range 25 {
		all.Go(func() {
			fmt.Println("got", get(t, c, s, "refs", func(ctx context.Context, w io.Writer) error {
				log, err := os.OpenFile(filepath.Join(top, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
				if err != nil {
					return err
				}
				fmt.Fprintln(log, os.Getpid())
				log.Close()
				io.WriteString(w, strings.Repeat("x", 100000))
				if fmt.Println("inside"); wait {
					in.Scan()
				}
				time.Sleep(100 * time.Millisecond) // so that the others come
				_, err = io.WriteString(w, "done")
				return err
			})[100000:])
		})
	}
	all.Wait()
}

func cacheWorker(t *testing.T, top string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCacheWorker$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "HOLDFAST_TEST_CACHE="+top)
	return start(t, cmd)
}

// cacheFills is how many fills there were.
func cacheFills(t *testing.T, top string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// Of a hundred that ask at once, in four processes, one fills.
func TestCacheProcesses(t *testing.T) {
	top := t.TempDir()
	var workers []*process
	for range 4 {
		workers = append(workers, cacheWorker(t, top))
	}
	for _, w := range workers {
		io.WriteString(w.in, "go\n")
	}
	got := 0
	for _, w := range workers {
		for w.out.Scan() {
			if w.out.Text() == "got done" {
				got++
			}
		}
	}
	if got != 100 {
		t.Errorf("%d of 100 have got the blob", got)
	}
	if n := cacheFills(t, top); n != 1 {
		t.Errorf("they fill %d times, want once", n)
	}
	if _, other := files(t, &Cache{dir: filepath.Join(top, "cache")}); other != nil {
		t.Errorf("they leave %q", other)
	}
}

// A process that is killed while it fills leaves nothing that is served, nobody waiting,
// and no file behind.
func TestCacheKilled(t *testing.T) {
	top := t.TempDir()
	c, err := OpenCache(filepath.Join(top, "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := Dir(top, nil)
	if err != nil {
		t.Fatal(err)
	}
	get(t, c, s, "another", says("x")) // so that there is a count, and nothing to sweep for
	w := cacheWorker(t, top)
	io.WriteString(w.in, "wait\n")
	for w.out.Scan() && w.out.Text() != "inside" {
	}
	waiting := make(chan string)
	go func() { waiting <- get(t, c, s, "refs", says("whole")) }()
	select {
	case got := <-waiting:
		t.Errorf("while another fills: got %.20q", got)
	case <-time.After(100 * time.Millisecond):
	}
	if blobs, other := files(t, c); len(blobs) != 1 || len(other) != 2 {
		t.Errorf("while it is filled there are blobs %q and files %q, want another and a fill with its lock", blobs, other)
	}
	w.Process.Kill()
	w.Wait()
	if got := <-waiting; got != "whole" {
		t.Errorf("after the death got %.20q", got)
	}
	if blobs, other := files(t, c); len(blobs) != 2 || other != nil {
		t.Errorf("the dead one leaves %q beside the blobs %q", other, blobs)
	}
}

// A process that stands still while it fills is not waited for, and spoils nothing when it
// goes on.
func TestCacheFrozen(t *testing.T) {
	top := t.TempDir()
	w := cacheWorker(t, top)
	io.WriteString(w.in, "wait\n")
	for w.out.Scan() && w.out.Text() != "inside" {
	}
	if err := w.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCache(filepath.Join(top, "cache"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.beat = 20 * time.Millisecond
	s, err := Dir(top, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("x", 100000) + "done"
	for range 2 {
		if got := get(t, c, s, "refs", says(want)); got != want {
			t.Errorf("beside a frozen one got %.20q", got)
		}
	}
	if _, err := os.Stat(filepath.Join(c.dir, countName)); err != nil {
		t.Errorf("what is filled beside a frozen one is not kept: %v", err)
	}
	if err := w.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w.in, "go on\n")
	for w.out.Scan() {
		if text := w.out.Text(); strings.HasPrefix(text, "got") && text != "got done" {
			t.Errorf("the frozen one %s", text)
		}
	}
	if got := get(t, c, s, "refs", not(t)); got != want {
		t.Errorf("then got %.20q", got)
	}
	if blobs, other := files(t, c); len(blobs) != 1 || other != nil {
		t.Errorf("then there are %q and %q", blobs, other)
	}
}
