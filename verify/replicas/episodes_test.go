//go:build linux

package replicas

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/verify/stores"
)

// A line is one holder and four who wait behind it for one name, in any mix of HTTP, Go programs and
// `holdfast run`.
type line struct {
	*world
	t        *testing.T
	rng      *rand.Rand
	programs []*program // in the order in which they came
}

// A fault is what happens while a line stands. It returns when it is over.
type fault struct {
	name string
	bend func(l *line)
}

// any is a time between two.
func (l *line) any(from, to time.Duration) time.Duration {
	return from + time.Duration(l.rng.Int64N(int64(to-from)))
}

func (l *line) replica() *replica { return l.replicas[l.rng.IntN(len(l.replicas))] }

// spoil has some be judged by what they believe alone.
func (l *line) spoil(which func(role string) bool) {
	for _, p := range l.programs {
		p.spoiled = p.spoiled || which(p.role)
	}
}

func plain(role string) bool    { return role == byPlain }
func overHTTP(role string) bool { return role == byPlain || role == byStream }
func everybody(string) bool     { return true }

// freeze stops a replica for a while. Of the clients those that wait by plain PUT do not notice, so
// that their places may lapse. A process that is stopped in a transaction of SQLite keeps everybody
// out of the file.
func (l *line) freeze(from, to time.Duration) {
	r := l.replica()
	r.signal(syscall.SIGSTOP)
	time.Sleep(l.any(from, to))
	r.signal(syscall.SIGCONT)
	l.spoil(plain)
	if len(l.replicas) == 1 && to > l.ttl/2 {
		l.spoil(everybody)
	}
}

// restart starts replicas that were killed at a moment. Where no other has served meanwhile, and this
// machine was so busy that they were away for long, the places of those who wait by HTTP may have
// lapsed: what keeps them was renewed up to a third of a TTL before.
func (l *line) restart(killed time.Time, rs ...*replica) {
	var all sync.WaitGroup
	for _, r := range rs {
		all.Go(r.start)
	}
	all.Wait()
	if away := time.Since(killed); len(rs) == len(l.replicas) && away > l.ttl/2 {
		l.t.Logf("no replica for %v of a TTL of %v", away, l.ttl)
		l.spoil(overHTTP)
	}
}

// harm kills one of the programs, or stops it for longer than its lock or its place lives.
func (l *line) harm(n int, kill bool) {
	p := l.programs[n]
	p.spoiled = true
	if kill {
		p.signal(syscall.SIGKILL)
		return
	}
	p.signal(syscall.SIGSTOP)
	time.Sleep(l.any(3*l.ttl/2, 2*l.ttl))
	p.signal(syscall.SIGCONT)
	if len(l.replicas) == 1 && p.role != byPlain && p.role != byStream {
		l.spoil(everybody)
	}
}

var faults = []fault{
	{"a replica is killed", func(l *line) {
		r, killed := l.replica(), time.Now()
		r.kill()
		if len(l.replicas) > 1 {
			time.Sleep(l.any(0, l.ttl))
		}
		l.restart(killed, r)
	}},
	{"a replica is terminated", func(l *line) {
		r := l.replica()
		r.terminate(l.ttl)
		r.start()
	}},
	{"a replica is frozen for a moment", func(l *line) { l.freeze(l.ttl/6, l.ttl/2) }},
	{"a replica is frozen for long", func(l *line) { l.freeze(l.ttl, 2*l.ttl) }},
	{"all replicas are gone for less than a TTL", func(l *line) {
		killed := time.Now()
		for _, r := range l.replicas {
			r.kill()
		}
		time.Sleep(l.any(l.ttl/16, l.ttl/4))
		l.restart(killed, l.replicas...)
	}},
	{"one replica is frozen and the other killed", func(l *line) {
		r := l.replicas[0]
		r.signal(syscall.SIGSTOP)
		if other := l.replicas[len(l.replicas)-1]; other != r {
			time.Sleep(l.any(0, l.ttl/8))
			other.kill()
			other.start()
		}
		time.Sleep(l.any(l.ttl/16, l.ttl/4))
		r.signal(syscall.SIGCONT)
		l.spoil(plain)
	}},
	{"the holder dies", func(l *line) { l.harm(0, true) }},
	{"the holder is frozen", func(l *line) { l.harm(0, false) }},
	{"one who waits dies", func(l *line) { l.harm(1+l.rng.IntN(2), true) }},
	{"one who waits is frozen", func(l *line) { l.harm(1+l.rng.IntN(2), false) }},
}

// counts are what all episodes on a store came to.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[what] += n
}

