//go:build linux

package chaos

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// nodes are a cluster to break, and the keyspace of its episodes, which come one
// after the other and take the same names.
type nodes struct {
	cluster
	keyspace string
	// tells says whether a reply tells what became of a transaction.
	tells func(reply []byte) bool
}

// A cluster has nodes, or members, that can be broken.
type cluster interface {
	Kill(n int) error
	Restart(ctx context.Context, n int) error
	Freeze(n int) error
	Thaw(n int) error
	CutOff(n int) error
	Part(n int) error
	Join(n int) error
	Settled(ctx context.Context) error
	Clients(n int) *servers.Proxy
}

// newNodes starts a cluster, or skips.
func newNodes(t *testing.T) *lane {
	t.Helper()
	c := servers.Cassandra(t, &servers.ClusterOptions{Cuttable: true})
	applied := func(reply []byte) bool { return bytes.Contains(reply, []byte("[applied]")) }
	l := &lane{kind: "cassandra", nodes: &nodes{c, c.Database(t), applied}}
	must(t, stores.Migrate(t.Context(), l.nodes.keyspace))
	l.ttl = ttlOn(t, l.nodes.keyspace)
	t.Logf("figure: %s; TTL %v", c.Name, l.ttl)
	return l
}

// ttlOn is a TTL that this machine can keep with three nodes on it and a crowd,
// between 4 and 20 seconds.
func ttlOn(t *testing.T, keyspace string) time.Duration {
	t.Helper()
	s, err := stores.Open(t.Context(), keyspace)
	must(t, err)
	defer s.Close()
	k := driver.Key{Space: driver.Settings, Name: "speed"}
	old := int64(driver.IfEmpty)
	var took []time.Duration
	for range 30 {
		began := time.Now()
		outs, err := s.CompareAndSwap(t.Context(), []driver.Write{{Key: k, Old: old, Value: []byte("x")}})
		must(t, err)
		took = append(took, time.Since(began))
		old = outs[0].Record.Version
	}
	slices.Sort(took)
	return min(max(60*took[len(took)*9/10], 4*time.Second), 20*time.Second)
}

// ofNodes are what can happen to the nodes of a cluster.
var ofNodes = []fault{
	{"one node killed", func(e *episode) {
		n := e.rng.IntN(servers.Nodes)
		e.withoutOne(n, "killed", e.lane.nodes.Kill)
		e.mend(func(n int) error { return e.lane.nodes.Restart(e.t.Context(), n) }, n)
	}, nil},
	{"one node cut off", func(e *episode) {
		n := e.rng.IntN(servers.Nodes)
		e.withoutOne(n, "cut off", e.lane.nodes.CutOff)
		e.mend(e.lane.nodes.Join, n)
	}, nil},
	{"two nodes stopped", func(e *episode) { e.withoutTwo("stopped", e.lane.nodes.Freeze, e.lane.nodes.Thaw) }, nil},
	{"answers of transactions thrown away, with their connections", answersThrownAway, nil},
}

// moreOfNodes are for the full size: they take long, or resemble others.
var moreOfNodes = []fault{
	{"one node stopped", func(e *episode) {
		n := e.rng.IntN(servers.Nodes)
		e.withoutOne(n, "stopped", e.lane.nodes.Freeze)
		e.mend(e.lane.nodes.Thaw, n)
	}, nil},
	{"one node cut off from the others only", func(e *episode) {
		n := e.rng.IntN(servers.Nodes)
		e.withoutOne(n, "cut off from the others", e.lane.nodes.Part)
		e.mend(e.lane.nodes.Join, n)
	}, nil},
	{"two nodes killed", func(e *episode) {
		e.withoutTwo("killed", e.lane.nodes.Kill, func(n int) error { return e.lane.nodes.Restart(e.t.Context(), n) })
	}, nil},
	{"two nodes cut off", func(e *episode) { e.withoutTwo("cut off", e.lane.nodes.CutOff, e.lane.nodes.Join) }, nil},
	{"all nodes cut off from each other", func(e *episode) {
		e.silence("cut off from each other", e.lane.nodes.Part, e.lane.nodes.Join, 0, 1, 2)
	}, nil},
	{"connections reset", func(e *episode) {
		for range 6 {
			for n := range servers.Nodes {
				if e.rng.IntN(2) == 0 {
					e.lane.nodes.Clients(n).Cut()
				}
			}
			e.sleep(e.part(0.05, 0.2))
		}
	}, nil},
}

