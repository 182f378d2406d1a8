package sim_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/verify/ledger"
	"github.com/holdfast-lock/holdfast/verify/sim"
)

var (
	seeds = flag.Int("seeds", fromEnv("HOLDFAST_SEEDS", 2000), "run so many seeds")
	first = flag.Int("first", 0, "the first of them")
	only  = flag.Int("seed", -1, "run this seed alone and log all that happens")
	limit = flag.Int("failures", 1, "go on until so many seeds have failed")
	times = flag.Int("times", 1, "run -seed so often, or until it fails")
)

func fromEnv(name string, n int) int {
	if set, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return set
	}
	return n
}

// TestSeeds runs seeds side by side, until one shows a violation.
func TestSeeds(t *testing.T) {
	if *only >= 0 {
		for range *times {
			if !replay(t, uint64(*only)) {
				return
			}
		}
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // a seed leaves little behind
	var next, done, failed, holds, steps atomic.Int64
	next.Store(int64(*first))
	end := int64(*first + *seeds)
	began := time.Now()
	account := ledger.Begin("sim", "memory", fmt.Sprintf("seeds %d to %d", *first, end-1))
	stop := make(chan struct{})
	var progress sync.WaitGroup
	progress.Go(func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n := done.Load()
				fmt.Fprintf(os.Stderr, "%d of %d seeds, %.0f a second\n", n, *seeds, float64(n)/time.Since(began).Seconds())
			case <-stop:
				return
			}
		}
	})
	t.Run("all", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for {
					seed := next.Add(1) - 1
					if seed >= end {
						return
					}
					r := play(t, uint64(seed), nil)
					done.Add(1)
					holds.Add(int64(r.Holds))
					steps.Add(int64(r.Steps))
					if found := r.Judge(); len(found) > 0 {
						if failed.Add(1) == int64(*limit) {
							next.Store(end)
						}
						for _, v := range found {
							t.Errorf("seed %d: %v", seed, v)
						}
						t.Logf("to replay: go test ./verify/sim -run TestSeeds -seed %d -times 50 -v", seed)
					}
				}
			})
		}
	})
	close(stop)
	progress.Wait()
	if err := account.End(int(done.Load()), int(failed.Load())); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	t.Logf("%d seeds, %d locks given, %d records written, in %v: %.0f seeds a second", done.Load(), holds.Load(), steps.Load(), took.Round(time.Millisecond), float64(done.Load())/took.Seconds())
}

// play runs one seed in a bubble. One that does not end is a failure, too.
func play(t *testing.T, seed uint64, log io.Writer) (r *sim.Result) {
	stuck := time.AfterFunc(20*time.Second, func() {
		if l, ok := log.(*lines); ok {
			l.tail(100)
		}
		panic(fmt.Sprintf("seed %d does not end", seed))
	})
	defer stuck.Stop()
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "seed %d panics\n", seed)
			panic(p)
		}
	}()
	synctest.Test(t, func(t *testing.T) { r = sim.Run(seed, log) })
	return r
}

// replay runs one seed with a log, which is shown if it fails.
func replay(t *testing.T, seed uint64) bool {
	log := &lines{}
	r := play(t, seed, log)
	found := r.Judge()
	if len(found) > 0 || testing.Verbose() && *times == 1 {
		log.print()
	}
	for _, v := range found {
		t.Errorf("seed %d: %v", seed, v)
	}
	return len(found) == 0
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
