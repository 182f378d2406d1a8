package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lock/holdfast/verify/ledger"
)

// What is said instead of who has found a mutant.
const (
	bad       = "ERROR"
	untouched = "not tried"
	lives     = "NOT FOUND"
)

// layers are who may find a mutant.
var layers = []string{"simulation", "directed simulation", "conformance", "test"}

// layer is which of them has found one; "": none.
func (m *mutant) layer(v verdict) string {
	switch {
	case v.by == bad, v.by == untouched, v.by == lives:
		return ""
	case m.test.pkg == "" && v.seed == "":
		return "directed simulation"
	case m.test.pkg == "":
		return "simulation"
	case strings.HasPrefix(m.test.run, "TestStore"), strings.HasPrefix(m.test.run, "TestClients"):
		return "conformance"
	}
	return "test"
}

// begin begins the account of each table that has a mutant to be tried.
func (r *runner) begin(mutants []*mutant) {
	r.done, r.accounts = make(map[*mutant]verdict), make(map[string]*ledger.Run)
	for _, t := range tables {
		for i := range t.mutants {
			if slices.Contains(mutants, &t.mutants[i]) && r.accounts[t.name] == nil {
				r.accounts[t.name] = ledger.Begin("mutants", t.name, "")
			}
		}
	}
}

// A tally is what became of the mutants of a table.
type tally struct {
	found    map[string]int // by layer
	seeds    []int          // at which the simulation has found them
	untried  int
	alive    int // or could not be tried
	all      int
	complete bool // none of the table was left out
}

func (r *runner) tally(mutants []mutant) (t tally) {
	t.found, t.complete = make(map[string]int), true
	for i := range mutants {
		m := &mutants[i]
		v, ok := r.done[m]
		if !ok {
			t.complete = false
			continue
		}
		t.all++
		switch by := m.layer(v); {
		case v.by == untouched:
			t.untried++
		case by == "":
			t.alive++
		default:
			t.found[by]++
		}
		if n, err := strconv.Atoi(v.seed); err == nil {
			t.seeds = append(t.seeds, n)
		}
	}
	slices.Sort(t.seeds)
	return t
}

// spread is the median seed and the highest.
func (t tally) spread() (median, highest string) {
	if len(t.seeds) == 0 {
		return "-", "-"
	}
	return strconv.Itoa(t.seeds[len(t.seeds)/2]), strconv.Itoa(t.seeds[len(t.seeds)-1])
}

// summarize says which layer has found how many.
func (r *runner) summarize() {
	const row = "%-12s %8s %12s %12s %12s %8s %10s %8s %13s %10s\n"
	fmt.Printf("\n"+row, "table", "mutants", "simulation", "directed", "conformance", "tests", "not tried", "alive", "median seed", "max seed")
	for _, table := range tables {
		t := r.tally(table.mutants)
		if t.all == 0 {
			continue
		}
		cells := []any{table.name, strconv.Itoa(t.all)}
		for _, l := range layers {
			cells = append(cells, strconv.Itoa(t.found[l]))
		}
		median, highest := t.spread()
		fmt.Printf(row, append(cells, strconv.Itoa(t.untried), strconv.Itoa(t.alive), median, highest)...)
	}
}

// account writes a line of the ledger for each table.
func (r *runner) account() error {
	for _, table := range tables {
		run, t := r.accounts[table.name], r.tally(table.mutants)
		if run == nil || t.all == 0 {
			continue
		}
		median, highest := t.spread()
		settings := fmt.Sprintf("found by simulation %d (median seed %s, max seed %s), by directed simulation %d, by conformance %d, by tests %d, not tried %d",
			t.found[layers[0]], median, highest, t.found[layers[1]], t.found[layers[2]], t.found[layers[3]], t.untried)
		if !t.complete {
			settings += ", a part of the table"
		}
		if err := run.Describe(settings).End(t.all-t.untried, t.alive); err != nil {
			return err
		}
	}
	return nil
}

// head is the first line of a table of results.
var head = []string{"table", "mutant", "breaks", "layer", "found by", "seed", "seconds"}

// writeTable writes what became of each mutant, after what the file says of those
// that were not tried this time.
func (r *runner) writeTable(path string) error {
	if path == "" {
		return nil
	}
	old := make(map[string]string)
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(cells) == len(head) && cells[0] != head[0] {
			old[cells[0]+"\t"+cells[1]] = line
		}
	}
	var b strings.Builder
	fmt.Fprintln(&b, strings.Join(head, "\t"))
	for _, table := range tables {
		for i := range table.mutants {
			m := &table.mutants[i]
			key := table.name + "\t" + m.name
			if v, ok := r.done[m]; ok && (v.by != untouched || old[key] == "") {
				fmt.Fprintln(&b, strings.Join([]string{key, m.breaks, m.layer(v), v.by, v.seed, fmt.Sprintf("%.1f", v.took.Seconds())}, "\t"))
			} else {
				b.WriteString(old[key])
			}
		}
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(temp, []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