// withoutOne has one node fail: after a while the others grant locks, of every
// name, so to each of the workers.
func (e *episode) withoutOne(n int, how string, fail func(n int) error) {
	must(e.t, fail(n))
	e.note("node %d %s", n, how)
	from := life.Now()
	e.await("locks are granted while a node is "+how, func() bool {
		for _, name := range []string{"one", "both", "slots"} {
			if !e.granted(name, from) {
				return false
			}
		}
		return true
	})
	e.note("without it locks of each name have been granted after %v", time.Duration(life.Now()-from))
	e.sleep(e.part(0, 1))
}

// granted says whether somebody asked for a lock of a name after an instant, and
// was granted it.
func (e *episode) granted(name string, after int64) bool {
	for _, p := range e.workers {
		asked := make(map[int]bool)
		for _, ev := range p.Told() {
			switch {
			case ev.At < after || ev.Name != name:
			case ev.What == story.Asks:
				asked[ev.ID] = true
			case ev.What == story.Granted && asked[ev.ID]:
				return true
			}
		}
	}
	return false
}

// mend has nodes work again and returns when all see each other.
func (e *episode) mend(mend func(n int) error, some ...int) {
	errs := make(chan error, len(some))
	for _, n := range some {
		go func() { errs <- mend(n) }()
	}
	for range some {
		must(e.t, <-errs)
	}
	e.note("nodes %v work again", some)
	must(e.t, e.lane.nodes.Settled(e.t.Context()))
}

func (e *episode) withoutTwo(how string, fail, mend func(n int) error) {
	two := e.rng.Perm(servers.Nodes)[:2]
	e.silence(how, fail, mend, two...)
}

// silence has so many nodes fail that no majority is left: nothing is granted and
// no heartbeat wins, and who holds a lock believes so only as long as its window.
func (e *episode) silence(how string, fail, mend func(n int) error, some ...int) {
	holder := e.start("0", "-names", "held/x", "-lanes", "1", "-long", "1")
	asked := life.Now()
	e.await("a lock is held that will be lost", func() bool { return holder.Has(story.Granted, asked) })
	slow, err := life.Slowness()
	must(e.t, err)
	for _, n := range some {
		must(e.t, fail(n))
	}
	from := life.Now()
	e.note("nodes %v %s", some, how)
	e.await("the holder hears of its loss", func() bool { return holder.Has(story.Lost, asked) || holder.Has(story.Ends, asked) })
	if !holder.Has(story.Lost, asked) {
		e.t.Errorf("who held a lock for longer than its window did not lose it")
	}
	e.sleep(e.part(0.1, 0.5))
	to := life.Now()
	// What was answered before is told of a little later.
	from += int64(500*time.Millisecond + slow())
	for _, p := range e.workers {
		for _, ev := range p.Told() {
			if (ev.What == story.Granted || ev.What == story.Beats) && ev.At > from && ev.At < to {
				e.t.Errorf("%s: %s %s %v after no majority was left", p.ID, ev.What, ev.Name, time.Duration(ev.At-from))
			}
		}
	}
	e.mend(mend, some...)
}

// answersThrownAway resets connections in the place of answers that say what
// became of a transaction.
func answersThrownAway(e *episode) {
	before := 0
	for n := range servers.Nodes {
		before += e.lane.nodes.Clients(n).Cuts()
	}
	for end := time.Now().Add(e.part(0.8, 1.4)); time.Now().Before(end); e.sleep(e.between(20*time.Millisecond, 150*time.Millisecond)) {
		e.lane.nodes.Clients(e.rng.IntN(servers.Nodes)).CutOnReply(e.lane.nodes.tells, 1)
	}
	for n := range servers.Nodes {
		e.lane.nodes.Clients(n).CutOnReply(nil, 0)
		e.cuts += e.lane.nodes.Clients(n).Cuts()
	}
	if e.cuts -= before; e.cuts == 0 {
		e.t.Error("no answer was thrown away")
	}
}

// TestCassandra goes through the faults of a cluster, and of those who use it.
func TestCassandra(t *testing.T) {
	throughNodes(t, newNodes, ofNodes, slices.Concat(ofWorkers[:3], moreOfNodes), 16)
}

// throughNodes goes through some faults, and in the full size through more, so often.
func throughNodes(t *testing.T, nodes func(*testing.T) *lane, some, more []fault, rounds int) {
	t.Run("on", func(t *testing.T) {
		l := nodes(t)
		for round := range number(1, rounds) {
			faults := some
			if *full {
				faults = slices.Concat(some, more)
			}
			for _, f := range faults {
				t.Run(fmt.Sprintf("%s/%d", f.name, round), func(t *testing.T) {
					f.run(t, l, seedOf(*seed, l.kind, f.name, round))
				})
			}
		}
	})
	report(t)
}
