//go:build linux

package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serve is a server with hosts, whose directories are returned.
func serve(t testing.TB, seed uint64, names Names, hosts int) (s *Server, paths []string) {
	t.Helper()
	s = NewServer(seed, names)
	t.Cleanup(func() { must(t, s.Close()) })
	for range hosts {
		paths = append(paths, host(t, s).Path)
	}
	return s, paths
}

func host(t testing.TB, s *Server) *Mount {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile-")
	must(t, err)
	t.Cleanup(func() { os.Remove(dir) })
	m, err := s.Mount(dir)
	if err != nil {
		t.Skipf("SKIPPED: no FUSE here, so no hostile file system is tested: %v", err)
	}
	t.Cleanup(func() { m.Unmount() }) // before the directory goes
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func put(t testing.TB, text string, path ...string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(path...), []byte(text), 0o644))
}

func has(t testing.TB, want string, path ...string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(path...))
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q, error %v; want %q", filepath.Join(path...), got, err, want)
	}
}

func list(t testing.TB, path ...string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(path...))
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func lists(t testing.TB, want string, path ...string) {
	t.Helper()
	if got := strings.Join(list(t, path...), " "); got != want {
		t.Errorf("%s lists %q, want %q", filepath.Join(path...), got, want)
	}
}

func exists(path ...string) bool {
	_, err := os.Lstat(filepath.Join(path...))
	return err == nil
}

