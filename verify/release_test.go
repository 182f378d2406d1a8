package main

import (
	"os"
	"path/filepath"
	"testing"
)

// What has passed is not run again; what has failed is, and is reported.
func TestRelease(t *testing.T) {
	state := filepath.Join(t.TempDir(), "passed")
	t.Setenv("HOLDFAST_LEDGER", filepath.Join(t.TempDir(), "LEDGER.tsv"))
	if failed, err := runRelease(state, "seeds 0 to", 0, true); err != nil || len(failed) > 0 {
		t.Fatal(failed, err)
	}
	if err := pass(state, "seeds 0 to 99999"); err != nil {
		t.Fatal(err)
	}
	if failed, err := runRelease(state, "seeds 0 to", 0, false); err != nil || len(failed) > 0 { // else this would take minutes
		t.Fatal(failed, err)
	}
	log := filepath.Join(t.TempDir(), "log")
	if err := runLogged(".", log, []string{"no-such-command"}); err == nil {
		t.Error("a command that fails passes")
	}
	if text, err := os.ReadFile(log); err != nil || len(text) == 0 {
		t.Errorf("the log of what fails says %q (%v)", text, err)
	}
}

// Each run has a name of its own, and the seeds are ten million without a gap.
func TestReleaseWork(t *testing.T) {
	names, seeds := make(map[string]bool), 0
	for _, w := range releaseWork(nil) {
		if names[w.name] {
			t.Errorf("%q is there twice", w.name)
		}
		names[w.name] = true
		if len(w.name) > 5 && w.name[:5] == "seeds" {
			seeds += 100_000
		}
	}
	if seeds != 10_000_000 || !names["seeds 9900000 to 9999999"] {
		t.Errorf("%d seeds", seeds)
	}
}
