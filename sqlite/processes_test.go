package sqlite

import (
	"bufio"
	"bytes"
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	load "github.com/holdfast-lock/holdfast/internal/busy"
)

// The test binary, started again with a role, is another process on the file.
var roles = map[string]func(ctx context.Context, s *Store) error{
	"count":  count,
	"scribe": scribe,
	"watch":  watch,
	"come":   come,
	"look":   look,
	"tell":   tell,
}

// sharedGroup is that of all of them where they are users of their own.
const sharedGroup = 60010

func TestMain(m *testing.M) {
	role := os.Getenv("HOLDFAST_TEST_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	ctx, opts := context.Background(), &Options{ReadOnly: role == "look"}
	uid, _ := strconv.Atoi(os.Getenv("HOLDFAST_TEST_UID"))
	groups := []int{sharedGroup}
	if opts.ReadOnly && os.Geteuid() == 0 {
		uid, groups = 65534, nil
	}
	if uid != 0 {
		if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
			panic(err)
		}
	}
	s, err := Open(ctx, os.Getenv("HOLDFAST_TEST_FILE"), opts)
	if err == nil {
		err = roles[role](ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// look prints what a key holds whenever it has changed, as a user who may only read.
func look(ctx context.Context, s *Store) error {
	last := ""
	for {
		names, err := s.Keys(ctx, driver.Names, "", 10)
		if err != nil {
			return err
		}
		r, err := s.Load(ctx, []driver.Key{{Name: "a"}, {Name: "b"}}, driver.Fresh)
		if err != nil {
			return err
		}
		if now := fmt.Sprintf("%q %s %v", names, r[0].Value, r[0].Age >= 0); now != last {
			fmt.Println(now)
			last = now
		}
		time.Sleep(time.Millisecond)
	}
}

// process starts another process on the file.
func process(t *testing.T, role, path string) (p *exec.Cmd, out *bufio.Scanner) {
	t.Helper()
	p = exec.Command(os.Args[0])
	p.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE="+role, "HOLDFAST_TEST_FILE="+path)
	p.Stderr = os.Stderr
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Process.Kill()
		p.Wait()
	})
	return p, bufio.NewScanner(stdout)
}

func number(value []byte) int {
	n, _ := strconv.Atoi(string(value))
	return n
}

const increments = 100

// count adds to a counter and prints the version of each addition. It waits for as long as
// the disk stands still under whoever has the file locked, but others may not go on writing
// and leave it waiting: for longer only where others want the processors.
func count(ctx context.Context, s *Store) error {
	k := driver.Key{Name: "counter"}
	old, n, waited := driver.IfEmpty, 0, 0
	for won := 0; won < increments; {
		began := now()
		out, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: old, Value: fmt.Append(nil, n+1), Lazy: won%2 == 0}})
		if busy(err) {
			waited++
			r, err2 := s.Load(ctx, []driver.Key{k}, driver.Fresh)
			if err2 == nil && (waited < load.Stretch() || r[0].Version < began+(patience/2).Microseconds()) { // a version is the time of its write
				continue
			}
			return fmt.Errorf("others wrote meanwhile: %w", errors.Join(err, err2))
		}
		if err != nil {
			return err
		}
		if waited = 0; out[0].Won {
			won++
			fmt.Println(out[0].Record.Version)
		}
		old, n = out[0].Record.Version, number(out[0].Record.Value)
	}
	return nil
}

// Of all processes that want to follow a version one does, and none is lost.
func TestProcessesRace(t *testing.T) {
	s := fresh(t)
	const processes = 4
	winner := make(map[string]int)
	type won struct {
		process int
		version string
	}
	wins := make(chan won)
	for i := range processes {
		p, out := process(t, "count", s.path)
		go func() {
			for out.Scan() {
				wins <- won{i, out.Text()}
			}
			if err := p.Wait(); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
			wins <- won{process: i}
		}()
	}
	for ended := 0; ended < processes; {
		w := <-wins
		if w.version == "" {
			ended++
			continue
		}
		if other, ok := winner[w.version]; ok {
			t.Errorf("processes %d and %d both won version %s", w.process, other, w.version)
		}
		winner[w.version] = w.process
	}
	r, err := s.Load(t.Context(), []driver.Key{{Name: "counter"}}, driver.Fresh)
	if err != nil || number(r[0].Value) != processes*increments {
		t.Errorf("the counter is %s, error %v; want %d", r[0].Value, err, processes*increments)
	}
}

// scribe writes ever greater numbers, one by one and in pairs, and prints each
// that it knows to be written.
func scribe(ctx context.Context, s *Store) error {
	one := driver.Key{Name: "one"}
	pair := []driver.Key{{Name: "left"}, {Name: "right"}}
	filler := bytes.Repeat([]byte(" "), 3000)
	for {
		records, err := s.Load(ctx, append(pair, one), driver.Fresh)
		if err != nil {
			return err
		}
		n := number(bytes.TrimSpace(records[2].Value)) + 1
		value := append(fmt.Append(nil, n), filler...)
		var writes []driver.Write
		for i, k := range append(pair, one) {
			old := records[i].Version
			if old == 0 {
				old = driver.IfEmpty
			}
			writes = append(writes, driver.Write{Key: k, Old: old, Value: value, Lazy: n%2 == 0})
		}
		for _, batch := range [][]driver.Write{writes[:2], writes[2:]} {
			out, err := s.CompareAndSwap(ctx, batch)
			if err != nil {
				return err
			}
			if !out[0].Won {
				return fmt.Errorf("number %d lost to %v", n, out[0].Record)
			}
		}
		fmt.Println(n)
	}
}

