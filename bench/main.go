// Command bench measures Holdfast beside the floors it stands on: the bare
// statements of the same database, sync.Mutex, flock(2) and flock(1).
//
//	go run ./bench
//
// Progress goes to standard error, a table to standard output. The systems of
// a workload take turns in one run, so the ratios mean more than the times,
// which are those of this machine at this moment.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

// A workload measures some systems that do the same.
type workload struct {
	name string
	run  func(b *bench) ([]Row, error)
}

var workloads = []workload{
	{"free", free},
	{"goroutines", goroutines},
	{"processes", processes},
	{"held", held},
	{"waiters", waiters},
	{"command", command},
}

// A bench is what the workloads share.
type bench struct {
	ctx    context.Context
	dir    string // on a real disk, removed at the end
	rounds int
	quick  bool
}

// say tells of progress.
func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// path is a file of this run.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func main() {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	rounds := flag.Int("rounds", 0, "how often the systems take turns (default 20, with -quick 3)")
	only := flag.String("only", "", "run some workloads only, separated by commas: "+strings.Join(names, ", "))
	report := flag.String("json", "", "also write the result to a `FILE`")
	quick := flag.Bool("quick", false, "a short run that shows whether all works; its numbers mean little")
	dir := flag.String("dir", "", "make the files in a `DIR` on another disk (default the one for temporary files)")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	wanted := names
	if *only != "" {
		wanted = strings.Split(*only, ",")
	}
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return fmt.Errorf("no workload %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	if *rounds == 0 {
		*rounds = 20
		if *quick {
			*rounds = 3
		}
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	temp, err := os.MkdirTemp(*dir, "holdfast-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	b := &bench{ctx: ctx, dir: temp, rounds: *rounds, quick: *quick}
	result := Report{Machine: thisMachine(temp), Rounds: *rounds, Quick: *quick}
	b.say("%s", result.Machine)
	if volatile[result.Machine.FileSystem] {
		b.say("WARNING: %s is no disk; nothing here waits for one. Choose another with -dir.", result.Machine.FileSystem)
	}
	for _, w := range workloads {
		if !slices.Contains(wanted, w.name) {
			continue
		}
		b.say("%s …", w.name)
		rows, err := w.run(b)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		for i := range rows {
			rows[i].Workload = w.name
		}
		result.Rows = append(result.Rows, rows...)
	}
	if *report != "" {
		if err := result.save(*report); err != nil {
			return err
		}
	}
	return result.print(os.Stdout)
}
