// Command mutants breaks the library, its stores, its state keys, and the command
// with its guard on purpose, one rule at a time, and runs what has to notice: the
// simulation, or a named test, of a store against a server that the test starts.
// Tests that do not notice prove nothing. Nothing is written into the tree.
//
//	go run ./verify/mutants [-run name] [-only table | -tables] [-seeds 20000] [-p 3] [-table FILE] [-v]
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/verify/ledger"
)

func main() {
	r := runner{}
	flag.IntVar(&r.seeds, "seeds", 20000, "the most seeds a mutant may live through")
	name := flag.String("run", "", "only mutants whose name contains this")
	only := flag.String("only", "", "only the mutants of one table: "+tableNames())
	list := flag.Bool("tables", false, "only say which tables there are")
	together := flag.Int("p", 3, "how many are tried at once")
	flag.StringVar(&r.file, "table", "", "write what became of each mutant into this file; what it says of others stays")
	flag.BoolVar(&r.verbose, "v", false, "show what a test said")
	flag.Parse()
	if *list {
		fmt.Println(tableNames())
		return
	}
	var chosen []*mutant
	known := false
	for _, table := range tables {
		if *only != "" && *only != table.name {
			continue
		}
		known = true
		for i := range table.mutants {
			if strings.Contains(table.mutants[i].name, *name) {
				chosen = append(chosen, &table.mutants[i])
			}
		}
	}
	if !known {
		fmt.Fprintf(os.Stderr, "-only %s: there is %s\n", *only, tableNames())
		os.Exit(64)
	}
	if len(chosen) == 0 {
		fmt.Fprintf(os.Stderr, "no mutant's name contains %q\n", *name)
		os.Exit(64)
	}
	err := r.run(chosen, max(*together, 1))
	if len(r.done) > 0 {
		r.summarize()
		err = errors.Join(err, r.account())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A table is the mutants of one part.
type table struct {
	name    string
	mutants []mutant
}

// tables are all mutants.
var tables = []table{core, planted, proven, sql, onFile, {"state", append(state, cached...)}, dirs, cql, claimed, onRevisions, onCommits, commanded}

// tableNames are the names of all tables.
func tableNames() string {
	var names []string
	for _, table := range tables {
		names = append(names, table.name)
	}
	return strings.Join(names, ", ")
}

// A mutant is the library with a rule broken.
type mutant struct {
	name   string
	breaks string // races: Q, in DESIGN.md; promises: P, in docs/guarantees.md; rules R, hazards of databases X, defects of peers D: in docs/holes.md
	edits  []edit
	test   test // what has to notice; none: the simulation
}

// An edit replaces text that occurs once in a file.
type edit struct{ file, old, new string }

// A test is one of a package, as go test -run takes it.
type test struct{ pkg, run string }

// raced are the tests that may notice only with the race detector, with which mutants meet them.
var raced = map[test]bool{keys("TestCacheWriter"): true}

// A verdict is what became of a mutant.
type verdict struct {
	by, seed string // "": it lives
	untried  string // why it was not tried
	said     string // by the test that failed
	took     time.Duration
	err      error
}

type runner struct {
	root, verify string
	seeds        int
	file         string
	verbose      bool
	accounts     map[string]*ledger.Run // of tables that have begun
	done         map[*mutant]verdict
	began        map[test]string // why a test cannot tell: skipped, or "" if it passes with nothing broken
}

const line = "%-58s %-10s %-52s %8s %8s\n"

func (r *runner) run(mutants []*mutant, together int) (err error) {
	if r.verify, err = goOutput(".", "list", "-m", "-f", "{{.Dir}}", "github.com/holdfast-lock/holdfast/verify"); err != nil {
		return err
	}
	if r.root, err = goOutput(r.verify, "list", "-m", "-f", "{{.Dir}}", "github.com/holdfast-lock/holdfast"); err != nil {
		return err
	}
	misfits := 0
	for _, m := range mutants { // at once, for it costs nothing
		if _, err := m.mutated(r.root); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", m.name, err)
			misfits++
		}
	}
	if misfits > 0 {
		return fmt.Errorf("%d mutants do not fit the sources", misfits)
	}
	if err := r.unbroken(mutants); err != nil {
		return err
	}

	r.begin(mutants)
	fmt.Printf(line, "mutant", "breaks", "found by", "seed", "seconds")
	verdicts := make([]chan verdict, len(mutants))
	turn := make(chan bool, together)
	var all sync.WaitGroup
	for i := range mutants {
		verdicts[i] = make(chan verdict, 1)
	}
	go func() {
		for i, m := range mutants {
			turn <- true
			all.Go(func() {
				began := time.Now()
				v := r.try(m)
				v.took = time.Since(began)
				verdicts[i] <- v
				<-turn
			})
		}
	}()
	alive, untried, skipped := 0, 0, make(map[string]int)
	for i, m := range mutants {
		v := <-verdicts[i]
		switch {
		case v.err != nil:
			fmt.Fprintf(os.Stderr, "%s: %v\n", m.name, v.err)
			v.by = bad
			alive++
		case v.untried != "":
			v.by = untouched
			skipped[v.untried]++
			untried++
		case v.by == "":
			v.by = lives
			alive++
		}
		r.done[m] = v
		if err := r.writeTable(r.file); err != nil { // each time: it takes long, and may be ended
			return err
		}
		fmt.Printf(line, m.name, m.breaks, v.by, v.seed, fmt.Sprintf("%.1f", v.took.Seconds()))
		if r.verbose && v.said != "" {
			fmt.Println("    " + strings.ReplaceAll(strings.TrimSpace(v.said), "\n", "\n    "))
		}
	}
	all.Wait()
	for why, n := range skipped { // as a test that is skipped would say
		fmt.Printf("--- SKIP: %d mutants: %s\n", n, why)
	}
	fmt.Printf("%d mutants: %d found, %d not tried, %d live or could not be tried\n", len(mutants), len(mutants)-alive-untried, untried, alive)
	if alive > 0 {
		return fmt.Errorf("%d mutants live, or could not be tried", alive)
	}
	return nil
}

// unbroken runs the tests with nothing broken: one that fails then, or is
// skipped, cannot notice anything.
func (r *runner) unbroken(mutants []*mutant) error {
	r.began = make(map[test]string)
	runs := make(map[string][]string) // of packages
	for _, m := range mutants {
		if _, ok := r.began[m.test]; !ok && m.test.pkg != "" {
			r.began[m.test] = ""
			runs[m.test.pkg] = append(runs[m.test.pkg], m.test.run)
		}
	}
	if len(runs) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for pkg, patterns := range runs {
		began := time.Now()
		out, err := r.test(dir, "", pkg, false, "-test.v", "-test.timeout", "10m", "-test.run", strings.Join(patterns, "|"))
		if err != nil && out == "" {
			return err
		}
		results, tests := outcome.FindAllStringSubmatch(out, -1), len(patterns)
		for _, run := range patterns {
			passed, skipped := false, "" // this one
			for _, res := range results {
				switch {
				case res[1] == "FAIL" && matches(run, res[2]):
					return fmt.Errorf("%s in %s fails with nothing broken:\n%s", res[2], pkg, tail(out))
				case res[1] == "PASS" && matches(run, res[2]):
					passed = true
				case res[1] == "SKIP" && strings.HasPrefix(run, top(res[2])):
					skipped = why(out, res[2])
				}
			}
			switch {
			case passed:
			case skipped != "":
				r.began[test{pkg, run}] = skipped
				tests--
			case err != nil:
				return fmt.Errorf("%s fails with nothing broken: %w\n%s", pkg, err, tail(out))
			default:
				return fmt.Errorf("there is no test %q in %s", run, pkg)
			}
		}
		fmt.Printf("with nothing broken %s passes %d tests, and skips %d, in %.0f s\n", pkg, tests, len(patterns)-tests, time.Since(began).Seconds())
	}
	return nil
}

var outcome = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)

