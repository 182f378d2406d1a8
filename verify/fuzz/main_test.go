package main

import (
	"path/filepath"
	"testing"
)

func TestInputs(t *testing.T) {
	for text, want := range map[string]int{
		"fuzz: elapsed: 0s, gathering baseline coverage: 0/1 completed\nfuzz: elapsed: 3s, execs: 18049 (6011/sec), new interesting: 60 (total: 61)\nfuzz: elapsed: 6s, execs: 18050 (0/sec), new interesting: 60 (total: 61)\nPASS\n": 18050,
		"--- FAIL: FuzzX (0.00s)\n": 0,
		"ok\n":                      -1,
	} {
		n, ok := inputs([]byte(text))
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("%q: %d inputs, want %d", text, n, want)
		}
	}
	if got := crash([]byte("    Failing input written to testdata/fuzz/FuzzX/0123\n    To re-run:")); got != "testdata/fuzz/FuzzX/0123" {
		t.Errorf("the input is %q", got)
	}
}

// Every target has a corpus, and there are as many as promised.
func TestTargets(t *testing.T) {
	targets, err := find("")
	if err != nil {
		t.Fatal(err)
	}
	if len(targets) < 16 {
		t.Errorf("%d targets", len(targets))
	}
	for _, target := range targets {
		cases, err := filepath.Glob(filepath.Join(target.dir, "testdata", "fuzz", target.name, "*"))
		if err != nil || len(cases) == 0 {
			t.Errorf("%s has no corpus, error %v", target, err)
		}
	}
}
