// Package busy tells tests how busy the machine is, so that a lease that has to be kept is
// long enough for it.
package busy

import (
	"fmt"
	"math"
	"os"
	"sync"
	"time"
)

// Stretch is by how much leases are to be longer, and waits more patient, than a machine of
// one's own needs: 1 to 3. It is measured once, in a tenth of a second, and said aloud if it
// is not 1.
var Stretch = sync.OnceValue(func() int {
	load := Measure()
	if load <= 1.25 {
		return 1
	}
	n := min(int(math.Ceil(load)), 3)
	fmt.Fprintf(os.Stderr, "others want this machine's processors, %.1f for each: leases are %d times as long\n", load, n)
	return n
})

// Times is a duration, stretched.
func Times(d time.Duration) time.Duration { return time.Duration(Stretch()) * d }
