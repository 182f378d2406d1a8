//go:build linux

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestShort is for each change: one fault or two on most stores, at the same time;
// which, the seed says.
func TestShort(t *testing.T) {
	if *full {
		return // all are tried
	}
	t.Run("on", func(t *testing.T) {
		for _, c := range []struct {
			kind   string
			faults []fault
			n      int
		}{
			{"cassandra", ofNodes, 1},
			{"etcd", slices.Concat(ofMembers, ofNodes), 1},
			{"postgres", slices.Concat(ofServer, ofNetwork), 2},
			{"mysql", slices.Concat(ofServer, ofNetwork), 2},
			{"sqlite", ofWorkers, 1},
			{"directory", ofWorkers[:3], 1},
		} {
			t.Run(c.kind, func(t *testing.T) {
				l := laneOf(t, c.kind) // one starts after the other
				t.Parallel()
				rng := rand.New(rand.NewPCG(*seed, uint64(len(c.kind))))
				for i, n := range rng.Perm(len(c.faults))[:c.n] {
					f := c.faults[n]
					t.Run(fmt.Sprintf("%s/%d", f.name, i), func(t *testing.T) { f.run(t, l, seedOf(*seed, c.kind, f.name, i)) })
				}
			})
		}
	})
	report(t)
}
