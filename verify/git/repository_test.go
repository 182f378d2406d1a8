//go:build linux

package git

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A repository is a bare one with many refs, each of which one writer owns.
type repository struct {
	dir     string
	path    string // of the bare repository
	refs    int
	initial []string // what each ref is at first
}

func refName(i int) string { return fmt.Sprintf("refs/heads/topic/%05d", i) }

// newRepository makes a repository with a value of its own for each ref.
func newRepository(t *testing.T, dir string, refs int) *repository {
	t.Helper()
	r := &repository{dir: dir, path: filepath.Join(dir, "repo.git"), refs: refs}
	gitIn(t, dir, "", "init", "-q", "--bare", r.path)
	r.initial = commits(t, r.path, "initial", refs)
	packed := "# pack-refs with: peeled fully-peeled sorted \n"
	for i, value := range r.initial {
		packed += value + " " + refName(i) + "\n"
	}
	if err := os.WriteFile(filepath.Join(r.path, "packed-refs"), []byte(packed), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"symbolic-ref", "HEAD", refName(0)},
		{"config", "receive.autogc", "false"},
		{"config", "gc.auto", "0"},
	} {
		gitIn(t, r.path, "", args...)
	}
	return r
}

// install puts a file of the documentation where git looks for it.
func (r *repository) install(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/git", from))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.path, to), text, 0o755); err != nil {
		t.Fatal(err)
	}
}

// newValues makes commits that a writer can push, in a repository of its own.
func (r *repository) newValues(t *testing.T, name string, n int) (path string, values []string) {
	t.Helper()
	path = filepath.Join(r.dir, name+".git")
	gitIn(t, r.dir, "", "init", "-q", "--bare", path)
	return path, commits(t, path, name, n)
}

// commits makes commits without history or files, no two the same.
func commits(t *testing.T, path, name string, n int) []string {
	t.Helper()
	var in strings.Builder
	for i := range n {
		says := fmt.Sprintf("%s %d", name, i)
		fmt.Fprintf(&in, "reset refs/pool\ncommit refs/pool\nmark :%d\ncommitter A <a@example.com> %d +0000\ndata %d\n%s\n\n", i+1, 1700000000+i, len(says), says)
	}
	in.WriteString("reset refs/pool\n")
	marks := filepath.Join(path, "marks")
	gitIn(t, path, in.String(), "fast-import", "--quiet", "--export-marks="+marks)
	text, err := os.ReadFile(marks)
	if err != nil {
		t.Fatal(err)
	}
	values := make([]string, n)
	for line := range strings.Lines(string(text)) {
		var mark int
		var value string
		if _, err := fmt.Sscanf(line, ":%d %s", &mark, &value); err != nil {
			t.Fatal(err)
		}
		values[mark-1] = value
	}
	return values
}

func gitIn(t testing.TB, dir, in string, args ...string) {
	t.Helper()
	c := exec.Command("git", args...)
	c.Dir, c.Stdin, c.Env = dir, strings.NewReader(in), environment()
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// environment is that of all programs: nobody's settings.
func environment(more ...string) []string {
	env := []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C"}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GIT_") && !strings.HasPrefix(v, "HOLDFAST_") {
			env = append(env, v)
		}
	}
	return append(env, more...)
}

// parse reads an advertisement: the value of each ref. It is an error if it is
// not whole.
func parse(text []byte, refs int) ([]string, error) {
	values, found := make([]string, refs), 0
	for rest := text; ; {
		if len(rest) < 4 {
			return nil, fmt.Errorf("it ends after %d bytes without an end", len(text))
		}
		length, err := strconv.ParseUint(string(rest[:4]), 16, 16)
		if err != nil {
			return nil, fmt.Errorf("at byte %d: %w", len(text)-len(rest), err)
		}
		n := int(length)
		if n == 0 {
			if len(rest) > 4 {
				return nil, fmt.Errorf("it goes on after its end, for %d bytes", len(rest)-4)
			}
			break
		}
		if n < 4 || n > len(rest) {
			return nil, fmt.Errorf("it ends within a line of %d bytes", n)
		}
		line, _, _ := bytes.Cut(bytes.TrimSuffix(rest[4:n], []byte("\n")), []byte{0})
		rest = rest[n:]
		value, name, _ := strings.Cut(string(line), " ")
		number, ok := strings.CutPrefix(name, "refs/heads/topic/")
		i, err := strconv.Atoi(number)
		if !ok || err != nil {
			if name == "HEAD" {
				continue
			}
			return nil, fmt.Errorf("a ref called %q", name)
		}
		if i < 0 || i >= refs || values[i] != "" || len(value) != 40 {
			return nil, fmt.Errorf("a line %q that is twice there or of no ref", line)
		}
		values[i] = value
		found++
	}
	if found != refs {
		return nil, fmt.Errorf("it has %d refs, want %d", found, refs)
	}
	return values, nil
}
