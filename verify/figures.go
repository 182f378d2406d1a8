package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/verify/ledger"
)

const figuresHelp = `usage: go run ./verify ledger [--write]

Sums up verify/LEDGER.tsv as the table in docs/testing.md. --write puts it there.

flags:
`

// The table stands between these in docs/testing.md.
const (
	tableBegins = "<!-- from verify/LEDGER.tsv, by go run ./verify ledger --write -->\n"
	tableEnds   = "<!-- to here -->\n"
)

func figures(args []string) int {
	f := flag.NewFlagSet("ledger", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	write := f.Bool("write", false, "put the table into docs/testing.md")
	usage := func(w io.Writer) {
		fmt.Fprint(w, figuresHelp)
		f.SetOutput(w)
		f.PrintDefaults()
	}
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage(os.Stdout)
		return 0
	case err != nil || f.NArg() > 0:
		usage(os.Stderr)
		return 64
	}
	page, text, err := withTable()
	if err == nil && *write {
		err = os.WriteFile(page, text, 0o644)
	} else if err == nil {
		_, table, _ := bytes.Cut(text, []byte(tableBegins))
		table, _, _ = bytes.Cut(table, []byte(tableEnds))
		os.Stdout.Write(table)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify ledger:", err)
		return 70
	}
	return 0
}

// withTable is the page as it has to be.
func withTable() (path string, text []byte, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/holdfast-lock/holdfast/verify").Output()
	if err != nil {
		return "", nil, fmt.Errorf("go list: %w", err)
	}
	dir := strings.TrimSpace(string(out))
	lines, err := ledger.Read(filepath.Join(dir, "LEDGER.tsv"))
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(filepath.Dir(dir), "docs", "testing.md")
	old, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	before, rest, found := bytes.Cut(old, []byte(tableBegins))
	_, after, ends := bytes.Cut(rest, []byte(tableEnds))
	if !found || !ends {
		return "", nil, fmt.Errorf("%s has no place for the table: %q to %q", path, tableBegins, tableEnds)
	}
	return path, slices.Concat(before, []byte(tableBegins), []byte(table(lines)), []byte(tableEnds), after), nil
}

// layers are what the ledger counts, in the order of the table.
var layers = []struct{ name, counts string }{
	{"sim", "simulated worlds"},
	{"determinism", "of them played twice, to see that they go the same way"},
	{"models", "states of models, all searched"},
	{"broken models", "models that are broken on purpose, or are as others wrote them, and must fail"},
	{"chaos", "episodes of faults on real servers"},
	{"histories", "real histories of one name, checked as those of a lock and of a fenced register"},
	{"mutants", "mutants: rules taken out one at a time, which the tests must notice"},
	{"fuzz", "inputs of fuzz targets"},
}

// table sums up.
func table(lines []ledger.Line) string {
	type row struct {
		sum    ledger.Sum
		stores map[string]int64
	}
	rows := make(map[string]*row)
	what := func(l ledger.Line) string { // is run anew, with the same states or mutants
		switch l.Layer {
		case "models":
			return l.Layer + "\t" + l.Store + "\t" + l.Settings
		case "mutants":
			return l.Layer + "\t" + l.Store
		}
		return ""
	}
	latest := make(map[string]int)
	for i, l := range lines {
		latest[what(l)] = i
	}
	for i, l := range lines {
		if what(l) != "" && latest[what(l)] != i {
			continue
		}
		if l.Layer == "models" && strings.HasPrefix(l.Settings, "must fail") {
			l.Layer, l.Count, l.Violations = "broken models", 1, 1-l.Violations // what is wrong is one that holds
		}
		r := rows[l.Layer]
		if r == nil {
			r = &row{stores: make(map[string]int64)}
			rows[l.Layer] = r
		}
		r.sum.Count, r.sum.Violations = r.sum.Count+l.Count, r.sum.Violations+l.Violations
		r.stores[l.Store] += l.Count
	}
	var b strings.Builder
	b.WriteString("| How many | What | Where | Went wrong |\n|---|---|---|---|\n")
	for _, layer := range layers {
		r := rows[layer.name]
		if r == nil {
			continue
		}
		where := ""
		if layer.name == "chaos" || layer.name == "histories" || layer.name == "mutants" {
			var list []string
			for _, s := range slices.SortedFunc(maps.Keys(r.stores), func(a, b string) int { return cmp.Or(cmp.Compare(r.stores[b], r.stores[a]), cmp.Compare(a, b)) }) {
				list = append(list, s+" "+grouped(r.stores[s]))
			}
			where = strings.Join(list, ", ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", grouped(r.sum.Count), layer.counts, where, grouped(r.sum.Violations))
	}
	return b.String()
}

// grouped writes a number with commas.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