// A process killed in the middle of writes leaves a file that is whole, has
// all that it reported, and can be written at once.
func TestProcessKilled(t *testing.T) {
	s := fresh(t)
	for round := range 8 {
		p, out := process(t, "scribe", s.path)
		reported := 0
		for range 5 + 7*round {
			if !out.Scan() {
				t.Fatal("the scribe ended by itself")
			}
		}
		p.Process.Kill()
		for more := true; more; more = out.Scan() {
			reported, _ = strconv.Atoi(out.Text())
		}
		r, err := s.Load(t.Context(), []driver.Key{{Name: "left"}, {Name: "right"}, {Name: "one"}}, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		if got := number(bytes.TrimSpace(r[2].Value)); got < reported || got > reported+1 {
			t.Errorf("the file has number %d, the last that was reported is %d", got, reported)
		}
		out2, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "one"}, Old: r[2].Version, Value: r[2].Value}})
		if err != nil || !out2[0].Won {
			t.Fatalf("a write after the kill: %+v, error %v", out2, err)
		}
		err = s.names.Use(t.Context(), func(c *conn) error {
			rows, err := c.strings(`pragma integrity_check`)
			if err == nil && strings.Join(rows, "\n") != "ok" {
				t.Errorf("the file is damaged: %s", rows)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// watch prints the keys that it is woken for.
func watch(ctx context.Context, s *Store) error {
	err := s.Watch(ctx, nil, func(k driver.Notification) { fmt.Printf("%d %q\n", k.Space, k.Name) })
	return fmt.Errorf("watch ended: %w", err)
}

// tell writes what watchers have seen.
func tell(ctx context.Context, s *Store) error {
	_, err := s.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "told"}, Old: driver.IfEmpty, Value: []byte("1"), Notify: driver.Everyone}})
	return err
}

// pipes are the named pipes beside the file.
func pipes(t *testing.T, s *Store) []string {
	t.Helper()
	names, err := filepath.Glob(s.path + "-wake/*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A write wakes watchers in other processes; one that was killed is forgotten.
func TestProcessWakes(t *testing.T) {
	s := fresh(t)
	p, out := process(t, "watch", s.path)
	lines := make(chan string)
	go func() {
		for out.Scan() {
			lines <- out.Text()
		}
		close(lines)
	}()
	old := driver.IfEmpty
	write := func() {
		t.Helper()
		o, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: driver.Key{Name: "a\nb"}, Old: old, Value: []byte("1"), Notify: driver.Everyone}})
		if err != nil || !o[0].Won {
			t.Fatalf("%+v, error %v", o, err)
		}
		old = o[0].Record.Version
	}
	// When the other has begun to watch cannot be known: write until it says so.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for woken := false; !woken; {
		select {
		case line, ok := <-lines:
			if line == `0 ""` { // it listens
				continue
			}
			if want := `0 "a\nb"`; !ok || line != want {
				t.Fatalf("the watcher got %q, want %q", line, want)
			}
			woken = true
		case <-tick.C:
			write()
		case <-t.Context().Done():
			t.Fatal("the watcher was never woken")
		}
	}
	if n := len(pipes(t, s)); n != 1 {
		t.Errorf("%d pipes for one watcher", n)
	}
	p.Process.Kill()
	for range lines {
	}
	p.Wait()
	write()
	if left := pipes(t, s); len(left) != 0 {
		t.Errorf("the pipe of a dead watcher is still there: %q", left)
	}
}

// strings runs a statement of one column.
func (c *conn) strings(query string) (all []string, err error) {
	err = c.query(query, func(row []sqldriver.Value) { all = append(all, fmt.Sprint(row[0])) })
	return all, err
}

// come opens the file, takes a lock, gives it back and ends, as a command does.
func come(ctx context.Context, s *Store) error {
	defer s.Close()
	k := driver.Key{Name: fmt.Sprint(os.Getpid())}
	out, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("x")}})
	if err == nil && out[0].Won {
		out, err = s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: out[0].Record.Version, Lazy: true}})
	}
	if err == nil && !out[0].Won {
		err = fmt.Errorf("a write with no rival lost to %v", out[0].Record)
	}
	return err
}

// Processes that come and go, so that each may be the first or the last on the
// file and recover or remove its log, do not fail one another.
func TestProcessesComeAndGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	if err := Migrate(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	var killed *exec.Cmd
	for range 10 {
		killed, _ = process(t, "scribe", path)
		var crowd []*exec.Cmd
		for range 8 {
			p, _ := process(t, "come", path)
			crowd = append(crowd, p)
		}
		killed.Process.Kill()
		for _, p := range crowd {
			if err := p.Wait(); err != nil {
				t.Errorf("a process that came and went: %v", err)
			}
		}
	}
}