// One holds a name and four wait for it when a fault happens. No two ever believe that they hold it,
// and tokens grow. Nobody whom the fault must not touch loses the lock or the place in line: they
// are served in the order in which they came, however they wait. In the end the name is free.
func TestEpisodes(t *testing.T) {
	onEach(t, func(t *testing.T, kind string, ttl time.Duration) {
		n, lanes := 10, 3
		if *full {
			n = 50
		}
		if *episodes > 0 {
			n = *episodes
		}
		var c counts
		var next atomic.Int64
		t.Run("lanes", func(t *testing.T) {
			for lane := range min(lanes, n) {
				t.Run(fmt.Sprint(lane), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, databaseOf(t, kind), ttl)
					store, err := stores.Open(t.Context(), w.target)
					if err != nil {
						t.Fatal(err)
					}
					defer store.Close()
					looker, err := holdfast.New(store, &holdfast.Options{TTL: ttl})
					if err != nil {
						t.Fatal(err)
					}
					defer looker.Close()
					for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
						f := faults[i%len(faults)]
						t.Run(fmt.Sprintf("%d %s", i, f.name), func(t *testing.T) {
							for _, r := range w.replicas {
								r.t = t
							}
							w.episode(t, f, fmt.Sprintf("%s/%d", kind, i), rand.New(rand.NewPCG(*seed, uint64(i))), looker, &c)
						})
						for _, r := range w.replicas {
							r.t = t
						}
					}
					c.add("requests doubled", int(w.balancer.doubled.Load()))
				})
			}
		})
		var said []string
		for _, what := range slices.Sorted(maps.Keys(c.of)) {
			said = append(said, fmt.Sprintf("%d %s", c.of[what], what))
		}
		t.Log(strings.Join(said, ", "))
	})
}

func (w *world) episode(t *testing.T, f fault, name string, rng *rand.Rand, looker *holdfast.Client, c *counts) {
	l := &line{world: w, t: t, rng: rng}
	stands := func(holders, waiters int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), busy.Times(20*time.Second))
		defer cancel()
		var last holdfast.Info
		for ctx.Err() == nil {
			info, err := looker.Show(ctx, name)
			if last = info; err == nil && len(info.Holders) == holders && len(info.Waiters) == waiters {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%q has %d holders and %d waiters, want %d and %d", name, len(last.Holders), len(last.Waiters), holders, waiters)
	}
	defer func() {
		for _, p := range l.programs {
			p.signal(syscall.SIGKILL)
			<-p.ended
		}
	}()
	roles := []string{byPlain, byStream, byGo, byRun}
	for n := range 5 {
		role := roles[rng.IntN(len(roles))]
		l.programs = append(l.programs, w.start(t, role, name))
		stands(1, n)
	}
	for _, p := range l.programs[1:] {
		p.stdin.Close()
	}
	released := make(chan struct{})
	after := l.any(0, w.ttl)
	go func() {
		defer close(released)
		time.Sleep(after)
		l.programs[0].stdin.Close()
	}()
	f.bend(l)
	<-released

	patience := time.After(busy.Times(15*w.ttl + 20*time.Second))
	var h history
	var tokens []int64
	for n, p := range l.programs {
		select {
		case <-p.ended:
		case <-patience:
			info, err := looker.Show(t.Context(), name)
			t.Fatalf("number %d (%s) does not end: %+v, %v", n, p.role, info, err)
		}
		h.believed(p.beliefs...)
		c.add("grants", len(p.beliefs))
		for _, word := range p.words {
			if word, _, _ = strings.Cut(word, ":"); word != "done" {
				c.add(word, 1)
			}
		}
		switch {
		case p.spoiled:
			c.add("spoiled", 1)
		case !p.done():
			t.Errorf("number %d (%s) said %q and believed %d times\n%s", n, p.role, p.words, len(p.beliefs), p.stderr.String())
		default:
			tokens = append(tokens, p.beliefs[0].token)
		}
	}
	h.judge(t)
	if !slices.IsSorted(tokens) {
		t.Errorf("not served in the order in which they came: tokens %d", tokens)
	}
	free, cancel := context.WithTimeout(t.Context(), busy.Times(2*w.ttl+20*time.Second)) // what came late lives for a TTL
	defer cancel()
	last, err := looker.Acquire(free, name)
	if err != nil {
		t.Fatalf("it does not become free: %v", err)
	}
	if n := len(h.beliefs); n > 0 && last.Token() <= h.beliefs[n-1].token {
		t.Errorf("order: token %d after %d", last.Token(), h.beliefs[n-1].token)
	}
	if err := last.Release(free); err != nil {
		t.Error(err)
	}
	c.add("episodes", 1)
	c.add(f.name, 1)
}
