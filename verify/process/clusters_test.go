//go:build linux

package process

import (
	"crypto/rand"
	"slices"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

// On Cassandra processes take locks in turn, in the order in which they came, and
// as many as there are slots; those who died ahead cost one lease together; and
// what processes write that are killed at any moment is in order.
func TestCassandra(t *testing.T) {
	t.Parallel()
	c := servers.Cassandra(t, nil) // or skips
	onCluster(t, func(t *testing.T) *world {
		t.Helper()
		w := newDir(t)
		return w.open(c.Keyspace(t))
	})
}

// The same in an etcd of three members.
func TestEtcd(t *testing.T) {
	t.Parallel()
	c := servers.EtcdThree(t, nil) // or skips
	onCluster(t, func(t *testing.T) *world {
		t.Helper()
		w := newDir(t)
		return w.open(c.URL + "?prefix=test/" + rand.Text() + "/")
	})
}

// The same in an emulator of Spanner, which runs one transaction at a time. Others it
// turns away, and its client asks again later and later, so who comes into a crowd that
// never pauses may wait for long there; that is not tried.
func TestSpanner(t *testing.T) {
	t.Parallel()
	s := servers.Spanner(t, nil) // or skips
	not := []string{"readers and writer"}
	if !*full {
		not = append(not, "order", "rivals")
	}
	onCluster(t, func(t *testing.T) *world {
		t.Helper()
		w := newDir(t)
		return w.open(s.SpannerDatabase(t))
	}, not...)
}

func onCluster(t *testing.T, fresh func(t *testing.T) *world, not ...string) {
	tests := []struct {
		name string
		run  func(*testing.T, func(*testing.T) *world)
		full bool
	}{
		{"counter", counter, false},
		{"slots", slots, false},
		{"order", order, false},
		{"rivals", rivalry, false},
		{"many dead ahead", manyDeadAhead, false},
		{"readers and writer", readersAndWriter, true},
		{"crash points", crashPoints, true},
	}
	for _, test := range tests {
		if test.full && !*full {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			if slices.Contains(not, test.name) {
				t.Skip("SKIPPED: not on this store, or only at the full size")
			}
			test.run(t, fresh)
		})
	}
}
