//go:build linux

package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/state"
)

// Whatever is done to state write and its guard, its command and all it started
// have ended before a reader learns that nobody writes, and the key is another
// then.
func TestWriterKilled(t *testing.T) {
	for _, test := range []struct {
		name   string
		where  string // "": anywhere
		ttl    string
		attack func(p place, write *exec.Cmd, guard int)
	}{
		{"kill -9 the command", "", "20", func(p place, write *exec.Cmd, guard int) {
			for _, pid := range child(guard) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}},
		{"kill -9 state write", "", "20", func(p place, write *exec.Cmd, guard int) { write.Process.Kill() }},
		{"kill -9 the guard", "", "20", func(p place, write *exec.Cmd, guard int) { syscall.Kill(guard, syscall.SIGKILL) }},
		{"kill -9 both", "directory", "2", func(p place, write *exec.Cmd, guard int) {
			// What the command left in a session of its own is alive, and nobody
			// ends it: this host knows by its open file.
			syscall.Kill(guard, syscall.SIGSTOP)
			write.Process.Kill()
			syscall.Kill(guard, syscall.SIGKILL)
			at := time.Now()
			p.await("the lease is over", func() bool { return time.Since(at) > 3*time.Second })
			for _, pid := range p.tickers() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}},
		{"stop state write", "directory", "2", func(p place, write *exec.Cmd, guard int) {
			write.Process.Signal(syscall.SIGSTOP)
			p.await("the command has ended", func() bool { return len(child(guard)) == 0 })
			write.Process.Signal(syscall.SIGCONT)
		}},
		{"stop state write", "name", "2", func(p place, write *exec.Cmd, guard int) { write.Process.Signal(syscall.SIGSTOP) }},
		{"stop the guard, kill -9 state write", "", "2", func(p place, write *exec.Cmd, guard int) {
			syscall.Kill(guard, syscall.SIGSTOP)
			write.Process.Kill()
			time.AfterFunc(500*time.Millisecond, func() { syscall.Kill(guard, syscall.SIGCONT) })
		}},
	} {
		for _, where := range []string{"directory", "name"} {
			if test.where != "" && test.where != where {
				continue
			}
			t.Run(where+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				killWriter(t, where, test.ttl, test.attack)
			})
		}
	}
}

func killWriter(t *testing.T, where, ttl string, attack func(p place, write *exec.Cmd, guard int)) {
	p := newPlace(t)
	self, _ := os.Executable()
	if err := os.Symlink(self, filepath.Join(p.dir, "holdfast-ticker")); err != nil {
		t.Fatal(err)
	}
	s := p.state(where)
	before, err := s.Key(t.Context())
	if err != nil || before.Writing {
		t.Fatalf("got %v, %v", before, err)
	}
	subject := "x"
	if where == "directory" {
		subject = "./x"
	}
	write := p.start("state", "write", "-q", "--ttl", ttl, "--kill-after", "0.3", subject, "--", "./holdfast-ticker")
	p.await("it writes", func() bool { return len(p.tickers()) == 2 })
	guards := child(write.Process.Pid)
	if len(guards) != 1 {
		t.Fatalf("children of state write: %v", guards)
	}
	began := now()
	attack(p, write, guards[0])
	var key state.Key
	p.await("nobody writes", func() bool {
		if key, err = s.Key(t.Context()); err != nil {
			t.Fatal(err)
		}
		return !key.Writing
	})
	told := now()
	p.await("a while has passed", func() bool { return now()-told > int64(200*time.Millisecond) })
	for _, life := range p.tenures() {
		if life[1] > told {
			t.Errorf("the command was alive %v after a reader was told that nobody writes", time.Duration(life[1]-told))
		}
	}
	if key.Equal(before) {
		t.Errorf("the key is still %q", before.ID)
	}
	t.Logf("a reader was told so after %v", time.Duration(told-began).Round(time.Millisecond))
}

// tickers are the processes that have noted their lives.
func (p place) tickers() (pids []int) {
	text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
	for line := range strings.Lines(string(text)) {
		var token string
		var at int64
		var pid int
		if n, _ := fmt.Sscan(line, &token, &at, &pid); n == 3 && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// state is that of a directory x, or of the name x in the place's store.
func (p place) state(where string) *state.State {
	p.t.Helper()
	if where == "directory" {
		dir := filepath.Join(p.dir, "x")
		if err := os.Mkdir(dir, 0o700); err != nil {
			p.t.Fatal(err)
		}
		s, err := state.Dir(dir, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		return s
	}
	if err := p.command("run", "x", "--", "true").Run(); err != nil { // makes the file
		p.t.Fatal(err)
	}
	t, err := cli.ParseStore("sqlite:" + filepath.Join(p.dir, "holdfast", "holdfast.db"))
	if err != nil {
		p.t.Fatal(err)
	}
	h, err := t.Open(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := holdfast.New(h.Store, &holdfast.Options{RuntimeDir: filepath.Join(p.runtime, "holdfast")})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close(); h.Close() })
	return state.On(c, "x")
}

// What a command prints is its own also where neither the cache nor a temporary
// file can take it, and a cache that cannot be used costs only the command.
func TestCacheWithoutSpace(t *testing.T) {
	p := newPlace(t)
	p.state("directory")
	full := filepath.Join(p.dir, "full")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", full, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(full, 0); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{full, filepath.Join(full, "cache")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const want = 1 << 20
	for _, test := range []struct{ name, tmp, dir string }{
		{"cache", p.dir, filepath.Join(full, "cache")},
		{"temporary files", full, filepath.Join(p.dir, "cache")},
		{"both", full, filepath.Join(full, "cache")},
		{"none", filepath.Join(p.dir, "none"), filepath.Join(p.dir, "other")},
	} {
		for _, status := range []int{0, 3} {
			c := p.command("cache", "--state", "./x", "--dir", test.dir, "--", "sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x; exit $0", string(rune('0'+status)))
			c.Env = append(c.Env, "TMPDIR="+test.tmp)
			out, err := c.Output()
			if len(out) != want || strings.Count(string(out), "x") != want || c.ProcessState.ExitCode() != status {
				t.Errorf("%s full, status %d: got %d bytes, %v", test.name, status, len(out), err)
			}
		}
	}
}
