package sim_test

import (
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
			t.Parallel()
			for seed := range uint64(most) { // to be slow is no broken promise
				var r *sim.Result
				synctest.Test(t, func(t *testing.T) { r = sim.RunFlawed(seed, isolation, wrong) })
				if found := r.Judge(); len(found) > 0 && found[0].Rule != "C7" {
					t.Logf("%s: seed %d: %v", isolation, seed, found[0])
					return
				}
			}
			t.Errorf("%s: not found by %d seeds", isolation, most)
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
