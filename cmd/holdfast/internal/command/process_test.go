//go:build linux

package command

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/internal/asjson"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// A place is a store and a runtime directory of a test's own.
type place struct {
	t       *testing.T
	dir     string
	runtime string
	store   string // "": a file in dir
}

func newPlace(t *testing.T) place {
	dir := t.TempDir()
	return place{t, dir, dir, ""}
}

func (p place) command(args ...string) *exec.Cmd {
	c := exec.Command("holdfast", args...)
	c.Dir = p.dir
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+p.dir, "XDG_RUNTIME_DIR="+p.runtime, "HOLDFAST_TEST_LOG="+filepath.Join(p.dir, "log"), "HOLDFAST_STORE="+p.store)
	c.Stderr = os.Stderr
	return c
}

func (p place) start(args ...string) *exec.Cmd {
	p.t.Helper()
	c := p.command(args...)
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// ticker is a command that notes that it lives, with its token if it has one, each
// few milliseconds: itself, and in a session of its own and deaf to TERM. It is the
// test binary as `holdfast-ticker`.
func ticker() {
	if os.Getenv("HOLDFAST_TEST_TICKER") == "" {
		c := exec.Command("/proc/self/exe")
		c.Args[0] = "holdfast-ticker"
		c.Env = append(os.Environ(), "HOLDFAST_TEST_TICKER=1")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	signal.Ignore(syscall.SIGTERM)
	log, err := os.OpenFile(os.Getenv("HOLDFAST_TEST_LOG"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	for end := now() + int64(time.Minute); now() < end; time.Sleep(2 * time.Millisecond) {
		fmt.Fprintf(log, "%s %d %d\n", cmp.Or(os.Getenv("HOLDFAST_TOKEN"), "-"), now(), os.Getpid())
	}
}

func now() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return t.Nano()
}

// tenures reads when each token's command lived.
func (p place) tenures() map[string][2]int64 {
	text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
	lives := make(map[string][2]int64)
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var token string
		var at int64
		if n, _ := fmt.Sscan(s.Text(), &token, &at); n != 2 {
			continue
		}
		life, ok := lives[token]
		if !ok {
			life = [2]int64{at, at}
		}
		lives[token] = [2]int64{min(life[0], at), max(life[1], at)}
	}
	return lives
}

func (p place) await(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not within 30s: %s", what)
		}
	}
}

// child is the only child of a process.
func child(pid int) (children []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, _ := os.ReadFile(name)
		var parent, id int
		var state string
		fmt.Sscan(string(text), &id)
		if i := bytes.LastIndexByte(text, ')'); i > 0 {
			fmt.Sscan(string(text[i+1:]), &state, &parent)
		}
		if parent == pid && state != "Z" {
			children = append(children, id)
		}
	}
	return children
}

