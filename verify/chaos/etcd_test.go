//go:build linux

package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

// newMembers starts an etcd, or skips.
func newMembers(t *testing.T) *lane {
	t.Helper()
	c := servers.EtcdThree(t, &servers.ClusterOptions{Cuttable: true})
	// What is longer than a frame of HTTP/2 that only acknowledges.
	tells := func(reply []byte) bool { return len(reply) > 60 }
	l := &lane{kind: "etcd", nodes: &nodes{c, c.Database(t), tells}}
	l.ttl = ttlOn(t, l.nodes.keyspace)
	t.Logf("figure: %s; TTL %v", c.Name, l.ttl)
	return l
}

// ofMembers are what can happen to an etcd besides.
var ofMembers = []fault{
	{"the leader killed", func(e *episode) {
		n := e.leader()
		e.withoutOne(n, "killed, the leader", e.lane.nodes.Kill)
		e.mend(func(n int) error { return e.lane.nodes.Restart(e.t.Context(), n) }, n)
	}, nil},
	{"the leader stopped", func(e *episode) {
		n := e.leader()
		e.withoutOne(n, "stopped, the leader", e.lane.nodes.Freeze)
		e.mend(e.lane.nodes.Thaw, n)
	}, nil},
	{"the leader cut off from the others only", func(e *episode) {
		n := e.leader()
		e.withoutOne(n, "cut off from the others, the leader", e.lane.nodes.Part)
		e.mend(e.lane.nodes.Join, n)
	}, nil},
	{"compaction and defragmentation", func(e *episode) {
		c := e.etcd()
		for i := range 8 {
			must(e.t, c.Compact(e.t.Context(), i%servers.Nodes))
			must(e.t, c.Defragment(e.t.Context(), i%servers.Nodes))
			e.sleep(e.between(10*time.Millisecond, 100*time.Millisecond))
		}
		e.note("compacted and defragmented")
	}, nil},
	{"compaction while a member is cut off", func(e *episode) {
		n := e.rng.IntN(servers.Nodes)
		e.withoutOne(n, "cut off", e.lane.nodes.CutOff)
		must(e.t, e.etcd().Compact(e.t.Context(), (n+1)%servers.Nodes))
		e.mend(e.lane.nodes.Join, n)
	}, nil},
}

func (e *episode) etcd() *servers.EtcdCluster { return e.lane.nodes.cluster.(*servers.EtcdCluster) }

func (e *episode) leader() int {
	n, err := e.etcd().Leader(e.t.Context())
	must(e.t, err)
	return n
}

// TestEtcd goes through the faults of an etcd of three members, and of those who use it.
func TestEtcd(t *testing.T) {
	throughNodes(t, newMembers, slices.Concat(ofMembers, ofNodes), slices.Concat(ofWorkers[:3], moreOfNodes), 12)
}
