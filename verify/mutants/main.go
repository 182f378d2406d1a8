// Command mutants breaks the library on purpose, one rule at a time, and runs
// the simulation against each: a simulation that does not notice proves
// nothing. Nothing is written into the tree.
//
//	go run ./verify/mutants [-run name] [-seeds 20000]
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	seeds := flag.Int("seeds", 20000, "the most seeds a mutant may live through")
	name := flag.String("run", "", "only mutants whose name contains this")
	flag.Parse()
	if err := run(*name, *seeds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(name string, seeds int) error {
	verify, err := goOutput(".", "list", "-m", "-f", "{{.Dir}}", "github.com/holdfast-lock/holdfast/verify")
	if err != nil {
		return err
	}
	root, err := goOutput(verify, "list", "-m", "-f", "{{.Dir}}", "github.com/holdfast-lock/holdfast")
	if err != nil {
		return err
	}
	fmt.Printf("%-44s %-10s %-34s %8s %8s\n", "mutant", "breaks", "found by", "seed", "seconds")
	alive := 0
	for _, m := range mutants {
		if !strings.Contains(m.name, name) {
			continue
		}
		began := time.Now()
		by, seed, err := m.try(root, verify, seeds)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", m.name, err)
			by = "ERROR"
			alive++
		}
		if by == "" && err == nil {
			alive++
			by = "NOT FOUND"
		}
		fmt.Printf("%-44s %-10s %-34s %8s %8.1f\n", m.name, m.breaks, by, seed, time.Since(began).Seconds())
	}
	if alive > 0 {
		return fmt.Errorf("%d mutants live, or could not be tried", alive)
	}
	return nil
}

// A mutant is the library with a rule broken.
type mutant struct {
	name   string
	breaks string // rules of the protocol: R, races: Q, promises: P
	edits  []edit
}

// An edit replaces text that occurs once in a file.
type edit struct{ file, old, new string }

// try runs the simulation against a mutant and says which checker found it,
// and at which seed.
func (m mutant) try(root, verify string, seeds int) (by, seed string, err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.write(root, dir)
	if err != nil {
		return "", "", err
	}
	bin := filepath.Join(dir, "sim.test")
	if _, err := goOutput(verify, "test", "-c", "-overlay", overlay, "-o", bin, "./sim"); err != nil {
		return "", "", err
	}
	for _, args := range [][]string{ // the quick ones first
		{"-test.run", "TestSeeds", "-seeds", fmt.Sprint(seeds / 10)},
		{"-test.skip", "TestSeeds"},
		{"-test.run", "TestSeeds", "-seeds", fmt.Sprint(seeds), "-first", fmt.Sprint(seeds / 10)},
	} {
		cmd := exec.Command(bin, append(args, "-test.timeout", "10m")...)
		cmd.Dir = filepath.Join(verify, "sim")
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		for _, way := range []*regexp.Regexp{finding, hanging, directed} {
			if found := way.FindSubmatch(out); found != nil {
				return string(found[way.SubexpIndex("by")]), string(found[way.SubexpIndex("seed")]), nil
			}
		}
		return "", "", fmt.Errorf("fails in a way that is not understood:\n%s", out[max(0, len(out)-2000):])
	}
	return "", "", nil
}

var (
	finding  = regexp.MustCompile(`seed (?P<seed>\d+): (?P<by>[A-Z]\d):`)
	hanging  = regexp.MustCompile(`seed (?P<seed>\d+) (?P<by>does not end|panics)`)
	directed = regexp.MustCompile(`--- FAIL: (?P<by>Test\w+)(?P<seed>)`)
)

// write makes the mutated files and the overlay that puts them in place.
func (m mutant) write(root, dir string) (overlay string, err error) {
	files := make(map[string][]byte)
	for _, e := range m.edits {
		path := filepath.Join(root, e.file)
		text, ok := files[path]
		if !ok {
			if text, err = os.ReadFile(path); err != nil {
				return "", err
			}
		}
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return "", fmt.Errorf("%s has this %d times, and the table of mutants wants it once:\n%s", e.file, n, e.old)
		}
		files[path] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	replace := make(map[string]string)
	for path, text := range files {
		to := filepath.Join(dir, filepath.Base(path))
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
