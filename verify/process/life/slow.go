//go:build linux

package life

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Load measures, for a tenth of a second, how many want a processor for each that there
// is: 1 where nobody else does.
func Load() float64 {
	n := runtime.NumCPU()
	began := Now()
	var used atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			first := threadTime()
			for Now()-began < int64(100*time.Millisecond) {
			}
			used.Add(threadTime() - first)
		})
	}
	all.Wait()
	return max(1, float64(Now()-began)*float64(n)/float64(max(used.Load(), 1)))
}

func threadTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// Slowness measures by how much this machine is late to wake who sleeps, and how
// long its disk takes, so that a limit on others is not a limit on them: a
// hand-over is a few wake-ups and writes. It writes to a file in dir.
func Slowness(dir string) (stop func() time.Duration, err error) {
	file, err := os.CreateTemp(dir, "gauge-")
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	worst := func(do func() time.Duration) chan time.Duration {
		most := make(chan time.Duration, 1)
		go func() {
			var worst time.Duration
			for {
				select {
				case <-done:
					most <- worst
					return
				default:
					worst = max(worst, do())
				}
			}
		}()
		return most
	}
	late := worst(func() time.Duration {
		before := Now()
		time.Sleep(time.Millisecond)
		return time.Duration(Now()-before) - time.Millisecond
	})
	disk := worst(func() time.Duration {
		time.Sleep(20 * time.Millisecond)
		before := Now()
		file.WriteAt(make([]byte, 4096), 0)
		file.Sync()
		return time.Duration(Now() - before)
	})
	return func() time.Duration {
		close(done)
		defer file.Close()
		return 2*<-late + 3*<-disk
	}, nil
}
