package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// publish draws the charts and writes the tables of the pages in a directory anew, from results.
func publish(docs string, files []string) error {
	r, err := load(files)
	if err != nil {
		return err
	}
	if err := r.drawAll(filepath.Join(docs, "pictures")); err != nil {
		return err
	}
	page := filepath.Join(docs, "performance.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	filled, err := r.fill(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(filled), 0o644)
}

// load reads results as one. Of a workload on a store that several have, those of the last count.
func load(files []string) (*Report, error) {
	if len(files) == 0 {
		return nil, errors.New("no results are named")
	}
	var all Report
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var r Report
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if r.Machine.Spinning > 0 { // on a machine that was made busy: of a kind of its own
			for i := range r.Rows {
				r.Rows[i].Workload = "busy-" + r.Rows[i].Workload
			}
			r.Machine = all.Machine
		}
		rows := slices.DeleteFunc(all.Rows, func(old Row) bool {
			return slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Workload == old.Workload && row.Store == old.Store })
		})
		machine := r.Machine
		all = Report{Machine: machine, Rows: append(rows, r.Rows...)}
	}
	return &all, nil
}

const (
	tableBegins = "<!-- bench: "
	tableEnds   = "<!-- to here -->\n"
)

// fill replaces what is between the marks of a page by the tables that the marks name.
func (r *Report) fill(page string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(page, tableBegins)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, rest, _ := strings.Cut(rest, " -->\n")
		_, after, found := strings.Cut(rest, tableEnds)
		if !found {
			return "", fmt.Errorf("the table %q has no end", name)
		}
		table := r.table(name)
		if table == "" {
			return "", fmt.Errorf("no result is for the table %q", name)
		}
		b.WriteString(tableBegins + name + " -->\n" + table + tableEnds)
		page = after
	}
}

// A column of a table is left out if it is empty in all rows.
type column struct {
	title string
	cell  func(row Row) string
}

var columns = []column{
	{"Store", func(row Row) string { return storeName(row.Store) }},
	{"", func(row Row) string { return pageName(row) }},
	{"What", func(row Row) string { return row.Case }},
	{"At", func(row Row) string { return grouped(float64(row.Size)) }},
	{"Median", func(row Row) string {
		if row.Unit == "" {
			return "not measured"
		}
		if row.Unit == "/s" {
			return grouped(row.Median) + "/s"
		}
		return cmp.Or(figure(row.Median), "0") + " " + row.Unit
	}},
	{"p99", func(row Row) string {
		if row.Unit == "/s" {
			return ""
		}
		return withUnit(row.P99, row.Unit)
	}},
	{"×", func(row Row) string {
		if row.Ratio == 0 || row.Of == "itself" {
			return ""
		}
		return figure(row.Ratio)
	}},
	{"Statements", func(row Row) string { return used(row, func(u *usage) float64 { return u.Requests }, "") }},
	{"Log", func(row Row) string { return used(row, func(u *usage) float64 { return u.Log }, "bytes") }},
	{"fsyncs", func(row Row) string { return used(row, func(u *usage) float64 { return u.Syncs }, "") }},
	{"Client CPU", func(row Row) string { return used(row, func(u *usage) float64 { return u.Client }, "ms") }},
	{"Server CPU", func(row Row) string { return used(row, func(u *usage) float64 { return u.Server }, "ms") }},
	{"Note", func(row Row) string { return row.Note }},
	{"Others", func(row Row) string { return fmt.Sprintf("%.1f", row.Others) }},
}

func withUnit(x float64, unit string) string {
	if x == 0 {
		return ""
	}
	return strings.TrimSpace(figure(x) + " " + unit)
}

func used(row Row, what func(u *usage) float64, unit string) string {
	if row.Uses == nil {
		return ""
	}
	x := what(row.Uses)
	if x > 0 && x < 0.005 { // what goes on beside
		return "0.00"
	}
	if unit == "bytes" && x > 0 {
		return grouped(x)
	}
	return withUnit(x, unit)
}

func storeName(store string) string {
	if name := storeNames[store]; name != "" {
		return name
	}
	return store
}

// pageName is how a table calls a system.
func pageName(row Row) string {
	if row.System == "holdfast" {
		return "**Holdfast**"
	}
	return "`" + row.System + "`"
}

