// Package ledger keeps account of what Holdfast was put through: verify/LEDGER.tsv,
// a line for each run of a tool, written by the tool itself. Figures that
// docs/testing.md gives are sums of its lines and come from nowhere else.
//
// A tool writes where HOLDFAST_LEDGER says, and nowhere if that is not set.
package ledger

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Columns are the names of the columns, which the first line of the file has.
//
//	date        when the run began, UTC
//	commit      of the sources; with "+" if they had changes that were not committed
//	layer       what was run, which says what is counted:
//	            sim         seeds of the simulation
//	            histories   of one name each, with several sessions, judged for linearizability
//	            chaos       episodes of faults on real servers
//	            models      states of a model, all of them searched; violations 0, or 1 where it has to fail
//	            mutants     rules taken out; violations are those that nobody noticed
//	            fuzz        inputs tried
//	            determinism seeds played twice; violations are those that differed
//	store       the store, or the model
//	settings    kinds of faults, sizes, what else tells runs apart
//	count       how many
//	violations  promises seen broken
//	seconds     how long it took
var Columns = []string{"date", "commit", "layer", "store", "settings", "count", "violations", "seconds"}

// A Line is a run.
type Line struct {
	Date                           time.Time
	Commit, Layer, Store, Settings string
	Count, Violations              int64
	Seconds                        float64
}

func (l Line) String() string {
	clean := strings.NewReplacer("\t", " ", "\n", " ").Replace
	return strings.Join([]string{
		l.Date.UTC().Format("2006-01-02T15:04Z"), l.Commit, clean(l.Layer), clean(l.Store), clean(l.Settings),
		strconv.FormatInt(l.Count, 10), strconv.FormatInt(l.Violations, 10), strconv.FormatFloat(l.Seconds, 'f', 1, 64),
	}, "\t")
}

// A Run is one that has begun.
type Run struct{ line Line }

// Begin begins a run: its sources are those of this moment.
func Begin(layer, store, settings string) *Run {
	return &Run{Line{Date: time.Now(), Commit: commit(), Layer: layer, Store: store, Settings: settings}}
}

// Of is another line of the same run, or one of which only now is known what it
// was of.
func (r *Run) Of(layer, settings string) *Run {
	l := r.line
	l.Layer, l.Settings = layer, settings
	return &Run{l}
}

// Describe says what is known of a run only at its end.
func (r *Run) Describe(settings string) *Run {
	r.line.Settings = settings
	return r
}

// End writes the line of a run, if there is a ledger. count is how many were
// run to their end, violations how many promises were seen broken.
func (r *Run) End(count, violations int) error {
	l := r.line
	l.Count, l.Violations, l.Seconds = int64(count), int64(violations), time.Since(l.Date).Seconds()
	path := os.Getenv("HOLDFAST_LEDGER")
	if path == "" {
		return nil
	}
	text := l.String() + "\n"
	if _, err := os.Stat(path); os.IsNotExist(err) {
		text = strings.Join(Columns, "\t") + "\n" + text
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("the ledger HOLDFAST_LEDGER=%s: %w", path, err)
	}
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return fmt.Errorf("the ledger %s: %w", path, err)
	}
	return f.Close()
}

// commit is that of the sources, or what HOLDFAST_COMMIT says of a program that
// was built before.
func commit() string {
	if c := os.Getenv("HOLDFAST_COMMIT"); c != "" {
		return c
	}
	out, err := exec.Command("git", "rev-parse", "--short=10", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	c := string(bytes.TrimSpace(out))
	out, err = exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/verify/LEDGER.tsv").Output()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		c += "+"
	}
	return c
}

// Read reads a ledger.
func Read(path string) (lines []Line, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		cells := strings.Split(in.Text(), "\t")
		if len(cells) != len(Columns) {
			return nil, fmt.Errorf("%s:%d: %d columns, want %d: %s", path, n, len(cells), len(Columns), strings.Join(Columns, ", "))
		}
		if n == 1 && cells[0] == Columns[0] {
			continue
		}
		l := Line{Commit: cells[1], Layer: cells[2], Store: cells[3], Settings: cells[4]}
		var errs [4]error
		l.Date, errs[0] = time.Parse("2006-01-02T15:04Z", cells[0])
		l.Count, errs[1] = strconv.ParseInt(cells[5], 10, 64)
		l.Violations, errs[2] = strconv.ParseInt(cells[6], 10, 64)
		l.Seconds, errs[3] = strconv.ParseFloat(cells[7], 64)
		for _, err := range errs {
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n, err)
			}
		}
		lines = append(lines, l)
	}
	return lines, in.Err()
}

// A Sum is what lines of one layer come to.
type Sum struct {
	Count, Violations int64
	Seconds           float64
}

// Total sums the lines of a layer that a store, or any for "", was put through.
func Total(lines []Line, layer, store string) (s Sum) {
	for _, l := range lines {
		if l.Layer == layer && (store == "" || l.Store == store) {
			s.Count, s.Violations, s.Seconds = s.Count+l.Count, s.Violations+l.Violations, s.Seconds+l.Seconds
		}
	}
	return s
}
