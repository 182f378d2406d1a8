package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// A Report is the result of one run.
type Report struct {
	Machine Machine  `json:"machine"`
	Rounds  int      `json:"rounds"`
	Quick   bool     `json:"quick,omitempty"`
	Servers []string `json:"servers,omitempty"`
	Rows    []Row    `json:"rows"`
}

// A Row is what one system showed under one workload.
type Row struct {
	Workload string  `json:"workload"`
	Store    string  `json:"store,omitempty"`
	System   string  `json:"system"`
	Case     string  `json:"case,omitempty"` // of the workload
	Unit     string  `json:"unit,omitempty"` // none: not measured
	Size     int     `json:"size,omitempty"` // goroutines, processes, names: of what a cost grows with
	Median   float64 `json:"median"`
	P99      float64 `json:"p99,omitempty"`
	Samples  int     `json:"samples,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"` // the median of the rounds' ratios
	Of       string  `json:"of,omitempty"`    // to what
	Aim      string  `json:"aim,omitempty"`
	Met      *bool   `json:"met,omitempty"`
	Uses     *usage  `json:"uses,omitempty"`   // of each operation
	Others   float64 `json:"others,omitempty"` // processors that others used meanwhile, those that spin too
	Disk     string  `json:"disk,omitempty"`   // what waits for the disk
	Settings string  `json:"settings,omitempty"`
	Note     string  `json:"note,omitempty"`
}

// beside sets how a system compares with the one that it is measured against.
func (r Row) beside(s *system, ratio float64) Row {
	r.Ratio = ratio
	if r.Of = s.of; s.of == s.name {
		r.Of = "itself"
	}
	return r
}

// aims sets what was aimed for and whether it was met.
func (r Row) aims(aim string, met bool) Row {
	r.Aim, r.Met = aim, &met
	return r
}

// notes adds what else there is to say.
func (r Row) notes(format string, args ...any) Row {
	r.Note = fmt.Sprintf(format, args...)
	return r
}

// A Machine is where a run took place.
type Machine struct {
	Time       time.Time `json:"time"`
	Go         string    `json:"go"`
	Platform   string    `json:"platform"`
	CPUs       int       `json:"cpus"`
	Model      string    `json:"model,omitempty"`
	Load       string    `json:"load,omitempty"`     // the load averages when the run began
	Spinning   int       `json:"spinning,omitempty"` // processes that kept processors busy beside
	FileSystem string    `json:"fileSystem"`
}

func thisMachine(dir string) Machine {
	m := Machine{
		Time: time.Now().Truncate(time.Second), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		CPUs: runtime.GOMAXPROCS(0), FileSystem: fileSystem(dir),
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.Model = strings.TrimSpace(value)
				break
			}
		}
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	}
	return m
}

func (m Machine) String() string {
	text := fmt.Sprintf("%s, %s, %d CPUs (%s), files on %s, load %s", m.Go, m.Platform, m.CPUs, m.Model, m.FileSystem, m.Load)
	if m.Spinning > 0 {
		text += fmt.Sprintf(", %d processes that spin beside", m.Spinning)
	}
	return text
}

// volatile are the file systems that are no disk.
var volatile = map[string]bool{"tmpfs": true, "ramfs": true, "overlay on tmpfs": true}

// fileSystem names the kind of file system that a directory is on.
func fileSystem(dir string) string {
	kind, longest := "an unknown file system", -1
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return kind
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return kind
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < longest {
			continue
		}
		if dir == f[1] || strings.HasPrefix(dir, strings.TrimSuffix(f[1], "/")+"/") {
			kind, longest = f[2], len(f[1])
		}
	}
	return kind
}

func (r *Report) save(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// print writes a table for each workload and store, and what the systems of it
// were set to.
func (r *Report) print(w io.Writer) error {
	for i := 0; i < len(r.Rows); {
		first := r.Rows[i]
		n := i
		for n < len(r.Rows) && r.Rows[n].Workload == first.Workload && r.Rows[n].Store == first.Store {
			n++
		}
		rows := r.Rows[i:n]
		i = n
		fmt.Fprintf(w, "\n%s", strings.ToUpper(first.Workload))
		if first.Store != "" {
			fmt.Fprintf(w, " on %s", first.Store)
		}
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "SYSTEM\tCASE\tMEDIAN\tP99\tRATIO\tREQUESTS\tCLIENT CPU\tSERVER CPU\tOTHERS\tAIM\tMET\tWAITS FOR THE DISK\tNOTE")
		for _, row := range rows {
			met := ""
			if row.Met != nil {
				met = map[bool]string{true: "yes", false: "NO"}[*row.Met]
			}
			ratio := ""
			if row.Ratio != 0 && row.Of != "itself" {
				ratio = figure(row.Ratio) + "x " + row.Of
			}
			median := "not measured"
			if row.Unit != "" {
				median = "0"
				if row.Median != 0 {
					median = figure(row.Median)
				}
				median += " " + row.Unit
			}
			requests, client, server := "", "", ""
			if u := row.Uses; u != nil {
				requests, client, server = figure(u.Requests), milliseconds(u.Client), milliseconds(u.Server)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%s\t%s\t%s\t%s\n",
				row.System, row.Case, median, figure(row.P99), ratio, requests, client, server, row.Others, row.Aim, met, row.Disk, row.Note)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		told := map[string]bool{}
		for _, row := range rows {
			if line := row.System + ": " + row.Settings; row.Settings != "" && !told[line] {
				told[line] = true
				fmt.Fprintf(w, "  %s\n", line)
			}
		}
	}
	return nil
}

// milliseconds of a processor, if any were counted.
func milliseconds(x float64) string {
	if x <= 0 {
		return ""
	}
	return figure(x) + " ms"
}

// figure writes a number with three digits that matter, and none as nothing.
func figure(x float64) string {
	switch {
	case x == 0:
		return ""
	case math.Abs(x) >= 1e6:
		return fmt.Sprintf("%.2fM", x/1e6)
	case math.Abs(x) >= 100:
		return fmt.Sprintf("%.0f", x)
	case math.Abs(x) >= 10:
		return fmt.Sprintf("%.1f", x)
	case math.Abs(x) < 0.1:
		return fmt.Sprintf("%.3f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