// soon waits until something is so.
func soon(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

// synced writes a file and makes it durable with its name.
func synced(t testing.TB, text string, path ...string) {
	t.Helper()
	put(t, text, path...)
	must(t, fsync(path...))
	must(t, fsync(filepath.Dir(filepath.Join(path...))))
}

func fsync(path ...string) error {
	f, err := os.Open(filepath.Join(path...))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Without faults it is a file system, and every host sees what another has done.
func TestPlain(t *testing.T) {
	_, p := serve(t, 1, Anyhow, 2)
	a, b := p[0], p[1]
	must(t, os.MkdirAll(filepath.Join(a, "d/e"), 0o755))
	put(t, "one", a, "d/e/f")
	has(t, "one", b, "d/e/f")
	must(t, os.Rename(filepath.Join(b, "d/e/f"), filepath.Join(b, "g")))
	has(t, "one", a, "g")
	is(t, "the old name", os.Remove(filepath.Join(a, "d/e/f")), os.ErrNotExist)
	must(t, os.Link(filepath.Join(a, "g"), filepath.Join(a, "h")))
	is(t, "a link to what is there", os.Link(filepath.Join(b, "g"), filepath.Join(b, "h")), os.ErrExist)
	must(t, os.Symlink("h", filepath.Join(b, "l")))
	has(t, "one", a, "l")
	_, err := os.OpenFile(filepath.Join(a, "l"), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	is(t, "a symbolic link not followed", err, syscall.ELOOP)
	lists(t, "d g h l", a)
	f, err := os.OpenFile(filepath.Join(a, "h"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString(" two")
	must(t, errors.Join(err, f.Sync(), f.Close()))
	has(t, "one two", b, "g")
	must(t, os.Truncate(filepath.Join(b, "g"), 2))
	has(t, "on", a, "h")
	_, err = os.OpenFile(filepath.Join(b, "h"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	is(t, "a new file that is there", err, os.ErrExist)
	is(t, "removing a directory that is not empty", os.Remove(filepath.Join(a, "d")), syscall.ENOTEMPTY)
	is(t, "a directory under itself", os.Rename(filepath.Join(a, "d"), filepath.Join(a, "d/e/x")), syscall.EINVAL)
	is(t, "renaming to what is there", unix.Renameat2(unix.AT_FDCWD, filepath.Join(a, "g"), unix.AT_FDCWD, filepath.Join(a, "l"), unix.RENAME_NOREPLACE), os.ErrExist)
	must(t, os.Rename(filepath.Join(a, "h"), filepath.Join(a, "l")))
	must(t, os.RemoveAll(filepath.Join(a, "d")))
	lists(t, "g l", b)
	info, err := os.Stat(filepath.Join(b, "g"))
	must(t, err)
	if n := info.Sys().(*syscall.Stat_t).Nlink; n != 2 || info.Mode() != 0o644 || info.Size() != 2 {
		t.Errorf("got %d links, mode %v, %d bytes; want 2, -rw-r--r--, 2", n, info.Mode(), info.Size())
	}
	for i := range 300 {
		put(t, "", a, fmt.Sprintf("many-%03d", i))
	}
	if n := len(list(t, b)); n != 302 {
		t.Errorf("%d names are listed, want 302", n)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<15)
	put(t, string(big), a, "big")
	has(t, string(big), b, "big")
	is(t, "a long name", os.WriteFile(filepath.Join(a, strings.Repeat("n", 256)), nil, 0o600), syscall.ENAMETOOLONG)
}

// What a host has looked up it may believe for a while, that it is there and
// that it is not, and its attributes; opening a file asks the server.
func TestStaleNames(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	reader := host(t, s)
	r := reader.Path
	for round := 0; ; round++ {
		put(t, "here", p[0], "f")
		reader.Set(Faults{Stale: 300 * time.Millisecond})
		exists(r, "f")
		exists(r, "g")
		must(t, os.Remove(filepath.Join(p[0], "f")))
		put(t, "", p[0], "g")
		positive, negative := exists(r, "f"), !exists(r, "g")
		_, err := os.ReadFile(filepath.Join(r, "f"))
		is(t, "opening what is only remembered", err, os.ErrNotExist)
		soon(t, "the host sees both", func() bool { return !exists(r, "f") && exists(r, "g") })
		if positive && negative {
			break
		}
		if round == 20 {
			t.Fatalf("in %d rounds never both: a name that is gone was seen, and one that is there was not", round)
		}
		must(t, os.Remove(filepath.Join(p[0], "g")))
		soon(t, "the host sees it", func() bool { return !exists(r, "g") })
	}
	reader.Set(Faults{Stale: 10 * time.Second})
	size := func() int64 {
		info, err := os.Stat(filepath.Join(r, "g"))
		must(t, err)
		return info.Size()
	}
	soon(t, "an attribute is old", func() bool {
		before := size()
		put(t, strings.Repeat("x", int(before)+1), p[0], "g")
		return size() == before
	})
	f, err := os.Open(filepath.Join(r, "g"))
	must(t, err)
	defer f.Close()
	fresh, err := os.Stat(filepath.Join(p[0], "g"))
	must(t, err)
	if info, err := f.Stat(); err != nil || info.Size() != fresh.Size() {
		t.Errorf("opened, the file has size %d, error %v; want %d", info.Size(), err, fresh.Size())
	}
}

// A listing may be old, until this very host changes the directory.
func TestStaleListing(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	reader := host(t, s)
	reader.Set(Faults{Stale: time.Second})
	put(t, "", p[0], "a")
	soon(t, "an old listing", func() bool {
		before := list(t, reader.Path)
		put(t, "", p[0], fmt.Sprint("b", len(before)))
		return len(list(t, reader.Path)) == len(before)
	})
	put(t, "", reader.Path, "own")
	if got, want := list(t, reader.Path), list(t, p[0]); !slices.Equal(got, want) {
		t.Errorf("after a change of its own it lists %v, want %v", got, want)
	}
	soon(t, "the listing is fresh in the end", func() bool {
		put(t, "", p[0], "last")
		return slices.Contains(list(t, reader.Path), "last")
	})
}

// With views also a name that was never asked for is looked up in an old listing.
func TestStaleView(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	reader := host(t, s)
	reader.Set(Faults{Stale: time.Second, Views: true})
	n := 0
	soon(t, "a file that is there is not found", func() bool {
		list(t, reader.Path)
		n++
		put(t, "", p[0], fmt.Sprint("n", n))
		return !exists(reader.Path, fmt.Sprint("n", n))
	})
	soon(t, "it is found in the end", func() bool { return exists(reader.Path, fmt.Sprint("n", n)) })
}

// The handle of a file that another host has removed is stale; a file that this
// host has removed is there until it is closed, under another name.
func TestStaleHandle(t *testing.T) {
	_, p := serve(t, 1, Anyhow, 2)
	for i, want := range []error{nil, syscall.ESTALE} {
		put(t, "text", p[0], "f")
		f, err := os.Open(filepath.Join(p[0], "f"))
		must(t, err)
		must(t, os.Remove(filepath.Join(p[i], "f")))
		_, err = f.ReadAt(make([]byte, 4), 0)
		is(t, "reading a removed file", err, want)
		left := list(t, p[1])
		if i == 0 && (len(left) != 1 || !strings.HasPrefix(left[0], sillyPrefix)) || i == 1 && len(left) != 0 {
			t.Errorf("while it is open there is %q", left)
		}
		f.Close()
		soon(t, "nothing is left", func() bool { return len(list(t, p[1])) == 0 })
	}
	put(t, "old", p[0], "f")
	put(t, "new", p[1], "g")
	f, err := os.Open(filepath.Join(p[0], "f"))
	must(t, err)
	defer f.Close()
	must(t, os.Rename(filepath.Join(p[1], "g"), filepath.Join(p[1], "f")))
	_, err = f.ReadAt(make([]byte, 3), 0)
	is(t, "reading a replaced file", err, syscall.ESTALE)
	has(t, "new", p[0], "f")
}

// Each change can be done and be told as failed; be told as a retransmission is;
// fail for real; or be done later, or twice.
func TestLostReplies(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	m := host(t, s)
	at := func(name string) string { return filepath.Join(m.Path, name) }
	for _, c := range []struct {
		name  string
		do    func() error
		done  func() bool
		again error // what a retransmission is told
	}{
		{"rename", func() error { return os.Rename(at("f"), at("g")) }, func() bool { return !exists(p[0], "f") && exists(p[0], "g") }, os.ErrNotExist},
		{"link", func() error { return os.Link(at("f"), at("g")) }, func() bool { return exists(p[0], "f") && exists(p[0], "g") }, os.ErrExist},
		{"unlink", func() error { return unix.Unlink(at("f")) }, func() bool { return !exists(p[0], "f") }, os.ErrNotExist},
		{"mkdir", func() error { return os.Mkdir(at("g"), 0o700) }, func() bool { return exists(p[0], "g") }, os.ErrExist},
		{"rmdir", func() error { return unix.Rmdir(at("d")) }, func() bool { return !exists(p[0], "d") }, os.ErrNotExist},
		{"create", func() error {
			f, err := os.OpenFile(at("g"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err == nil {
				f.Close()
			}
			return err
		}, func() bool { return exists(p[0], "g") }, os.ErrExist},
		{"write", func() error {
			f, err := os.OpenFile(at("f"), os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteString("written")
			f.Close()
			return err
		}, func() bool { got, _ := os.ReadFile(filepath.Join(p[0], "f")); return string(got) == "written" }, nil},
	} {
		for _, fault := range []struct {
			name   string
			faults Faults
			want   error
			done   bool
		}{
			{"refused", Faults{Refused: 1}, syscall.EIO, false},
			{"lost", Faults{Lost: 1}, syscall.EIO, true},
			{"retransmitted", Faults{Again: 1}, c.again, true},
			{"late", Faults{Late: 1, LateBy: 100 * time.Millisecond}, syscall.EIO, false},
			{"disk full", Faults{Full: 1}, syscall.ENOSPC, false},
		} {
			if fault.faults.Full > 0 && slices.Contains([]string{"rename", "unlink", "rmdir"}, c.name) {
				continue
			}
			s.Settle()
			for _, left := range list(t, p[0]) {
				must(t, os.RemoveAll(filepath.Join(p[0], left)))
			}
			put(t, "text", p[0], "f")
			must(t, os.Mkdir(filepath.Join(p[0], "d"), 0o700))
			for _, name := range []string{"f", "d"} {
				soon(t, "the host sees it", func() bool { return exists(at(name)) })
			}
			m.Set(fault.faults)
			err := c.do()
			done := c.done()
			m.Set(Faults{})
			is(t, c.name+", "+fault.name, err, fault.want)
			if fault.name != "late" && done != fault.done {
				t.Errorf("%s, %s: done is %v, want %v", c.name, fault.name, done, fault.done)
			}
			if s.Settle(); fault.name == "late" && !c.done() {
				t.Errorf("%s, late: it is never done", c.name)
			}
		}
	}
	if n := m.Counts()["reply lost"]; n == 0 {
		t.Error("no lost reply was counted")
	}

	// A removal that is done twice takes away what came after the first.
	must(t, os.RemoveAll(at("f")))
	put(t, "", p[0], "f")
	m.Set(Faults{Twice: 1, LateBy: 200 * time.Millisecond})
	soon(t, "a file is removed by a removal that came before it", func() bool {
		put(t, "", p[0], "f")
		if err := os.Remove(at("f")); err != nil {
			return false
		}
		put(t, "", p[0], "f")
		s.Settle()
		return !exists(p[0], "f")
	})
}

// What was late is done when it can be: not if the file has gone meanwhile.
func TestLate(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	m := host(t, s)
	put(t, "", p[0], "f")
	m.Set(Faults{Late: 1, LateBy: 500 * time.Millisecond})
	is(t, "a rename", os.Rename(filepath.Join(m.Path, "f"), filepath.Join(m.Path, "g")), syscall.EIO)
	must(t, os.Rename(filepath.Join(p[0], "f"), filepath.Join(p[0], "h")))
	s.Settle()
	lists(t, "h", p[0])
}

// A failed fsync has not made the data durable, and the next one does not either.
func TestFailedSync(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	m := host(t, s)
	lost := 0
	for i := range 20 {
		name := fmt.Sprint("f", i)
		synced(t, "old", p[0], name)
		put(t, "new", m.Path, name)
		m.Set(Faults{Sync: 1})
		is(t, "fsync", fsync(m.Path, name), syscall.EIO)
		m.Set(Faults{})
		must(t, fsync(m.Path, name))
		s.Crash()
		if got, err := os.ReadFile(filepath.Join(p[0], name)); err == nil && string(got) == "old" {
			lost++
		}
	}
	if lost != 20 {
		t.Errorf("of 20 files whose fsync has failed %d lost the data, want all", lost)
	}
}

// A crash forgets what was not synced, and nothing else.
func TestCrash(t *testing.T) {
	for _, names := range []Names{Anyhow, InOrder, Durable} {
		t.Run(fmt.Sprint("names ", names), func(t *testing.T) {
			seen := make(map[string]int)
			never := func(what string) bool {
				return names == Durable && !strings.HasPrefix(what, "data") && what != "zeros" && what != "rename kept" || names == InOrder && what == "out of order"
			}
			all := []string{"data kept", "data gone", "zeros", "rename kept", "rename forgotten", "name forgotten", "removed came back", "out of order"}
			missed := func() bool {
				return slices.ContainsFunc(all, func(what string) bool { return !never(what) && seen[what] == 0 })
			}
			for seed := uint64(0); seed < 40 || seed < 400 && missed(); seed++ { // chance decides
				s, p := serve(t, seed, names, 1)
				synced(t, "kept", p[0], "kept")
				synced(t, "old", p[0], "replaced")
				must(t, os.Mkdir(filepath.Join(p[0], "d"), 0o700))
				must(t, fsync(p[0]))
				synced(t, "below", p[0], "d/below")
				f, err := os.Open(filepath.Join(p[0], "kept"))
				must(t, err)
				defer f.Close()

				must(t, os.Rename(filepath.Join(p[0], "replaced"), filepath.Join(p[0], "renamed")))
				put(t, "data", p[0], "unsynced")
				put(t, "data", p[0], "later")
				must(t, os.Remove(filepath.Join(p[0], "d/below")))
				s.Crash()

				_, err = f.ReadAt(make([]byte, 1), 0)
				is(t, "a handle from before the crash", err, syscall.ESTALE)
				has(t, "kept", p[0], "kept")
				left := list(t, p[0])
				renamed := slices.Contains(left, "renamed")
				if renamed == slices.Contains(left, "replaced") {
					t.Errorf("half a rename is left: %q", left)
				}
				note := func(what string, so bool) {
					if so {
						seen[what]++
					}
				}
				note("rename kept", renamed)
				note("rename forgotten", !renamed)
				later, earlier := slices.Contains(left, "later"), slices.Contains(left, "unsynced")
				note("out of order", later && !earlier)
				note("name forgotten", !earlier)
				note("removed came back", exists(p[0], "d/below"))
				if earlier {
					data, err := os.ReadFile(filepath.Join(p[0], "unsynced"))
					must(t, err)
					note("data kept", string(data) == "data")
					note("data gone", len(data) == 0)
					note("zeros", len(data) == 4 && data[3] == 0)
				}
			}
			for _, want := range all {
				if n := seen[want]; never(want) && n > 0 || !never(want) && n == 0 {
					t.Errorf("seen %d times: %s", n, want)
				}
			}
		})
	}
}

// After a crash paths lead on. Handles of directories do where no name was
// forgotten.
func TestCrashHandles(t *testing.T) {
	for names, want := range map[Names]error{InOrder: syscall.ESTALE, Anyhow: syscall.ESTALE, Durable: nil} {
		s, p := serve(t, 1, names, 2)
		must(t, os.MkdirAll(filepath.Join(p[0], "d/e"), 0o700))
		for _, dir := range []string{"d/e", "d", "."} {
			must(t, fsync(p[0], dir))
		}
		synced(t, "text", p[0], "d/e/f")
		has(t, "text", p[1], "d/e/f")
		dir, err := os.OpenRoot(filepath.Join(p[1], "d"))
		must(t, err)
		defer dir.Close()
		s.Crash()
		_, err = dir.ReadFile("e/f")
		is(t, "reading by a handle", err, want)
		has(t, "text", p[1], "d/e/f")
		synced(t, "more", p[0], "d/e/f")
		has(t, "more", p[1], "d/e/f")
	}
}

// A host that is cut off waits or fails; then it goes on. One that is killed
// while it waits ends.
func TestCutOff(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	m := host(t, s)
	put(t, "text", p[0], "f")
	m.CutOff(Hangs)
	done := make(chan error, 1)
	go func() { done <- os.Mkdir(filepath.Join(m.Path, "d"), 0o700) }()
	select {
	case err := <-done:
		t.Errorf("a call of a host that is cut off was answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if exists(p[0], "d") {
		t.Error("what a host did that is cut off has arrived")
	}
	cmd := execCat(filepath.Join(m.Path, "f"))
	must(t, cmd.Start())
	time.Sleep(50 * time.Millisecond)
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("a program that was killed while it waited has ended well")
	}
	m.CutOff(Connected)
	must(t, <-done)
	soon(t, "it arrives", func() bool { return exists(p[0], "d") })
	m.CutOff(Fails)
	_, err := os.ReadFile(filepath.Join(m.Path, "f"))
	is(t, "reading", err, syscall.EIO)
	m.CutOff(Connected)
	has(t, "text", m.Path, "f")
}

// The disk is full, the server's clock is ahead, calls are slow.
func TestFullSkewedSlow(t *testing.T) {
	s, p := serve(t, 1, Anyhow, 1)
	m := host(t, s)
	put(t, "", p[0], "f")
	s.Fill(true)
	is(t, "a new file", os.WriteFile(filepath.Join(p[0], "g"), nil, 0o600), syscall.ENOSPC)
	is(t, "more in a file", os.WriteFile(filepath.Join(p[0], "f"), []byte("x"), 0o600), syscall.ENOSPC)
	must(t, os.Remove(filepath.Join(p[0], "f")))
	s.Fill(false)
	s.Skew(time.Hour)
	put(t, "", p[0], "f")
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(p[0], "f"), []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}, 0))
	info, err := os.Stat(filepath.Join(p[0], "f"))
	must(t, err)
	if ahead := time.Until(info.ModTime()); ahead < 59*time.Minute {
		t.Errorf("the file is of %v from now, want an hour", ahead)
	}
	m.Set(Faults{Slow: 1, SlowBy: 10 * time.Millisecond})
	for range 5 {
		exists(m.Path, "f")
	}
	m.Set(Faults{Read: 1})
	_, err = os.ReadFile(filepath.Join(m.Path, "f"))
	is(t, "reading", err, syscall.EIO)
	if n := m.Counts(); n["slow"] == 0 || n["read failed"] == 0 {
		t.Errorf("counted: %v", n)
	}
}

func execCat(path string) *exec.Cmd { return exec.Command("cat", path) }
