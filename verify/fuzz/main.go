// Command fuzz runs the fuzz targets of all modules for a time each, and keeps account of
// how many inputs were tried. What a target finds is left in the testdata of its package,
// where it is a case from then on.
//
//	go run ./verify/fuzz [-time 60s] [-run name] [-p 2] [-list]
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/verify/ledger"
)

func main() {
	long := flag.Duration("time", time.Minute, "how long each target runs")
	name := flag.String("run", "", "only targets whose name (package.FuzzX) contains this")
	workers := flag.Int("p", 2, "how many inputs are tried at once")
	list := flag.Bool("list", false, "say which targets there are")
	flag.Parse()
	targets, err := find(*name)
	if err == nil && len(targets) == 0 {
		err = fmt.Errorf("no target's name contains %q", *name)
	}
	if err == nil && *list {
		for _, t := range targets {
			fmt.Println(t)
		}
		return
	}
	if err == nil {
		err = run(targets, *long, *workers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A target is a function of a package.
type target struct{ dir, pkg, name string }

func (t target) String() string { return t.pkg + "." + t.name }

var function = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// find looks through the test files of all modules.
func find(contains string) (targets []target, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/holdfast-lock/holdfast").Output()
	if err != nil {
		return nil, fmt.Errorf("where the sources are: %w", err)
	}
	root := strings.TrimSpace(string(out))
	err = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || len(entry.Name()) > 1 && entry.Name()[0] == '.'):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		rel, err := filepath.Rel(root, dir)
		if rel == "." {
			rel = "holdfast"
		}
		for _, f := range function.FindAllSubmatch(text, -1) {
			t := target{dir, filepath.ToSlash(rel), string(f[1])}
			if strings.Contains(t.String(), contains) {
				targets = append(targets, t)
			}
		}
		return err
	})
	slices.SortFunc(targets, func(a, b target) int { return strings.Compare(a.String(), b.String()) })
	return targets, err
}

const line = "%-62s %12s %8s  %s\n"

func run(targets []target, long time.Duration, workers int) error {
	fmt.Printf(line, "target", "inputs", "seconds", "found")
	bad, total := 0, 0
	for _, t := range targets {
		r, err := t.run(long, workers)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		found := "nothing"
		if r.crash != "" {
			found = r.crash
			bad++
		}
		total += r.inputs
		fmt.Printf(line, t, strconv.Itoa(r.inputs), fmt.Sprintf("%.0f", r.took.Seconds()), found)
		if r.said != "" {
			fmt.Println("    " + strings.ReplaceAll(strings.TrimSpace(r.said), "\n", "\n    "))
		}
	}
	fmt.Printf("%d targets, %d inputs, %d of them have found something\n", len(targets), total, bad)
	if bad > 0 {
		return fmt.Errorf("%d targets have found something", bad)
	}
	return nil
}

// A result is what a target has come to.
type result struct {
	inputs int
	took   time.Duration
	crash  string // the input, "" if there is none
	said   string // of it
}

// run builds a target, and then runs it for so long: what is counted is not the time
// that it takes to build.
func (t target) run(long time.Duration, workers int) (r result, err error) {
	temp, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(temp)
	// Nothing is run by this, but with -fuzz it is built to tell what an input reaches.
	build := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-c", "-o", filepath.Join(temp, "fuzz.test"), ".")
	build.Dir = t.dir
	if out, err := build.CombinedOutput(); err != nil {
		return r, fmt.Errorf("%w\n%s", err, out)
	}
	account := ledger.Begin("fuzz", t.String(), fmt.Sprintf("%v, %d at once", long, workers))
	began := time.Now()
	cmd := exec.Command(filepath.Join(temp, "fuzz.test"), "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime", long.String(),
		"-test.parallel", strconv.Itoa(workers), "-test.fuzzminimizetime", "20x", "-test.fuzzcachedir", filepath.Join(temp, "cache"), "-test.timeout", (long + 10*time.Minute).String())
	cmd.Dir = t.dir
	out, err := cmd.CombinedOutput()
	r.took = time.Since(began)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return r, err
	}
	var ok bool
	if r.inputs, ok = inputs(out); !ok {
		return r, fmt.Errorf("it does not say how many inputs it has tried:\n%s", tail(out))
	}
	if err != nil {
		r.crash, r.said = crash(out), tail(out)
	}
	violations := 0
	if r.crash != "" {
		violations = 1
	}
	return r, account.End(r.inputs, violations)
}

var execs = regexp.MustCompile(`(?m)^fuzz: elapsed: .*, execs: (\d+) `)

// inputs is how many were tried, which the last line that counts them says.
func inputs(out []byte) (n int, ok bool) {
	all := execs.FindAllSubmatch(out, -1)
	if len(all) == 0 {
		return 0, bytes.Contains(out, []byte("--- FAIL")) // at a case that it began with
	}
	n, err := strconv.Atoi(string(all[len(all)-1][1]))
	return n, err == nil
}

var written = regexp.MustCompile(`Failing input written to (\S+)`)

// crash is the input that has found something.
func crash(out []byte) string {
	if m := written.FindSubmatch(out); m != nil {
		return string(m[1])
	}
	return "a case of its corpus"
}

func tail(out []byte) string { return string(out[max(0, len(out)-2000):]) }
