package sim_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/verify/exact"
	"github.com/holdfast-lock/holdfast/verify/ledger"
	"github.com/holdfast-lock/holdfast/verify/sim"
)

var (
	seeds = flag.Int("seeds", fromEnv("HOLDFAST_SEEDS", 2000), "run so many seeds")
	first = flag.Int("first", 0, "the first of them")
	most  = flag.Int("most", 0, "more than -seeds, up to so many, until the file of -until is there")
	until = flag.String("until", "", "see -most")
	only  = flag.Int("seed", -1, "run this seed alone and log all that happens")
	less  = flag.String("less", "", "of -seed: what is left away, as a failure says")
	limit = flag.Int("failures", 1, "go on until so many seeds have failed")

	exactly = flag.Bool("exact", true, "play seeds where the scheduler leaves nothing to chance")
	stride  = flag.Int("stride", 1, "from one seed to the next")
)

func fromEnv(name string, n int) int {
	if set, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return set
	}
	return n
}

// TestSeeds runs seeds side by side, until one shows a violation: in exact
// processes of its own, one for each processor, unless -exact=false.
func TestSeeds(t *testing.T) {
	switch {
	case *only >= 0 && (exact.Ours() || !*exactly):
		replay(t, uint64(*only))
	case exact.Ours() || !*exactly:
		playAll(t)
	default:
		inProcesses(t)
	}
}

// A tally is what a process has done; it says so on a line of its own.
type tally struct{ Seeds, Failed, Holds, Steps, Twice, Differ int64 }

const tallyMark = "TALLY "

func (a *tally) add(b tally) {
	a.Seeds, a.Failed, a.Holds, a.Steps = a.Seeds+b.Seeds, a.Failed+b.Failed, a.Holds+b.Holds, a.Steps+b.Steps
	a.Twice, a.Differ = a.Twice+b.Twice, a.Differ+b.Differ
}

// inProcesses has exact processes play the seeds.
func inProcesses(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "sim.test")
	if err := exact.Build(".", ".", bin, nil); errors.Is(err, exact.ErrRuntime) {
		t.Logf("SKIPPED: exact replay: %v; seeds are played once, in whatever order the scheduler has", err)
		playAll(t)
		return
	} else if err != nil {
		t.Fatal(err)
	}
	n := runtime.GOMAXPROCS(0)
	args := []string{"-test.run", "^TestSeeds$", "-test.v", "-test.timeout", "0", "-failures", fmt.Sprint(*limit)}
	if *only >= 0 {
		n = 1
		args = append(args, "-seed", fmt.Sprint(*only), "-less", *less)
	}
	which := fmt.Sprintf("seeds %d to %d", *first, *first+*seeds-1)
	if *most > *seeds {
		which = fmt.Sprintf("seeds from %d", *first)
	}
	simulated, twice := ledger.Begin("sim", "memory", which), ledger.Begin("determinism", "memory", "every hundredth of "+which)
	began := time.Now()
	var mu sync.Mutex // guards all below, and standard output
	var done tally
	now := make([]tally, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			cmd := exact.Command(bin, append(args, "-first", fmt.Sprint(*first+i), "-stride", fmt.Sprint(n), "-seeds", fmt.Sprint((*seeds-i+n-1)/n),
				"-most", fmt.Sprint((*most-i+n-1)/n), "-until", *until)...)
			cmd.SysProcAttr = dieWithUs()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Error(err)
				return
			}
			cmd.Stderr = cmd.Stdout
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			in := bufio.NewScanner(out)
			in.Buffer(nil, 1<<24)
			for in.Scan() {
				mu.Lock()
				if text, ok := strings.CutPrefix(in.Text(), tallyMark); ok {
					json.Unmarshal([]byte(text), &now[i])
				} else if !noise.MatchString(in.Text()) {
					fmt.Println(in.Text())
				}
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("of seeds %d and so on: %v", *first+i, err)
			}
		})
	}
	stop := make(chan bool)
	go func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			mu.Lock()
			sum := tally{}
			for _, n := range now {
				sum.add(n)
			}
			mu.Unlock()
			fmt.Fprintf(os.Stderr, "%d of %d seeds, %.0f a second\n", sum.Seeds, max(*seeds, *most), float64(sum.Seeds)/time.Since(began).Seconds())
		}
	}()
	all.Wait()
	close(stop)
	if *only >= 0 {
		return
	}
	for _, n := range now {
		done.add(n)
	}
	if done.Differ > 0 {
		t.Errorf("%d of %d seeds that were played twice went two ways", done.Differ, done.Twice)
	}
	if err := errors.Join(simulated.End(int(done.Seeds), int(done.Failed)), twice.End(int(done.Twice), int(done.Differ))); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	t.Logf("%d seeds, %d locks given, %d records written, in %v: %.0f seeds a second; %d played twice, %d of them otherwise",
		done.Seeds, done.Holds, done.Steps, took.Round(time.Millisecond), float64(done.Seeds)/took.Seconds(), done.Twice, done.Differ)
}

