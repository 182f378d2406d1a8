package holdfast_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// The code that README and docs show of a database is in a file that is compiled
// and run.
func TestShownCode(t *testing.T) {
	for _, shown := range []struct{ text, section, file string }{
		{"README.md", "## PostgreSQL", "postgres/example_test.go"},
		{"README.md", "## MySQL and MariaDB", "mysql/example_test.go"},
		{"README.md", "## A shared directory", "directory/example_test.go"},
		{"README.md", "## State keys", "state/cache_example_test.go"},
		{"README.md", "## Cassandra", "cassandra/example_test.go"},
		{"README.md", "## etcd", "etcd/example_test.go"},
		{"README.md", "## Spanner", "spanner/example_test.go"},
		{"docs/cassandra.md", "#", "cassandra/example_test.go"},
		{"docs/pglock.md", "#", "bench/pglock_test.go"},
		{"docs/spindle.md", "#", "spanner/spindle_test.go"},
		{"docs/gerrit.md", "#", "spanner/spindle_test.go"},
	} {
		t.Run(shown.text+" "+shown.section, func(t *testing.T) {
			source := strings.Join(trimmedLines(t, shown.file), "\n")
			var block []string
			in, n := false, 0
			for _, line := range trimmedLines(t, shown.text) {
				switch {
				case strings.HasPrefix(line, "```") && block != nil:
					n++
					if code := strings.Join(block, "\n"); !strings.Contains(source, code) {
						t.Errorf("%s does not have this:\n%s", shown.file, code)
					}
					block = nil
				case block != nil:
					block = append(block, line)
				case line == "```go" || line == "```sql":
					if in {
						block = []string{}
					}
				case strings.HasPrefix(line, "## ") || !in:
					in = line == shown.section || shown.section == "#"
				}
			}
			if n == 0 {
				t.Errorf("no code in this section of %s", shown.text)
			}
		})
	}
}

func trimmedLines(t *testing.T, name string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err) // another module, where each is alone
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// Links inside the README lead to its sections.
func TestLinks(t *testing.T) {
	text := strings.Join(trimmedLines(t, "README.md"), "\n")
	for rest := text; ; {
		_, after, ok := strings.Cut(rest, "](#")
		if !ok {
			break
		}
		link, after, _ := strings.Cut(after, ")")
		rest = after
		found := false
		for line := range strings.Lines(text) {
			if head, ok := strings.CutPrefix(strings.TrimSpace(line), "## "); ok {
				anchor := strings.NewReplacer(" ", "-", ",", "", "`", "").Replace(strings.ToLower(head))
				found = found || anchor == link
			}
		}
		if !found {
			t.Errorf("the README has no section %q", link)
		}
	}
}