// Whatever is done to holdfast and its guard, no two commands of a name are
// alive at a time, nor anything they started.
func TestNeverTwoCommandsAlive(t *testing.T) {
	for _, test := range []struct {
		name   string
		attack func(p place, run *exec.Cmd, guard int)
	}{
		{"kill -9 run", func(p place, run *exec.Cmd, guard int) { run.Process.Kill() }},
		{"kill -9 the guard", func(p place, run *exec.Cmd, guard int) { syscall.Kill(guard, syscall.SIGKILL) }},
		{"stop run", func(p place, run *exec.Cmd, guard int) { syscall.Kill(run.Process.Pid, syscall.SIGSTOP) }},
		{"stop the guard, kill -9 run", func(p place, run *exec.Cmd, guard int) {
			// Only the proof of life is left, and the lease.
			syscall.Kill(guard, syscall.SIGSTOP)
			run.Process.Kill()
			time.AfterFunc(500*time.Millisecond, func() { syscall.Kill(guard, syscall.SIGCONT) })
		}},
		{"break", func(p place, run *exec.Cmd, guard int) {
			out, _ := p.command("show", "--json", "x").Output()
			var info asjson.Info
			json.Unmarshal(out, &info)
			p.start("break", "--yes", "--reason", "test", "x", "--token", fmt.Sprint(info.Holders[0].Token))
		}},
	} {
		alone := func(t *testing.T, shop shop) {
			t.Parallel()
			p := shop.place(t)
			self, _ := os.Executable()
			if err := os.Symlink(self, filepath.Join(p.dir, "holdfast-ticker")); err != nil {
				t.Fatal(err)
			}
			args := []string{"run", "-q", "--ttl", "2", "--kill-after", "0.3", "x", "--", "./holdfast-ticker"}
			first := p.start(args...)
			p.await("the first runs", func() bool { return len(p.tenures()) == 1 })
			if shop.kind == "postgres" {
				p.runtime = t.TempDir() // as if on another host, where nothing proves a death
			}
			next := p.start(args...)
			p.await("the second waits", func() bool {
				out, _ := p.command("show", "x").Output()
				return strings.Contains(string(out), "waiting")
			})
			guards := child(first.Process.Pid)
			if len(guards) != 1 {
				t.Fatalf("children of run: %v", guards)
			}
			test.attack(p, first, guards[0])
			p.await("the second runs", func() bool { return len(p.tenures()) == 2 })
			at := time.Now()
			p.await("the second has run for a while", func() bool { return time.Since(at) > 300*time.Millisecond })
			first.Process.Kill()
			next.Process.Kill()
			p.await("all is gone", func() bool {
				before := p.tenures()
				time.Sleep(50 * time.Millisecond)
				after := p.tenures()
				for token := range before {
					if before[token] != after[token] {
						return false
					}
				}
				return true
			})
			var lives [][2]int64
			for _, life := range p.tenures() {
				lives = append(lives, life)
			}
			slices.SortFunc(lives, func(a, b [2]int64) int { return int(a[0]/1000 - b[0]/1000) })
			if lives[0][1] >= lives[1][0] {
				t.Errorf("two alive for %v", time.Duration(lives[0][1]-lives[1][0]))
			}
		}
		for _, shop := range shops {
			if slices.Contains(cli.Others, cli.Program(shop.kind)) { // it is the same guard
				continue
			}
			t.Run(shop.kind+"/"+test.name, func(t *testing.T) { alone(t, shop) })
		}
	}
}

// Start-up stays quick, for the command and for its guard: nothing big is linked
// in that nobody asked for, and what is does little before main.
func TestStart(t *testing.T) {
	program := filepath.Join(t.TempDir(), "holdfast") // the test has more in it
	if out, err := exec.Command("go", "build", "-o", program, "../..").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	best := time.Hour
	for range 10 {
		c := exec.Command(program, "version")
		c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		var trace strings.Builder
		c.Stderr = &trace
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		var sum time.Duration
		for line := range strings.Lines(trace.String()) { // init os @2.1 ms, 0.023 ms clock, …
			if f := strings.Fields(line); len(f) > 4 && f[0] == "init" {
				took, err := time.ParseDuration(f[4] + f[5])
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				sum += took
			}
		}
		if sum == 0 {
			t.Fatalf("no trace of init: %s", trace.String())
		}
		best = min(best, sum)
	}
	t.Logf("all packages are initialised in %v", best)
	if best > busy.Times(4*time.Millisecond) { // it takes 2.2
		t.Errorf("all packages are initialised in %v: more than 4ms", best)
	}
}

// The command that everybody has is without the clients that are slow to start.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../..").Output()
	if err != nil {
		t.Skip(err)
	}
	for dep := range strings.Lines(string(out)) {
		dep = strings.TrimSpace(dep)
		if strings.HasPrefix(dep, "google.golang.org/") || strings.HasPrefix(dep, "cloud.google.com/") || strings.HasPrefix(dep, "go.etcd.io/") || strings.Contains(dep, "viper") || strings.HasSuffix(dep, "cobra/doc") {
			t.Errorf("the command imports %s", dep)
		}
	}
}

// Doctor says where commands cannot be guarded.
func TestDoctorWithoutGuards(t *testing.T) {
	if out, err := exec.Command("unshare", "-p", "-f", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no pid namespaces here: %v: %s", err, out)
	}
	out, err := exec.Command("unshare", "-p", "-f", "holdfast", "--store", "memory:", "doctor").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "FAIL  run") || !strings.Contains(string(out), "unshare --mount-proc") {
		t.Errorf("in a pid namespace with the /proc of another: %v: %s", err, out)
	}
}
