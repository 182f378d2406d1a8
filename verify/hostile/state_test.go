//go:build linux

package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/state"
)

// A thing is what a state's key stands for: a number that only grows, with all
// writes that were reported as ended.
type thing struct {
	mu    sync.Mutex
	value int
	ended []reported
}

type reported struct {
	at    time.Time
	value int
}

func (x *thing) next() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.value++
	return x.value
}

func (x *thing) now() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.value
}

func (x *thing) end(value int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = append(x.ended, reported{time.Now(), value})
}

// least is the least that a reader may be served who asks then.
func (x *thing) least(at time.Time) (least int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.ended {
		if r.at.Before(at) {
			least = max(least, r.value)
		}
	}
	return least
}

// A reader serves the thing from a cache, as a state's key allows it.
type reader struct {
	state               *state.State
	old                 time.Duration // how old this host's caches may be
	cache               map[state.Key]int
	asked, hits, failed int
	last                string // what it saw last
}

func (r *reader) serve(ctx context.Context, x *thing) error {
	asked := time.Now()
	r.asked++
	before, err := r.state.Key(ctx)
	r.last = fmt.Sprintf("%+v, error %v", before, err)
	if err != nil {
		r.failed++
		return nil
	}
	if v, ok := r.cache[before]; ok && !before.Writing {
		r.hits++
		if least := x.least(asked.Add(-r.old)); v < least {
			return fmt.Errorf("served %d, and %d had been written %v or more before", v, least, r.old)
		}
		return nil
	}
	v := x.now()
	after, err := r.state.Key(ctx)
	if err == nil && before.Equal(after) && !before.Writing && !after.Writing {
		r.cache[before] = v
	}
	return nil
}

// write writes once. What fails is repeated until it is known to have ended.
func write(ctx context.Context, s *state.State, x *thing, within time.Duration) error {
	w, err := s.Begin(ctx)
	if err != nil {
		return nil // nothing may be written
	}
	v := x.next()
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		switch err := w.End(ctx); {
		case err == nil || errors.Is(err, holdfast.ErrLost):
			x.end(v)
			return nil
		case time.Now().After(end):
			return fmt.Errorf("not ended within %v: %w", within, err)
		}
	}
}

// keys runs writers on the first hosts and readers on all, while during is at
// work. No reader is served anything older than its host's caches may be, and in
// the end all are served the last.
func keys(t *testing.T, s *Server, hosts []*Mount, old []time.Duration, during func()) {
	x := &thing{}
	ctx, done := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var readers []*reader
	for i, m := range hosts {
		st, err := state.Dir(m.Path, &state.DirOptions{Lease: 2 * time.Second})
		must(t, err)
		if i < 2 {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(*seed, uint64(i)))
				for ctx.Err() == nil {
					if err := write(t.Context(), st, x, patience); err != nil {
						t.Errorf("host %d: %v", i, err)
					}
					time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
				}
			})
		}
		r := &reader{state: st, old: old[i], cache: make(map[state.Key]int)}
		readers = append(readers, r)
		all.Go(func() {
			for ctx.Err() == nil {
				if err := r.serve(t.Context(), x); err != nil {
					t.Errorf("host %d: %v", i, err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	during()
	for _, m := range hosts {
		m.CutOff(Connected)
		m.Set(Faults{})
	}
	s.Settle()
	done()
	all.Wait()
	for i, r := range readers {
		r.old = 0
		hits := r.hits
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if err := r.serve(t.Context(), x); err != nil && time.Since(x.ended[len(x.ended)-1].at) > old[i] {
				t.Errorf("host %d, in the end: %v", i, err)
				break
			}
			if r.hits > hits {
				break
			}
			if time.Now().After(end) {
				t.Errorf("host %d is never served from its cache in the end; last it saw %s", i, r.last)
				s.Walk(func(path string, data []byte) { t.Logf("left: %s: %q", path, data) })
				break
			}
		}
		if r.asked < 5 || len(x.ended) < 5 {
			t.Errorf("host %d asked %d times, and there were %d writes: nothing was tested", i, r.asked, len(x.ended))
		}
		t.Logf("host %d: asked %d times, %d from the cache, %d failed; %d writes", i, r.asked, r.hits, r.failed, len(x.ended))
	}
}

// stateHosts are hosts of a server.
func stateHosts(t *testing.T, names Names, n int) (*Server, []*Mount) {
	s, _ := serve(t, *seed, names, 0)
	var hosts []*Mount
	for range n {
		hosts = append(hosts, host(t, s))
	}
	return s, hosts
}

// Hosts whose caches are old serve what is so old, and never longer: what is in
// the cache of answers is right for good. A host without caches, as NFS is with
// actimeo=0 (or noac) and lookupcache=none, mounted hard from a server that
// exports sync, serves nothing that is older than a write that has ended.
func TestState(t *testing.T) {
	const old = 300 * time.Millisecond
	lost := Faults{Lost: 0.05, Again: 0.05, Late: 0.03, Twice: 0.05, LateBy: time.Second, Refused: 0.03}
	for name, f := range map[string]Faults{
		"lost replies": lost,
		"failing":      {Read: 0.03, Refused: 0.1, Sync: 0.1, Full: 0.1},
		"slow":         {Slow: 0.2, SlowBy: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, hosts := stateHosts(t, Durable, 4)
			hosts[0].Set(f)
			hosts[1].Set(f)
			hosts[3].Set(Faults{Stale: old})
			keys(t, s, hosts, []time.Duration{0, 0, 0, old}, func() { time.Sleep(4 * time.Second) })
		})
	}
	for _, names := range []Names{Anyhow, InOrder, Durable} {
		t.Run(fmt.Sprint("crashes ", names), func(t *testing.T) {
			t.Parallel()
			s, hosts := stateHosts(t, names, 3)
			keys(t, s, hosts, make([]time.Duration, 3), func() {
				rng := rand.New(rand.NewPCG(*seed, 9))
				for range 15 {
					time.Sleep(time.Duration(100+rng.IntN(200)) * time.Millisecond)
					how := []Cut{Hangs, Fails}[rng.IntN(2)]
					for _, m := range hosts {
						m.CutOff(how)
					}
					s.Crash()
					for _, m := range hosts {
						m.CutOff(Connected)
					}
				}
			})
		})
	}
}
