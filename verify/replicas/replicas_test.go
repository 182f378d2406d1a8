//go:build linux

package replicas

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/busy"
	"github.com/holdfast-lock/holdfast/verify/overhttp"
)

// onEach runs a test on each store that was asked for.
func onEach(t *testing.T, test func(t *testing.T, kind string, ttl time.Duration)) {
	kinds := "postgres,mysql,sqlite,etcd"
	if *full {
		kinds += ",cassandra"
	}
	if *onStores != "" {
		kinds = *onStores
	}
	for kind := range strings.SplitSeq(kinds, ",") {
		ttl := busy.Times(3 * time.Second)
		if kind == "cassandra" {
			ttl *= 2
		}
		t.Run(kind, func(t *testing.T) { test(t, kind, ttl) })
	}
}

// Replicas are killed, stopped and restarted, at any time, and requests are doubled and late: no two
// clients ever believe that they hold the same name, tokens grow, and no client loses a hold. Where
// there is one replica it is not stopped for longer than a hold lives.
func TestReplicas(t *testing.T) {
	onEach(t, func(t *testing.T, kind string, ttl time.Duration) {
		if !*full && *onStores == "" && (kind == "mysql" || kind == "etcd") {
			t.Skip("SKIPPED: half a minute of it, without -full; the episodes are for this store, too")
		}
		soak(t, kind, ttl)
	})
}

func soak(t *testing.T, kind string, ttl time.Duration) {
	lasts, clients := 30*time.Second, 12
	if *full {
		lasts = 5 * time.Minute
	}
	w := newWorld(t, databaseOf(t, kind), ttl)
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
			c := &overhttp.Client{Base: w.balancer.url, Secret: w.secret, TTL: ttl}
			rng := rand.New(rand.NewPCG(*seed, uint64(n)))
			for ctx.Err() == nil {
				name := fmt.Sprint("n", rng.IntN(3))
				grant, err := c.Take(ctx, overhttp.NewID(), overhttp.Request{Names: []string{name}, Wait: time.Minute, ByStream: n%2 == 0})
				switch {
				case ctx.Err() != nil:
				case errors.Is(err, overhttp.ErrOver):
					h.lapsed[n%2].Add(1)
				case err != nil:
					h.failed("take: %v", err)
				default:
					end := make(chan struct{})
					time.AfterFunc(time.Duration(rng.Int64N(int64(ttl/2))), func() { close(end) })
					if b, believed := c.Keep(context.WithoutCancel(ctx), grant, end); believed {
						h.believed(belief{name, grant.Token, b})
					} else {
						h.unbelieved.Add(1)
					}
				}
			}
		})
	}
	kills, freezes, terms := 0, 0, 0
	rng := rand.New(rand.NewPCG(*seed, 1000))
	least, more := ttl/6, 5*ttl/3
	if len(w.replicas) == 1 { // the last heartbeat may be a third of a TTL old, and a hold ends after two
		least, more = ttl/12, ttl/8
	}
	for ctx.Err() == nil {
		select {
		case <-time.After(ttl/2 + time.Duration(rng.Int64N(int64(ttl/2)))):
		case <-ctx.Done():
			continue
		}
		r := w.replicas[rng.IntN(len(w.replicas))]
		switch rng.IntN(4) {
		case 0:
			kills++
			r.kill()
			r.start()
		case 1: // as in a rolling update
			terms++
			r.terminate(ttl)
			r.start()
		default:
			freezes++
			r.signal(syscall.SIGSTOP)
			time.Sleep(least + time.Duration(rng.Int64N(int64(more))))
			r.signal(syscall.SIGCONT)
		}
	}
	wg.Wait()
	h.judge(t)
	lost := 0
	for _, b := range h.beliefs {
		if b.Lost == "" {
			continue
		}
		if lost++; time.Duration(stood.Load()) < ttl/4 {
			t.Errorf("%q (token %d) was lost after %v: %s", b.name, b.token, b.Stop.Sub(b.Begin), b.Lost)
		}
	}
	for _, f := range h.failures {
		t.Error(f)
	}
	t.Logf("%d kills, %d freezes, %d terminations, %d requests doubled, %d grants believed, %d told too late, %d places lapsed of streams and %d of others, %d lost; this process stood still for %v at most",
		kills, freezes, terms, w.balancer.doubled.Load(), len(h.beliefs), h.unbelieved.Load(), h.lapsed[0].Load(), h.lapsed[1].Load(), lost, time.Duration(stood.Load()))
	if len(h.beliefs) < 20 || kills+freezes+terms < min(3, int(lasts/(2*ttl))) {
		t.Errorf("too little happened")
	}
}