// matches says whether -run would run a test, not only those above it.
func matches(run, name string) bool {
	parts := strings.Split(name, "/")
	for i, p := range strings.Split(run, "/") {
		if i >= len(parts) {
			return false
		}
		if ok, _ := regexp.MatchString(p, parts[i]); !ok {
			return false
		}
	}
	return true
}

// top is the name of the test that a subtest belongs to.
func top(name string) string { name, _, _ = strings.Cut(name, "/"); return name }

// why is what a test said before it was skipped.
func why(out, name string) string {
	_, after, _ := strings.Cut(out, "=== RUN   "+name+"\n")
	for l := range strings.Lines(after) {
		if _, text, ok := strings.Cut(strings.TrimSpace(l), ".go:"); ok {
			_, text, _ = strings.Cut(text, ": ")
			return text
		}
	}
	return "skipped"
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

// try breaks a rule, and says who has noticed.
func (r *runner) try(m *mutant) (v verdict) {
	if m.test.pkg != "" && r.began[m.test] != "" {
		return verdict{untried: r.began[m.test]}
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return verdict{err: err}
	}
	defer os.RemoveAll(dir)
	overlay, err := m.write(r.root, dir)
	if err != nil {
		return verdict{err: err}
	}
	if m.test.pkg != "" {
		return r.tryTest(m, dir, overlay)
	}
	return r.trySimulation(dir, overlay)
}

func (r *runner) tryTest(m *mutant, dir, overlay string) (v verdict) {
	out, err := r.test(dir, overlay, m.test.pkg, raced[m.test], "-test.failfast", "-test.timeout", "2m", "-test.run", m.test.run)
	switch {
	case err == nil:
		return verdict{}
	case strings.Contains(out, "panic: test timed out"):
		return verdict{by: top(m.test.run) + " does not end", said: brief(out)}
	}
	all := outcome.FindAllStringSubmatch(out, -1)
	for _, res := range all {
		if res[1] == "FAIL" && len(res[2]) >= len(v.by) {
			v.by = res[2]
		}
	}
	if v.said = brief(out); v.by == "" {
		v.err = fmt.Errorf("fails in a way that is not understood: %w\n%s", err, tail(out))
	}
	return v
}

var complaint = regexp.MustCompile(`^(\s+\w+\.go:\d+: |panic:)`)

// brief is what failing tests said first.
func brief(out string) string {
	var said []string
	for l := range strings.Lines(out) {
		if complaint.MatchString(l) {
			said = append(said, strings.TrimSpace(l))
		}
	}
	return strings.Join(said[:min(3, len(said))], "\n")
}

// test builds the tests of a package and runs some. An error without output is
// one of building them.
func (r *runner) test(dir, overlay, pkg string, race bool, args ...string) (string, error) {
	bin := filepath.Join(dir, strings.NewReplacer("/", "_", ".", "_").Replace(pkg)+".test")
	if _, err := goOutput(r.root, "test", "-vet=off", fmt.Sprintf("-race=%t", race), "-c", "-overlay", overlay, "-o", bin, pkg); err != nil {
		return "", err
	}
	cmd := tests(bin, args...)
	cmd.Dir = filepath.Join(r.root, pkg)
	if overlay != "" { // some build programs
		cmd.Env = append(cmd.Env, "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		out = []byte(err.Error())
	}
	return string(out), err
}

// tests of what is broken write nothing into the ledger.
func tests(bin string, args ...string) *exec.Cmd {
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_LEDGER=")
	return cmd
}

// trySimulation says which checker found it, and at which seed.
func (r *runner) trySimulation(dir, overlay string) verdict {
	bin := filepath.Join(dir, "sim.test")
	if _, err := goOutput(r.verify, "test", "-c", "-overlay", overlay, "-o", bin, "./sim"); err != nil {
		return verdict{err: err}
	}
	for _, args := range [][]string{ // the quick ones first
		{"-test.run", "TestSeeds", "-exact=false", "-seeds", fmt.Sprint(r.seeds / 10)},
		{"-test.skip", "TestSeeds"},
		{"-test.run", "TestSeeds", "-exact=false", "-seeds", fmt.Sprint(r.seeds), "-first", fmt.Sprint(r.seeds / 10)},
	} {
		cmd := tests(bin, append(args, "-test.timeout", "10m")...)
		cmd.Dir = filepath.Join(r.verify, "sim")
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		for _, way := range []*regexp.Regexp{finding, hanging, directed} {
			if found := way.FindSubmatch(out); found != nil {
				return verdict{by: string(found[way.SubexpIndex("by")]), seed: string(found[way.SubexpIndex("seed")])}
			}
		}
		return verdict{err: fmt.Errorf("fails in a way that is not understood:\n%s", tail(string(out)))}
	}
	return verdict{}
}

var (
	finding  = regexp.MustCompile(`seed (?P<seed>\d+): (?P<by>[A-Z]\d):`)
	hanging  = regexp.MustCompile(`seed (?P<seed>\d+) (?P<by>does not end|panics)`)
	directed = regexp.MustCompile(`--- FAIL: (?P<by>Test\w+)(?P<seed>)`)
)

// mutated are the files that change, by their paths.
func (m *mutant) mutated(root string) (files map[string][]byte, err error) {
	files = make(map[string][]byte)
	for _, e := range m.edits {
		path := filepath.Join(root, e.file)
		text, ok := files[path]
		if !ok {
			if text, err = os.ReadFile(path); err != nil {
				return nil, err
			}
		}
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return nil, fmt.Errorf("%s has this %d times, and the table of mutants wants it once:\n%s", e.file, n, e.old)
		}
		files[path] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	return files, nil
}

// write makes the mutated files and the overlay that puts them in place.
func (m *mutant) write(root, dir string) (overlay string, err error) {
	files, err := m.mutated(root)
	if err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for path, text := range files {
		to := filepath.Join(dir, fmt.Sprint(len(replace))+filepath.Base(path))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return "", err
		}
		replace[path] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

func goOutput(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(string(out)), nil
}
