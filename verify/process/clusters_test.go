//go:build linux

package process

import (
	"slices"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

// On stores that are no SQL databases processes take locks in turn, in the order in which
// they came, and as many as there are slots; those who died ahead cost one lease together;
// and what processes write that are killed at any moment is in order.
func TestClusters(t *testing.T) {
	t.Parallel()
	for _, k := range servers.Kinds {
		if !k.SQL {
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				onCluster(t, k)
			})
		}
	}
}

func onCluster(t *testing.T, k servers.Kind) {
	fresh := on(t, k)
	var not []string
	if k.Emulator != "" {
		// It runs one transaction at a time. Others it turns away, and its client asks again
		// later and later, so who comes into a crowd that never pauses may wait for long there;
		// that is not tried.
		not = append(not, "readers and writer")
		if !*full {
			not = append(not, "order", "rivals")
		}
	}
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
