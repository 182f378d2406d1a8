package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

const releaseHelp = `usage: go run ./verify release [flags]

Runs what is to be run before a release: ten million seeds of the simulation, worlds
that run the core itself with up to thirty million states each, all models, all
mutants, every fuzz target for ten minutes, crowds on every store, and hours of faults
on real servers. It takes a day or two; Ctrl-C ends it, as does --hours, and what has
passed is not run again next time. What fails is, and is told of at the end; it then
exits with 1.

The ledger gets a line for each run: HOLDFAST_LEDGER, or verify/LEDGER.tsv.

flags:
`

// A work is one run that either passes or does not.
type work struct {
	name string
	args []string // of go
}

// releaseWork is all that a release takes, in an order in which each hour has some of
// everything. tables are those of the mutants.
func releaseWork(tables []string) (all []work) {
	const (
		seeds  = 10_000_000
		chunk  = 100_000
		rounds = 20
	)
	add := func(name string, args ...string) { all = append(all, work{name, args}) }
	add("models", "test", "./verify/models", "-v", "-timeout", "60m", "-args", "-full")
	add("worlds of the core", "test", "./internal/core/explore", "-v", "-timeout", "1000m", "-args", "-limit", "30000000", "-walks", "1000000")
	for _, table := range tables {
		add("mutants of "+table, "run", "./verify/mutants", "-only", table)
	}
	for _, p := range []string{"process", "hostile", "janusgraph", "git"} {
		add(p, "test", "./verify/"+p, "-v", "-timeout", "300m", "-args", "-full")
	}
	add("fuzz", "run", "./verify/fuzz", "-time", "10m")
	add("crowds", "test", "./verify/chaos", "-run", "^TestCrowd$", "-v", "-timeout", "300m", "-args", "-full")
	for round := range rounds {
		for first := round * seeds / rounds; first < (round+1)*seeds/rounds; first += chunk {
			add(fmt.Sprintf("seeds %d to %d", first, first+chunk-1), "test", "./verify/sim", "-v", "-timeout", "300m", "-run", "TestSeeds", "-args", "-first", fmt.Sprint(first), "-seeds", fmt.Sprint(chunk))
		}
		add(fmt.Sprintf("faults, round %d", round+1), "run", "./verify", "chaos", "--store", "all", "--minutes", "70", "--seed", fmt.Sprint(round+1))
	}
	return all
}

// release does what has not been done.
func release(args []string) int {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	hours := f.Float64("hours", 0, "begin nothing more after `N` hours; 0: go on to the end")
	only := f.String("only", "", "`TEXT`: only runs whose name contains it")
	state := f.String("state", "", "`FILE` that says what has passed; by default one for each commit, in the user's cache")
	list := f.Bool("list", false, "say what there is to be run, and what has passed")
	usage := func(w io.Writer) {
		fmt.Fprint(w, releaseHelp)
		f.SetOutput(w)
		f.PrintDefaults()
	}
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage(os.Stdout)
		return 0
	case err != nil || f.NArg() > 0:
		fmt.Fprintf(os.Stderr, "verify release: what is %q? (%v)\n\n", f.Args(), err)
		usage(os.Stderr)
		return 64
	}
	failed, err := runRelease(*state, *only, *hours, *list)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "verify release:", err)
		return 70
	case len(failed) > 0:
		fmt.Printf("failed:\n\t%s\n", strings.Join(failed, "\n\t"))
		return 1
	}
	return 0
}

func runRelease(state, only string, hours float64, list bool) (failed []string, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/holdfast-lock/holdfast/verify").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	if state == "" {
		if state, err = stateFile(root); err != nil {
			return nil, err
		}
	}
	if os.Getenv("HOLDFAST_LEDGER") == "" {
		os.Setenv("HOLDFAST_LEDGER", filepath.Join(root, "verify", "LEDGER.tsv"))
	}
	passed, err := passedIn(state)
	if err != nil {
		return nil, err
	}
	if out, err = exec.Command("go", "run", "github.com/holdfast-lock/holdfast/verify/mutants", "-tables").Output(); err != nil {
		return nil, fmt.Errorf("go run ./verify/mutants -tables: %w", err)
	}
	var todo []work
	for _, w := range releaseWork(strings.Split(strings.TrimSpace(string(out)), ", ")) {
		if !strings.Contains(w.name, only) {
			continue
		}
		if list {
			fmt.Printf("%-7s %s\n", map[bool]string{true: "passed"}[passed[w.name]], w.name)
		}
		if !passed[w.name] {
			todo = append(todo, w)
		}
	}
	if list {
		return nil, nil
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	began := time.Now()
	for i, w := range todo {
		if hours > 0 && time.Since(began).Hours() >= hours {
			fmt.Printf("%d of %d are left; go on with the same command\n", len(todo)-i, len(todo))
			break
		}
		fmt.Printf("%s  %d of %d: %s\n", time.Since(began).Round(time.Second), i+1, len(todo), w.name)
		log := filepath.Join(filepath.Dir(state), strings.NewReplacer(" ", "-", ",", "").Replace(w.name)+".log")
		err := runLogged(root, log, w.args)
		select {
		case <-stop:
			fmt.Printf("ended; %d of %d are left; go on with the same command\n", len(todo)-i, len(todo))
			return failed, nil
		default:
		}
		if err != nil {
			fmt.Printf("FAIL  %s: %v; %s says more\n", w.name, err, log)
			failed = append(failed, w.name)
			continue
		}
		os.Remove(log)
		if err := pass(state, w.name); err != nil {
			return failed, err
		}
	}
	return failed, nil
}

// stateFile is one for each commit of the sources.
func stateFile(root string) (string, error) {
	cmd := exec.Command("git", "rev-parse", "--short=10", "HEAD")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("the commit cannot be told (%w): say --state FILE", err)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "holdfast-release", strings.TrimSpace(string(out)))
	return filepath.Join(dir, "passed"), os.MkdirAll(dir, 0o755)
}

// passedIn reads what has passed, a name a line.
func passedIn(path string) (map[string]bool, error) {
	passed := make(map[string]bool)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return passed, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for in.Scan() {
		passed[in.Text()] = true
	}
	return passed, in.Err()
}

func pass(path, name string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, name)
	return errors.Join(err, f.Close())
}

func runLogged(dir, log string, args []string) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, f, f
	return cmd.Run()
}
