package sim_test

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-lock/holdfast/verify/sim"
)

// TestFlaws plays seeds on databases that do not do what they promise: each is found.
// And on the same ones without the flaw, where nothing is.
func TestFlaws(t *testing.T) {
	const most, enough = 20000, 100
	for wrong, isolation := range sim.Flaws {
		t.Run(wrong, func(t *testing.T) {
			var found atomic.Bool
			t.Run("seeds", func(t *testing.T) {
				for first := range runtime.GOMAXPROCS(0) {
					t.Run(strconv.Itoa(first), func(t *testing.T) {
						t.Parallel()
						for seed := first; seed < most && !found.Load(); seed += runtime.GOMAXPROCS(0) {
							var r *sim.Result
							synctest.Test(t, func(t *testing.T) { r = sim.RunFlawed(uint64(seed), isolation, wrong) })
							if v := r.Judge(); len(v) > 0 && v[0].Rule != "C7" { // to be slow is no broken promise
								t.Logf("%s: seed %d: %v", isolation, seed, v[0])
								found.Store(true)
							}
						}
					})
				}
			})
			if !found.Load() {
				t.Errorf("%s: not found by %d seeds", isolation, most)
			}
		})
	}
	for _, isolation := range []string{"read committed", "snapshot", "lightweight"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(enough) {
				var r *sim.Result
				synctest.Test(t, func(t *testing.T) { r = sim.RunFlawed(seed, isolation, "") })
				for _, v := range r.Judge() {
					t.Fatalf("seed %d: %v", seed, v)
				}
			}
		})
	}
}
