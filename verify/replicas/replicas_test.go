//go:build linux

package replicas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/holdfast-lock/holdfast/verify/stores"
)

// A belief is that of a client that it holds a name.
type belief struct {
	name        string
	token       int64
	begin, stop time.Time
	lost        string // why it was lost; "": it was given back
}

// A history is what all clients believed.
type history struct {
	mu         sync.Mutex
	beliefs    []belief
	unbelieved atomic.Int64    // grants that were told too late to be believed
	lapsed     [2]atomic.Int64 // places in line that were lost: of those who wait by a stream, of others
	failures   []string
}

func (h *history) believed(b belief) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beliefs = append(h.beliefs, b)
}

func (h *history) failed(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = append(h.failures, fmt.Sprintf(format, args...))
}

// judge finds two that believed at one time, and tokens that do not grow.
func (h *history) judge(t *testing.T) {
	t.Helper()
	slices.SortFunc(h.beliefs, func(a, b belief) int { return cmp.Or(strings.Compare(a.name, b.name), a.begin.Compare(b.begin)) })
	for i := 1; i < len(h.beliefs); i++ {
		a, b := h.beliefs[i-1], h.beliefs[i]
		if a.name != b.name {
			continue
		}
		if b.begin.Before(a.stop) {
			t.Errorf("exclusion: %q was held with token %d until %v after the one with token %d began", a.name, a.token, a.stop.Sub(b.begin), b.token)
		}
		if b.token <= a.token {
			t.Errorf("order: token %d of %q follows %d", b.token, a.name, a.token)
		}
	}
}

// A replica is a process of holdfast serve.
type replica struct {
	t       *testing.T
	address string
	args    []string
	log     *os.File
	cmd     *exec.Cmd
}

func (r *replica) start() {
	r.t.Helper()
	r.cmd = exec.Command(holdfastPath, r.args...)
	r.cmd.Stderr = r.log
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

// world is two replicas on a database, behind a balancer.
func world(t *testing.T) (replicas []*replica, b *balancer, secret string) {
	t.Helper()
	server := servers.Postgres(t, nil)
	target := server.Database(t)
	if err := stores.Migrate(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := exec.Command(holdfastPath, "serve", "token", "tester", "take,look", "*")
	var said strings.Builder
	c.Stderr = &said
	line, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(said.String())
	secret = fields[len(fields)-1]
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, line, 0o600); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for i := range 2 {
		log, err := os.Create(filepath.Join(dir, fmt.Sprint("log", i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		r := &replica{t: t, address: freePort(t), log: log}
		r.args = []string{"--store", target, "serve", "--socket", "-", "--listen", r.address, "--tokens", tokens, "--log", "none"}
		r.start()
		t.Cleanup(r.kill)
		replicas, addresses = append(replicas, r), append(addresses, r.address)
	}
	return replicas, newBalancer(t, addresses...), secret
}

// Replicas are killed, stopped and restarted, requests are doubled and late: no two clients ever believe that
// they hold the same name, tokens grow, and no client loses a hold.
func TestReplicas(t *testing.T) {
	ttl, lasts, clients := busy.Times(3*time.Second), 30*time.Second, 12
	if *full {
		lasts = 5 * time.Minute
	}
	replicas, b, secret := world(t)
	var h history
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var wg sync.WaitGroup
	var stood atomic.Int64 // longest time in which nothing of this process ran
	wg.Go(func() {
		for last := time.Now(); ctx.Err() == nil; last = time.Now() {
			time.Sleep(20 * time.Millisecond)
			if late := int64(time.Since(last)); late > stood.Load() {
				stood.Store(late)
			}
		}
	})
	for n := range clients {
		wg.Go(func() {
			c := newClient("http://"+b.ln.Addr().String(), secret, ttl, uint64(n), &h)
			for ctx.Err() == nil {
				id, name := newID(), fmt.Sprint("n", c.rng.IntN(3))
				token, deadline, err := c.take(ctx, id, name, n%2 == 0)
				switch {
				case ctx.Err() != nil:
				case errors.Is(err, errOver):
					h.lapsed[n%2].Add(1)
				case err != nil:
					h.failed("take: %v", err)
				default:
					c.hold(context.WithoutCancel(ctx), id, name, token, deadline, time.Duration(c.rng.Int64N(int64(ttl/2))))
				}
			}
			c.doubles.Wait()
		})
	}
	kills, freezes, terms := 0, 0, 0
	rng := rand.New(rand.NewPCG(1, 2))
	for ctx.Err() == nil {
		select {
		case <-time.After(ttl/2 + time.Duration(rng.Int64N(int64(ttl/2)))):
		case <-ctx.Done():
			continue
		}
		r := replicas[rng.IntN(2)]
		switch rng.IntN(4) {
		case 0:
			kills++
			r.kill()
			r.start()
			continue
		case 1: // as in a rolling update
			terms++
			begun := time.Now()
			r.cmd.Process.Signal(syscall.SIGTERM)
			if err := r.cmd.Wait(); err != nil || time.Since(begun) > ttl {
				t.Errorf("after SIGTERM a replica ended with %v after %v", err, time.Since(begun))
			}
			r.start()
			continue
		}
		freezes++
		r.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(ttl/6 + time.Duration(rng.Int64N(int64(5*ttl/3))))
		r.cmd.Process.Signal(syscall.SIGCONT)
	}
	wg.Wait()
	h.judge(t)
	lost := 0
	for _, b := range h.beliefs {
		if b.lost == "" {
			continue
		}
		if lost++; time.Duration(stood.Load()) < ttl/4 {
			t.Errorf("%q (token %d) was lost after %v: %s", b.name, b.token, b.stop.Sub(b.begin), b.lost)
		}
	}
	for _, f := range h.failures {
		t.Error(f)
	}
	t.Logf("%d kills, %d freezes, %d terminations, %d grants believed, %d told too late, %d places lapsed of streams and %d of others, %d lost; this process stood still for %v at most", kills, freezes, terms, len(h.beliefs), h.unbelieved.Load(), h.lapsed[0].Load(), h.lapsed[1].Load(), lost, time.Duration(stood.Load()))
	if len(h.beliefs) < 20 || kills+freezes+terms < 3 {
		t.Errorf("too little happened")
	}
}

// Both replicas are gone for less than a TTL: neither the hold nor the place in line is lost.
func TestBothGone(t *testing.T) {
	ttl := busy.Times(4 * time.Second)
	replicas, b, secret := world(t)
	var h history
	holder := newClient("http://"+b.ln.Addr().String(), secret, ttl, 1, &h)
	waiter := newClient("http://"+b.ln.Addr().String(), secret, ttl, 2, &h)
	id, next := newID(), newID()
	token, deadline, err := holder.take(t.Context(), id, "n", false)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { holder.hold(t.Context(), id, "n", token, deadline, 2*ttl) })
	wg.Go(func() {
		token, deadline, err := waiter.take(t.Context(), next, "n", true)
		if err != nil {
			t.Errorf("the place in line is lost: %v", err)
			return
		}
		waiter.hold(t.Context(), next, "n", token, deadline, ttl/4)
	})
	time.Sleep(ttl / 2)
	for _, r := range replicas {
		r.kill()
	}
	time.Sleep(ttl / 8)
	for _, r := range replicas {
		r.start()
	}
	wg.Wait()
	holder.doubles.Wait()
	waiter.doubles.Wait()
	h.judge(t)
	if len(h.beliefs) != 2 || h.beliefs[0].lost != "" || h.beliefs[1].lost != "" {
		t.Errorf("%+v", h.beliefs)
	}
}
