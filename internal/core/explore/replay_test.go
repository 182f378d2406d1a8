package explore

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// replay fails if something is wrong after these actions. Tests that an Explore has printed
// call it.
func replay(t *testing.T, s Setup, way ...string) {
	t.Helper()
	switch found, err := s.Replay(way...); {
	case err != nil:
		t.Fatal(err)
	case found != "":
		t.Error(found)
	}
}

// A release that comes late is no takeover, and needs no grace.
func TestLateRelease(t *testing.T) {
	replay(t, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Grace: 1, After: held},
		"A.0 releases",
		"A crashes",
		"B.0 asks",
		"B's write arrives",
		"A's late write arrives (1)",
	)
}

// A waiter that was broken before its write was answered is not put in the queue again, though
// the poll that shows the queue without it overtakes the answer.
func TestBrokenBeforeAnswer(t *testing.T) {
	replay(t, Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Breaks: 1, After: held},
		"B.0 asks",
		"B's write arrives",
		"B's write is answered",
		"B's heartbeat arrives",
		"B's heartbeat is answered",
		"B's write arrives",
		"B1.1 is to be broken",
		"the breaker looks",
		"a tick",
		"B sends a heartbeat",
		"B's heartbeat arrives",
		"the breaker revokes",
		"the breaker removes the claim",
		"B polls",
		"B's write is answered",
	)
}

// What a search has found is found again by the same actions, and not by fewer.
func TestReplay(t *testing.T) {
	setups := []Setup{noRescue, beyondA4}
	if testing.Short() {
		setups = setups[:1]
	}
	for _, s := range setups {
		r := s.Explore(true, nil)
		if r.Found == "" || len(r.Way) < 3 || len(r.Way) != len(r.Story) {
			t.Fatalf("%v by %q", r, r.Way)
		}
		if found, err := s.Replay(r.Way...); err != nil || found != r.Found {
			t.Errorf("%q, %v by %q, want %q", found, err, r.Way, r.Found)
		}
		if found, err := s.Replay(r.Way[:len(r.Way)-1]...); err != nil || found != "" {
			t.Errorf("%q, %v a step before %q", found, err, r.Found)
		}
	}
	if _, err := noRescue.Replay("A sleeps"); err == nil || !strings.Contains(err.Error(), "A.0 asks") {
		t.Errorf("an action that is not possible: %v", err)
	}
}

// The test that is printed compiles, and fails with what was found.
func TestGoTest(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a test")
	}
	r := noRescue.Explore(true, nil)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, overlay := filepath.Join(dir, "found_test.go"), filepath.Join(dir, "overlay.json")
	text := "package explore\n\nimport \"testing\"\n\n" + noRescue.GoTest(r)
	list, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(here, "found_test.go"): file}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{file: []byte(text), overlay: list} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("go", "test", "-overlay", overlay, "-run", "^TestFound$", ".").CombinedOutput()
	if err == nil || !slices.ContainsFunc(strings.Split(string(out), "\n"), func(line string) bool {
		return strings.Contains(line, "found_test.go:") && strings.HasSuffix(line, ": "+r.Found)
	}) {
		t.Errorf("%v of\n%s\n%s", err, text, out)
	}
}
