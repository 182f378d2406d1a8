// Package busy tells tests how busy the machine is, so that a lease that has to be kept is
// long enough for it.
package busy

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Stretch is how many times longer leases and waits have to be than on an otherwise idle
// machine: 1 to 3. It is measured once, in half a second, and printed if it is not 1.
// HOLDFAST_TEST_STRETCH takes the place of the measurement: ./test measures between its
// steps, where the work of other tests and of their servers is not in the way.
var Stretch = sync.OnceValue(func() int {
	if n, err := strconv.Atoi(os.Getenv("HOLDFAST_TEST_STRETCH")); err == nil && n >= 1 && n <= 3 {
		return n
	}
	n := stretch()
	if n > 1 {
		fmt.Fprintf(os.Stderr, "others want this machine's processors: leases are %d times as long\n", n)
	}
	return n
})

// Now is Stretch, or more if the processors are busier at this moment: for what just took
// longer than it would on an otherwise idle machine.
func Now() int { return max(Stretch(), stretch()) }

// stretch is the median of five measurements: a burst of work is over soon, and the kernel
// briefly favours whoever had no processor time before.
func stretch() int {
	var loads []float64
	for range 5 {
		loads = append(loads, Measure())
	}
	slices.Sort(loads)
	if loads[2] <= 1.25 {
		return 1
	}
	return min(int(math.Ceil(loads[2])), 3)
}

// Times is a duration, stretched.
func Times(d time.Duration) time.Duration { return time.Duration(Stretch()) * d }
