package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "LEDGER.tsv")
	t.Setenv("HOLDFAST_LEDGER", path)
	t.Setenv("HOLDFAST_COMMIT", "abc")
	for _, n := range []int{3, 4} {
		if err := Begin("sim", "memory", "a\tb\nc").End(n, n-3); err != nil {
			t.Fatal(err)
		}
	}
	if err := Begin("chaos", "etcd", "").End(7, 0); err != nil {
		t.Fatal(err)
	}
	lines, err := Read(path)
	if err != nil || len(lines) != 3 {
		t.Fatal(lines, err)
	}
	if l := lines[1]; l.Commit != "abc" || l.Settings != "a b c" || l.Count != 4 || l.Violations != 1 || time.Since(l.Date) > time.Hour {
		t.Errorf("%+v", l)
	}
	if s := Total(lines, "sim", ""); s.Count != 7 || s.Violations != 1 {
		t.Errorf("%+v", s)
	}
	if s := Total(lines, "chaos", "etcd"); s.Count != 7 {
		t.Errorf("%+v", s)
	}
	if err := os.WriteFile(path, []byte("a\tb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), ":1: 2 columns") {
		t.Error(err)
	}
}

// Without a ledger nothing is written.
func TestNoLedger(t *testing.T) {
	t.Setenv("HOLDFAST_LEDGER", "")
	if err := Begin("sim", "memory", "").End(1, 0); err != nil {
		t.Error(err)
	}
}

// The ledger of the project can be read.
func TestOurLedger(t *testing.T) {
	if _, err := Read("../LEDGER.tsv"); err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
}