// grouped writes a whole number with commas, and none as nothing.
func grouped(x float64) string {
	if x == 0 {
		return ""
	}
	if x < 100 && x != math.Trunc(x) {
		return figure(x)
	}
	text := fmt.Sprintf("%.0f", x)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// table is the table of a name: of a workload, or of a part of it.
func (r *Report) table(name string) string {
	name, without, _ := strings.Cut(name, " without ")
	workload, of, _ := strings.Cut(name, " ")
	var rows []Row
	for _, row := range r.Rows {
		same := of == "same" && row.Case == "" // the same name each time
		if row.Workload == workload && (of == "" || same || strings.HasPrefix(row.Case, of)) {
			rows = append(rows, row)
		}
	}
	if kind := strings.TrimPrefix(workload, "busy-"); kind == "throughput" || kind == "handoff" {
		return bySize(rows, kind)
	}
	switch workload {
	case "held", "waiters", "crash":
		return byCase(rows, workload)
	}
	var shown []column
	for _, c := range columns {
		if c.title == "Note" && without == "" {
			continue
		}
		empty := !slices.ContainsFunc(rows, func(row Row) bool { return c.cell(row) != "" })
		if !empty && (c.title == "" || !slices.Contains(strings.Split(without, ","), c.title)) {
			shown = append(shown, c)
		}
	}
	var lines [][]string
	for _, row := range rows {
		if row.Unit == "" {
			continue
		}
		var cells []string
		for _, c := range shown {
			cells = append(cells, c.cell(row))
		}
		lines = append(lines, cells)
	}
	var titles []string
	for _, c := range shown {
		titles = append(titles, c.title)
	}
	return tableOf(titles, lines)
}

// byCase has a line for each system and what it holds or waits for, and a column for each thing that
// was measured of that.
func byCase(rows []Row, workload string) string {
	type entry struct {
		key   []string
		cells map[string]string
		row   Row
	}
	var entries []entry
	var whats []string
	for _, row := range rows {
		if row.Unit == "" {
			continue
		}
		key := []string{storeName(row.Store), pageName(row)}
		of, what, _ := strings.Cut(row.Case, ", ")
		if workload == "crash" {
			what = row.Case
		} else {
			key = append(key, of)
		}
		if what == "to keep them" || strings.HasSuffix(what, " per beat") {
			what = "each heartbeat, or to keep them"
		}
		if what == "" {
			what = "all of them"
		}
		if !slices.Contains(whats, what) {
			whats = append(whats, what)
		}
		i := slices.IndexFunc(entries, func(e entry) bool { return slices.Equal(e.key, key) })
		if i < 0 {
			i = len(entries)
			entries = append(entries, entry{key, map[string]string{}, row})
		}
		entries[i].cells[what] = cmp.Or(figure(row.Median), "0") + " " + row.Unit
	}
	var lines [][]string
	var titles []string
	for _, e := range entries {
		titles = append([]string{"Store", "", ""}[:len(e.key)], append(slices.Clone(whats), "Others")...)
		cells := e.key
		for _, what := range whats {
			cells = append(cells, e.cells[what])
		}
		lines = append(lines, append(cells, fmt.Sprintf("%.1f", e.row.Others)))
	}
	return tableOf(titles, lines)
}

func tableOf(titles []string, lines [][]string) string {
	if len(lines) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| " + strings.Join(titles, " | ") + " |\n|" + strings.Repeat("---|", len(titles)) + "\n")
	for _, cells := range lines {
		b.WriteString(strings.ReplaceAll("| "+strings.Join(cells, " | ")+" |", "|  |", "| |") + "\n")
	}
	return strings.ReplaceAll(b.String(), "|  |", "| |")
}

// bySize has a line for each system, and a column for each size of its crowd.
func bySize(rows []Row, workload string) string {
	var sizes []int
	for _, row := range rows {
		if row.Size > 0 && !slices.Contains(sizes, row.Size) {
			sizes = append(sizes, row.Size)
		}
	}
	slices.Sort(sizes)
	titles := []string{"Store", ""}
	for _, n := range sizes {
		titles = append(titles, fmt.Sprint(n))
	}
	titles = append(titles, "Others")
	var lines [][]string
	line := func(row Row, what string) *[]string {
		for i := range lines {
			if lines[i][0] == storeName(row.Store) && lines[i][1] == pageName(row)+what {
				return &lines[i]
			}
		}
		cells := make([]string, len(titles))
		cells[0], cells[1], cells[len(cells)-1] = storeName(row.Store), pageName(row)+what, fmt.Sprintf("%.1f", row.Others)
		lines = append(lines, cells)
		return &lines[len(lines)-1]
	}
	for _, row := range rows {
		if row.Size == 0 {
			continue
		}
		at := 2 + slices.Index(sizes, row.Size)
		ratio := ""
		if row.Ratio > 0 && row.Of != "itself" {
			ratio = " (" + figure(row.Ratio) + "×)"
		}
		switch {
		case workload == "throughput":
			(*line(row, ""))[at] = grouped(row.Median) + "/s" + ratio
		case row.Unit == "/s":
			(*line(row, ", holds a second"))[at] = figure(row.Median)
		case row.Unit == "ms":
			cell := figure(row.Median)
			if row.P99 > 0 {
				cell += ", p99 " + figure(row.P99)
			}
			(*line(row, ", ms"))[at] = cell + ratio
			if row.Uses != nil && row.Uses.Requests > 0 {
				(*line(row, ", statements each"))[at] = figure(row.Uses.Requests)
			}
			if row.Uses != nil && row.System == "holdfast" && row.Uses.Client > 0 {
				(*line(row, ", processor time of clients, server, ms"))[at] = figure(row.Uses.Client) + ", " + cmp.Or(figure(row.Uses.Server), "0")
			}
		}
	}
	return tableOf(titles, lines)
}
