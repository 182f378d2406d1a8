// Command bench measures Holdfast beside the floors it stands on and the other
// ways to lock on the same servers, which it starts itself:
//
//	go run ./bench
//	go run ./bench -only latency,handoff -stores postgres
//	go run ./bench -load 4                                  # on a busy machine
//	go run ./bench -only growth -large                      # to 10 million names
//	go run ./bench -docs docs bench/results/*.json          # the charts and tables of the pages anew
//
// All of it takes more than an hour; -quick some minutes, and shows only that it
// works. Progress goes to standard error, tables to standard output. The systems of a
// workload take turns in one run, so the ratios mean more than the times, which
// are those of this machine at this moment. A store whose server is not
// installed is left out, and that is said.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

// A workload measures some systems that do the same.
type workload struct {
	name string
	run  func(b *bench) ([]Row, error)
}

var workloads = []workload{
	{"latency", latency},
	{"cost", costs},
	{"extras", extras},
	{"metrics", metrics},
	{"throughput", throughput},
	{"goroutines", goroutines},
	{"handoff", handoff},
	{"held", keep},
	{"crash", crash},
	{"waiters", waiters},
	{"growth", growth},
	{"serve", served},
	{"command", command},
	{"state", states},
	{"cache", caches},
}

// A bench is what the workloads share.
type bench struct {
	ctx     context.Context
	began   time.Time
	dir     string // on a real disk, removed at the end
	site    site
	servers map[string]*server // that run
	rounds  int
	quick   bool
	verbose bool
	// spinning are processes that keep the machine busy.
	spinning []int
	filled   map[string]int // names in the table of a store, by growth
	large    bool
	round    int // counts those that need names of their own
}

// say tells of progress, after how many seconds.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0f  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// path is a file of this run.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// has says whether a store is measured.
func (b *bench) has(store string) bool { return b.servers[store] != nil }

// few is how often those take turns whose rounds take seconds.
func (b *bench) few() int { return max(1, b.rounds/4) }

func (b *bench) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// eachStore runs a workload on one store after the other.
func (b *bench) eachStore(workload string, f func(ss []*system) ([]Row, error)) (rows []Row, err error) {
	for _, start := range kinds {
		var ss []*system
		for _, s := range start.systems {
			needsBouncer := strings.HasSuffix(s.name, "through PgBouncer")
			if b.has(s.store) && s.takesPart(workload) && (!needsBouncer || b.site.Bouncer != "") {
				ss = append(ss, s)
			}
		}
		if len(ss) == 0 {
			continue
		}
		b.say("  %s", start.store)
		beside := b.neighbours()
		some, err := f(ss)
		if b.ctx.Err() != nil {
			return nil, b.ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", start.store, err)
		}
		for i := range some {
			some[i].Others = beside.wanted()
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// open opens systems in this process. shut closes them, and adds what that
// meets to an error.
func (b *bench) open(ss []*system, o func(s *system) options) (ls []locker, shut func(err *error), err error) {
	shut = func(err *error) {
		for _, l := range ls {
			*err = errors.Join(*err, l.close())
		}
	}
	for _, s := range ss {
		l, err := s.open(b.ctx, &b.site, o(s))
		if err != nil {
			err = fmt.Errorf("open %s: %w", s.name, err)
			shut(&err)
			return nil, nil, err
		}
		ls = append(ls, l)
	}
	return ls, shut, nil
}

func main() {
	if task := os.Getenv(taskVariable); task != "" {
		if err := play(task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := measure(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// chosen are the names of a list that a flag has asked for; all if for none.
func chosen(what, asked string, names []string) ([]string, error) {
	if asked == "" {
		return names, nil
	}
	list := strings.Split(asked, ",")
	for _, name := range list {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("no %s %q; there are %s", what, name, strings.Join(names, ", "))
		}
	}
	return list, nil
}

func measure() (err error) {
	var works, stores []string
	for _, w := range workloads {
		works = append(works, w.name)
	}
	for _, s := range kinds {
		stores = append(stores, s.store)
	}
	rounds := flag.Int("rounds", 0, "how often the systems take turns, a quarter of it where a round takes seconds (default 20, with -quick 3)")
	only := flag.String("only", "", "run some workloads only, separated by commas: "+strings.Join(works, ", "))
	on := flag.String("stores", "", "measure on some stores only, separated by commas: "+strings.Join(stores, ", "))
	report := flag.String("json", "", "also write the result to a `FILE`")
	quick := flag.Bool("quick", false, "a short run that shows whether all works; its numbers mean little")
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process to a `FILE`: of latency and throughput, the others use more processes")
	load := flag.Int("load", 0, "measure on a busy machine: `N` processes that spin run beside")
	large := flag.Bool("large", false, "let growth go to 10 million names, and to 10,000 sessions, which takes ten minutes")
	verbose := flag.Bool("v", false, "also tell which statements a hand-off has taken, where the server knows")
	docs := flag.String("docs", "", "measure nothing: draw the charts and write the tables of the pages in a `DIR` anew, from the results that are named")
	dir := flag.String("dir", "", "make files and servers in a `DIR` on another disk, which all users can enter (default the one for temporary files)")
	flag.Parse()
	if *docs != "" {
		return publish(*docs, flag.Args())
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if works, err = chosen("workload", *only, works); err != nil {
		return err
	}
	if stores, err = chosen("store", *on, stores); err != nil {
		return err
	}
	if *rounds == 0 {
		*rounds = 20
		if *quick {
			*rounds = 3
		}
	}
	if *dir != "" {
		if err := os.Setenv("TMPDIR", *dir); err != nil { // where servers live too
			return err
		}
	}

	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	temp, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	b := &bench{ctx: ctx, began: time.Now(), dir: temp, site: site{Dir: temp}, servers: map[string]*server{}, rounds: *rounds, quick: *quick, verbose: *verbose, large: *large, filled: map[string]int{}}
	result := Report{Machine: thisMachine(temp), Rounds: *rounds, Quick: *quick}
	result.Machine.Spinning = *load
	b.say("%s", result.Machine)
	if volatile[result.Machine.FileSystem] {
		b.say("WARNING: %s is no disk; nothing here waits for one. Choose another with -dir.", result.Machine.FileSystem)
	}
	for _, s := range kinds {
		if !slices.Contains(stores, s.store) {
			continue
		}
		before := children()
		server, err := s.start(b)
		switch {
		case errors.Is(err, servers.ErrMissing):
			b.say("SKIPPED: %v", err)
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", s.store, err)
		}
		defer server.stop()
		b.servers[s.store] = server
		server.pids = slices.DeleteFunc(children(), func(pid int) bool { return slices.Contains(before, pid) })
		if server.version != "" {
			result.Servers = append(result.Servers, server.version)
			b.say("%s", server.version)
		}
	}
	if *load > 0 {
		callOff, err := b.spin(*load)
		if err != nil {
			return err
		}
		defer callOff()
	}
	for _, w := range workloads {
		if !slices.Contains(works, w.name) {
			continue
		}
		b.say("%s …", w.name)
		beside := b.neighbours()
		rows, err := w.run(b)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		for i := range rows {
			rows[i].Workload = w.name
			if rows[i].Others == 0 {
				rows[i].Others = beside.wanted()
			}
		}
		result.Rows = append(result.Rows, rows...)
		if *report != "" { // as far as it has come
			if err := result.save(*report); err != nil {
				return err
			}
		}
	}
	return result.print(os.Stdout)
}
