//go:build linux

package replicas

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/overhttp"
	"github.com/holdfast-lock/holdfast/verify/stores"
)

// A belief is that of a client that it holds a name.
type belief struct {
	name  string
	token int64
	overhttp.Belief
}

// A history is what all clients believed.
type history struct {
	mu         sync.Mutex
	beliefs    []belief
	unbelieved atomic.Int64    // grants that were told too late to be believed
	lapsed     [2]atomic.Int64 // places in line that were lost: of those who wait by a stream, of others
	failures   []string
}

func (h *history) believed(b ...belief) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beliefs = append(h.beliefs, b...)
}

func (h *history) failed(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = append(h.failures, fmt.Sprintf(format, args...))
}

// judge finds two that believed at one time, and tokens that do not grow.
func (h *history) judge(t *testing.T) {
	t.Helper()
	slices.SortFunc(h.beliefs, func(a, b belief) int { return cmp.Or(strings.Compare(a.name, b.name), a.Begin.Compare(b.Begin)) })
	for i := 1; i < len(h.beliefs); i++ {
		a, b := h.beliefs[i-1], h.beliefs[i]
		if a.name != b.name {
			continue
		}
		if b.Begin.Before(a.Stop) {
			t.Errorf("exclusion: %q was held with token %d until %v after the one with token %d began", a.name, a.token, a.Stop.Sub(b.Begin), b.token)
		}
		if b.token <= a.token {
			t.Errorf("order: token %d of %q follows %d", b.token, a.name, a.token)
		}
	}
}

// A world is replicas on a database, behind a balancer.
type world struct {
	dir, target, secret string
	ttl                 time.Duration
	replicas            []*replica
	balancer            *balancer
}

// databaseOf is an empty database of a kind for a test.
func databaseOf(t *testing.T, kind string) (target string) {
	t.Helper()
	switch kind {
	case "postgres":
		target = servers.Postgres(t, nil).Database(t)
	case "mysql":
		target = servers.MySQL(t, nil).Database(t)
	case "sqlite":
		target = "sqlite:" + filepath.Join(t.TempDir(), "locks.db")
	case "etcd":
		target = "etcd://" + strings.TrimPrefix(servers.Etcd(t, nil).URL, "http://") + "?prefix=" + strings.ToLower(rand.Text()[:12]) + "/"
	case "cassandra":
		target = servers.Cassandra(t, nil).Database(t)
	default:
		t.Fatalf("no store is called %q", kind)
	}
	if err := stores.Migrate(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	return target
}

// newWorld starts replicas on a database: two, or one where all is a file.
func newWorld(t *testing.T, target string, ttl time.Duration) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), target: target, ttl: ttl}
	c := exec.Command(holdfastPath, "serve", "token", "tester", "take,look", "*")
	var said strings.Builder
	c.Stderr = &said
	line, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(said.String())
	w.secret = fields[len(fields)-1]
	tokens := filepath.Join(w.dir, "tokens")
	if err := os.WriteFile(tokens, line, 0o600); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for i := range 2 {
		if i > 0 && strings.HasPrefix(target, "sqlite:") {
			break
		}
		log, err := os.Create(filepath.Join(w.dir, fmt.Sprint("log", i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		r := &replica{t: t, address: freePort(t), log: log, env: w.env()}
		r.args = []string{"--store", target, "serve", "--socket", "-", "--listen", r.address, "--tokens", tokens, "--log", "none"}
		r.start()
		t.Cleanup(r.kill)
		w.replicas, addresses = append(w.replicas, r), append(addresses, r.address)
	}
	w.balancer = newBalancer(t, ttl, addresses)
	return w
}

// env is the environment of all processes of a world, which are on one host.
func (w *world) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "USER=ana", "XDG_RUNTIME_DIR=" + w.dir}
}

// A replica is a process of holdfast serve.
type replica struct {
	t         *testing.T
	address   string
	args, env []string
	log       *os.File
	cmd       *exec.Cmd
}

func (r *replica) start() {
	r.t.Helper()
	r.cmd = exec.Command(holdfastPath, r.args...)
	r.cmd.Stderr, r.cmd.Env = r.log, r.env
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	for end := time.Now().Add(busy.Times(20 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", r.address)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("a replica does not listen: %v", err)
		}
	}
}

func (r *replica) kill() {
	r.cmd.Process.Kill()
	r.cmd.Wait()
}

func (r *replica) signal(s os.Signal) { r.cmd.Process.Signal(s) }

// terminate ends a replica as a rolling update does.
func (r *replica) terminate(ttl time.Duration) {
	r.t.Helper()
	begun := time.Now()
	r.signal(syscall.SIGTERM)
	if err := r.cmd.Wait(); err != nil || time.Since(begun) > ttl {
		r.t.Errorf("after SIGTERM a replica ended with %v after %v", err, time.Since(begun))
	}
}

// freePort is a port that is likely to stay free.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
