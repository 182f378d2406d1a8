package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A ledger is read as it was written, or not at all: no line is left out, and whatever
// is in a line of settings it is one line.
func FuzzLedger(f *testing.F) {
	f.Add("2026-11-22T20:13Z\tabc\tsim\tmemory\tseeds\t10\t0\t1.5\n", "all")
	path := filepath.Join(f.TempDir(), "ledger")
	f.Fuzz(func(t *testing.T, text, settings string) {
		line := Line{Layer: "fuzz", Store: "a", Settings: settings, Count: 3, Seconds: 1}
		if written := line.String(); strings.Count(written, "\t") != len(Columns)-1 || strings.Contains(written, "\n") {
			t.Fatalf("%q is a line", written)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		lines, err := Read(path)
		if err != nil {
			return
		}
		n := strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1
		if text == "" {
			n = 0
		}
		if strings.HasPrefix(text, Columns[0]+"\t") {
			n--
		}
		if len(lines) != n {
			t.Fatalf("%q has %d lines, and %d were read", text, n, len(lines))
		}
	})
}
