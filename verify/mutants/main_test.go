package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table fits the sources: each text to be replaced is there once, and each test that has to
// notice is there.
func TestFits(t *testing.T) {
	seen, there := make(map[string]bool), make(map[string]string) // tests of packages
	for _, table := range tables {
		for _, m := range table.mutants {
			if _, err := m.mutated("../.."); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			if seen[m.name] {
				t.Errorf("there are two mutants %q", m.name)
			}
			seen[m.name] = true
			if m.test.pkg == "" {
				continue
			}
			if there[m.test.pkg] == "" {
				there[m.test.pkg] = testsOf(t, filepath.Join("../..", m.test.pkg))
			}
			for name := range strings.SplitSeq(top(m.test.run), "|") {
				if name = strings.Trim(name, "^$()"); !strings.Contains(there[m.test.pkg], "func "+name) {
					t.Errorf("%s: %s has no test %s", m.name, m.test.pkg, name)
				}
			}
		}
	}
}

// testsOf is the text of a package's tests.
func testsOf(t *testing.T, dir string) string {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Each rule is taken out by a mutant, and each defect of a peer is made by one.
func TestEachRuleIsBroken(t *testing.T) {
	form := regexp.MustCompile(`^([A-Z][0-9]+|alone)$`)
	broken := make(map[string]bool)
	for _, table := range tables {
		for _, m := range table.mutants {
			for what := range strings.FieldsSeq(m.breaks) {
				broken[what] = true
				if !form.MatchString(what) || what[0] == 'P' && len(what) > 2 {
					t.Errorf("%s breaks %q", m.name, what)
				}
			}
			if m.breaks == "" {
				t.Errorf("%s breaks nothing", m.name)
			}
		}
	}
	for letter, n := range map[string]int{"R": 16, "D": 20} {
		for i := 1; i <= n; i++ {
			rule := fmt.Sprint(letter, i)
			switch rule {
			case "D14", "D17": // do not apply, see docs/holes.md
				continue
			}
			if !broken[rule] {
				t.Errorf("no mutant breaks %s", rule)
			}
		}
	}
}

// A table of results keeps what it says of mutants that were not tried.
func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	first, second := &core.mutants[0], &core.mutants[1]
	read := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	r := runner{done: map[*mutant]verdict{first: {by: "C2", seed: "7"}}}
	if err := r.writeTable(path); err != nil {
		t.Fatal(err)
	}
	one := read()
	if n := strings.Count(one, "\n"); n != 2 || !strings.Contains(one, first.name+"\t"+first.breaks+"\tsimulation\tC2\t7\t") {
		t.Errorf("%d lines:\n%s", n, one)
	}
	r = runner{done: map[*mutant]verdict{second: {by: lives}, first: {by: untouched}}}
	if err := r.writeTable(path); err != nil {
		t.Fatal(err)
	}
	if two := read(); !strings.HasPrefix(two, one) || !strings.Contains(two, second.name+"\t"+second.breaks+"\t\tNOT FOUND") {
		t.Errorf("then\n%s", two)
	}
	if got := r.tally(core.mutants); got.alive != 1 || got.untried != 1 || got.complete {
		t.Errorf("counted %+v", got)
	}
}
