package busy

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Measure measures, for a tenth of a second, how many threads want each processor: 1 if
// nobody else wants one.
func Measure() float64 {
	n := runtime.NumCPU()
	began := clock(unix.CLOCK_MONOTONIC) // not that of a bubble in which a test runs
	var used atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			first := clock(unix.CLOCK_THREAD_CPUTIME_ID)
			for clock(unix.CLOCK_MONOTONIC)-began < int64(100*time.Millisecond) {
			}
			used.Add(clock(unix.CLOCK_THREAD_CPUTIME_ID) - first)
		})
	}
	all.Wait()
	return max(1, float64(clock(unix.CLOCK_MONOTONIC)-began)*float64(n)/float64(max(used.Load(), 1)))
}

func clock(id int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}
