//go:build linux

package process

import (
	"bytes"
	"database/sql"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
)

// patience is how long a test waits for what has to happen.
var patience = 90 * time.Second

// A world is one store and those who use it.
type world struct {
	t       *testing.T
	dir     string
	target  string // the store's URL
	db      string // the file of an SQLite store
	runtime string // where processes prove each other's death: one for each "host"
	lives   string
	wrap    []string // what its programs are started with
	store   *stores.Store
	client  *holdfast.Client // only looks
	tables  *sql.DB          // nil on a directory
	started *started         // by the test, of all hosts
}

// started are the processes of a world.
type started struct {
	mu  sync.Mutex
	all []*process
}

// newWorld is a world on a file.
func newWorld(t *testing.T) *world { return newWorldIn(t, ".") }

// newWorldIn is a world whose file is in a directory of that name.
func newWorldIn(t *testing.T, sub string) *world {
	t.Helper()
	w := newDir(t)
	w.db = filepath.Join(w.dir, sub, "locks.db")
	must(t, os.MkdirAll(filepath.Dir(w.db), 0o700))
	return w.open("sqlite:" + w.db)
}

// newDirectory is a world on a directory store.
func newDirectory(t *testing.T) *world { return newDirectoryIn(t, ".") }

func newDirectoryIn(t *testing.T, sub string) *world {
	t.Helper()
	w := newDir(t)
	path := filepath.Join(w.dir, sub, "store")
	must(t, os.MkdirAll(path, 0o700))
	return w.open("dir:" + path)
}

// onFiles are the worlds without a server.
var onFiles = map[string]func(*testing.T) *world{"sqlite": newWorld, "dir": newDirectory}

// newDir is a world without a store.
func newDir(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, dir: dir, lives: filepath.Join(dir, "lives"), started: &started{}}
	t.Cleanup(w.checkEmpty) // after everything else
	must(t, os.Mkdir(w.lives, 0o700))
	w.runtime = w.host("here").runtime
	return w
}

// open gives a world its store.
func (w *world) open(target string) *world {
	t := w.t
	t.Helper()
	w.target = target
	must(t, stores.Migrate(t.Context(), target))
	var err error
	w.store, err = stores.Open(t.Context(), target)
	must(t, err)
	t.Cleanup(func() { w.store.Close() })
	w.tables = w.store.DB
	w.client, err = holdfast.New(w.store.Store, &holdfast.Options{RuntimeDir: os.DevNull})
	must(t, err)
	t.Cleanup(func() { w.client.Close() })
	return w
}

// onStores runs a test on files, and on each server that is installed.
func onStores(t *testing.T, f func(t *testing.T, fresh func(*testing.T) *world)) {
	for _, name := range slices.Sorted(maps.Keys(onFiles)) {
		t.Run(name, func(t *testing.T) { f(t, onFiles[name]) })
	}
	for _, k := range servers.Kinds {
		if k.SQL {
			t.Run(k.Name, func(t *testing.T) { f(t, on(t, k)) })
		}
	}
}

// on makes worlds on a server, or skips.
func on(t *testing.T, k servers.Kind) (fresh func(*testing.T) *world) {
	home := k.Shared(t)
	return func(t *testing.T) *world {
		t.Helper()
		return newDir(t).open(home.Database(t))
	}
}

// onServer is whether a world's store is on a server.
func (w *world) onServer() bool {
	scheme, _, _ := strings.Cut(w.target, ":")
	return onFiles[scheme] == nil
}

// onCassandra is whether a world's store is on a cluster of Cassandra.
func (w *world) onCassandra() bool { return strings.HasPrefix(w.target, "cassandra:") }

// crowd is n, or as many as may ask a store at one time on this machine: an emulator
// carries out one transaction after the other, and three nodes of Cassandra share the
// processors with those who ask them.
func (w *world) crowd(n int) int {
	switch {
	case w.onEmulator():
		return max(n/(2*stretch*stretch), 4)
	case w.onCassandra() && !*full:
		return max(n/3, 4)
	}
	return n
}

func (w *world) onEmulator() bool { return servers.KindOf(w.target).Emulator != "" }

// host is the same world as seen from a host of that name: the kernel's proofs
// of other hosts are not seen there, only the lease counts.
func (w *world) host(name string) *world {
	w.t.Helper()
	h := *w
	h.runtime = filepath.Join(w.dir, "run-"+name)
	if err := os.Mkdir(h.runtime, 0o700); err != nil && !os.IsExist(err) {
		w.t.Fatal(err)
	}
	return &h
}

const mark = "PROCESS_WORLD="

func (w *world) env(more ...string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "USER=ana", "LOGNAME=ana", "TMPDIR=" + w.dir, mark + w.dir,
		"HOLDFAST_STORE=" + w.target, "XDG_RUNTIME_DIR=" + w.runtime, "XDG_STATE_HOME=" + w.dir,
	}
	if v := servers.KindOf(w.target).Emulator; v != "" {
		env = append(env, v+"="+os.Getenv(v))
	}
	return append(env, more...)
}

// A process is one that the test has started.
type process struct {
	*exec.Cmd
	t      *testing.T
	input  io.WriteCloser
	stdout bytes.Buffer
	stderr bytes.Buffer
	done   chan struct{} // closed when it has ended
	ended  int64         // when that was noticed
}