// noise is what go test says besides.
var noise = regexp.MustCompile(`^(=== |\s*--- PASS|PASS$|ok )`)

// playAll plays the seeds here.
func playAll(t *testing.T) {
	collect := func() {}
	if exact.Ours() { // a collection of garbage in between would be one more thing that happens
		debug.SetGCPercent(-1)
		collect = runtime.GC
	} else {
		defer debug.SetGCPercent(debug.SetGCPercent(1000)) // a seed leaves little behind
	}
	var mu sync.Mutex // guards all below
	var sum tally
	next, end, last := *first, *first+*seeds**stride, *first+*most**stride
	t.Run("all", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for {
					mu.Lock()
					seed := next
					next += *stride
					if sum.Seeds%100 == 99 && exact.Ours() {
						text, _ := json.Marshal(sum)
						fmt.Printf("%s%s\n", tallyMark, text)
					}
					mu.Unlock()
					if _, err := os.Stat(*until); seed >= end && (seed >= last || sum.Failed > 0 || err == nil) {
						return
					}
					if seed / *stride % 20 == 0 {
						collect()
					}
					r := play(t, uint64(seed), nil, nil)
					one := tally{Seeds: 1, Holds: int64(r.Holds), Steps: int64(r.Steps)}
					if seed / *stride % 100 == 0 && exact.Ours() {
						// By now there is what is made once in a process, such as the caches of
						// encoding/json: their maps draw from the bubble that they are made in.
						first := play(t, uint64(seed), nil, nil).Hash()
						if one.Twice = 1; play(t, uint64(seed), nil, nil).Hash() != first {
							one.Differ = 1
							fmt.Printf("seed %d went two ways\n", seed)
						}
					}
					found := r.Judge()
					for _, v := range found {
						t.Errorf("seed %d: %v", seed, v)
						one.Failed = 1
					}
					mu.Lock()
					if sum.add(one); one.Failed > 0 && sum.Failed == int64(*limit) {
						next = max(end, last)
					}
					mu.Unlock()
					if len(found) > 0 {
						shrink(t, uint64(seed), found[0].Rule)
					}
				}
			})
		}
	})
	text, _ := json.Marshal(sum)
	fmt.Printf("%s%s\n", tallyMark, text)
	t.Logf("%d seeds, %d locks given, %d records written", sum.Seeds, sum.Holds, sum.Steps)
}

// shrink says how to see a failure again, and what can be left away of it.
func shrink(t *testing.T, seed uint64, rule string) {
	again := fmt.Sprintf("to replay: go test ./verify/sim -run TestSeeds -v -seed %d", seed)
	if !exact.Ours() {
		t.Log(again + ", perhaps more than once")
		return
	}
	tried := 0
	less := sim.Shrink(seed, func(less []string) bool {
		if tried++; tried > 400 {
			return false
		}
		for _, v := range play(t, seed, less, nil).Judge() {
			if v.Rule == rule {
				return true
			}
		}
		return false
	})
	t.Logf("%s -less %s", again, strings.Join(less, ","))
}

// play runs one seed in a bubble. One that does not end is a failure, too: one that
// has computed for a minute, or waited for an hour. On a busy machine it may not get to
// compute for minutes.
func play(t *testing.T, seed uint64, less []string, log io.Writer) (r *sim.Result) {
	const look = 10 * time.Second
	began, looks := computed(), 0
	var ended atomic.Bool
	var watch func() *time.Timer
	watch = func() *time.Timer {
		return time.AfterFunc(look, func() {
			looks++
			switch {
			case ended.Load():
			case computed()-began < time.Minute && looks < 360:
				watch()
			default:
				if l, ok := log.(*lines); ok {
					l.tail(100)
				}
				panic(fmt.Sprintf("seed %d does not end", seed))
			}
		})
	}
	defer watch().Stop()
	defer ended.Store(true)
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "seed %d panics\n", seed)
			panic(p)
		}
	}()
	synctest.Test(t, func(t *testing.T) { r = sim.Run(seed, less, log) })
	return r
}

// replay runs one seed with a log, which is shown.
func replay(t *testing.T, seed uint64) {
	log := &lines{}
	r := play(t, seed, sim.Less(*less), log)
	log.print()
	for _, v := range r.Judge() {
		t.Errorf("seed %d: %v", seed, v)
	}
}

// lines keeps a log in memory until it is wanted.
type lines struct {
	mu  sync.Mutex
	all []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, p...)
	return len(p), nil
}

func (l *lines) print() { os.Stdout.Write(l.all) }

// tail shows the last n lines.
func (l *lines) tail(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := len(l.all)
	for ; from > 0 && n >= 0; n-- {
		from = bytes.LastIndexByte(l.all[:from], '\n')
	}
	os.Stdout.Write(l.all[from+1:])
}