func (w *world) start(c *exec.Cmd) *process {
	w.t.Helper()
	p := &process{Cmd: c, t: w.t, done: make(chan struct{})}
	if c.Env == nil {
		c.Env = w.env()
	}
	if c.Dir == "" {
		c.Dir = w.dir
	}
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	c.SysProcAttr.Setsid = true // away from the terminal of the tests, if any
	var err error
	if c.Stdin == nil {
		p.input, err = c.StdinPipe()
		must(w.t, err)
	}
	if c.Stdout == nil {
		c.Stdout = &p.stdout
	}
	c.Stderr = &p.stderr
	c.WaitDelay = 5 * time.Second // a descendant may have kept the pipes
	must(w.t, c.Start())
	w.started.mu.Lock()
	w.started.all = append(w.started.all, p)
	w.started.mu.Unlock()
	go func() {
		c.Wait()
		p.ended = life.Now()
		close(p.done)
	}()
	w.t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGKILL)
		<-p.done
		if w.t.Failed() && p.stderr.Len() > 0 {
			w.t.Logf("%s: %s", strings.Join(p.Args, " "), p.said())
		}
	})
	return p
}

// apart is the same world from a pid namespace that each process has for itself.
func (w *world) apart() *world {
	a := *w
	a.wrap = []string{"unshare", "-p", "-f", "--mount-proc", "--"}
	return &a
}

func (w *world) command(argv ...string) *exec.Cmd {
	argv = append(slices.Clip(w.wrap), argv...)
	return exec.Command(argv[0], argv[1:]...)
}

// holdfast starts the command.
func (w *world) holdfast(args ...string) *process {
	w.t.Helper()
	return w.start(w.command(append([]string{holdfastPath}, args...)...))
}

// actor is the command line of a command that leaves its life in this world.
func (w *world) actor(flags ...string) []string {
	return append([]string{actorPath, "-lives", w.lives}, flags...)
}

// runActor starts `holdfast run FLAGS… -- actor…`.
func (w *world) runActor(flags []string, act ...string) *process {
	w.t.Helper()
	return w.holdfast(slices.Concat([]string{"run"}, flags, []string{"--"}, w.actor(act...))...)
}

// program starts a process that uses the library in one of the roles.
func (w *world) program(role string, args ...string) *process {
	w.t.Helper()
	self, err := os.Executable()
	must(w.t, err)
	c := w.command(append([]string{self}, args...)...)
	c.Env = w.env("PROCESS_ROLE="+role, "PROCESS_LIVES="+w.lives, "PROCESS_STORE="+w.target)
	return w.start(c)
}

func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.done:
	default:
		p.Process.Signal(sig)
	}
}

// status waits for the end and returns the exit status, 128 and more for a signal.
func (p *process) status() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s has not ended after %v", strings.Join(p.Args, " "), patience)
	}
	if s := p.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.ProcessState.ExitCode()
}

func (p *process) wantStatus(want int) {
	p.t.Helper()
	if got := p.status(); got != want {
		p.t.Errorf("%s ended with status %d, want %d: %s", strings.Join(p.Args, " "), got, want, p.said())
	}
}

// said is the beginning of what it wrote to standard error.
func (p *process) said() string {
	text := strings.TrimSpace(p.stderr.String())
	return text[:min(len(text), 1000)]
}

// end lets a process end that lives until its input ends.
func (p *process) end() { p.input.Close() }

// alive are the processes that the test has started and that have not ended.
func (w *world) alive() (n int) {
	w.started.mu.Lock()
	defer w.started.mu.Unlock()
	for _, p := range w.started.all {
		if !p.isDone() {
			n++
		}
	}
	return n
}

// await is until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) show(name string) holdfast.Info {
	w.t.Helper()
	info, err := w.client.Show(w.t.Context(), name)
	must(w.t, err)
	return info
}

// queued is until so many wait for a name.
func (w *world) queued(name string, n int) {
	w.t.Helper()
	await(w.t, strconv.Itoa(n)+" wait for "+name, func() bool {
		alive := w.alive()
		if len(w.show(name).Waiters) == n {
			return true
		}
		if alive < n {
			w.t.Fatalf("%d processes are left of those of which %d should wait for %s", alive, n, name)
		}
		return false
	})
}

func (w *world) spans() []life.Span {
	w.t.Helper()
	all, err := life.Read(w.lives)
	must(w.t, err)
	return all
}

// after is the first life of a hold later than that of a token, when n
// processes of it have begun.
func (w *world) after(token int64, n int) life.Span {
	w.t.Helper()
	var first life.Span
	await(w.t, "a command begins under a token above "+strconv.FormatInt(token, 10), func() bool {
		alive := w.alive()
		later := slices.DeleteFunc(w.spans(), func(s life.Span) bool { return s.Token <= token })
		if len(later) < n {
			if alive == 0 {
				w.t.Fatalf("all processes have ended, and no command began under a token above %d", token)
			}
			return false
		}
		first = later[0]
		return true
	})
	return first
}

// checkEmpty is that no process of this world is left.
func (w *world) checkEmpty() {
	var left []int
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if left = living(w.dir); len(left) == 0 {
			return
		}
	}
	for _, pid := range left {
		name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		w.t.Errorf("left over: %d %q", pid, name)
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// living are the processes that were started in a world.
func living(world string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && bytes.Contains(env, []byte(mark+world+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}
