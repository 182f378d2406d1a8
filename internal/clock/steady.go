package clock

import (
	"sync/atomic"
	"time"
)

// Started is when this process began.
var Started = time.Now()

var (
	diff  atomic.Int64 // wall minus monotonic clock when slept was last asked
	slept atomic.Int64 // how long the machine has slept since this process began
)

// Steady reads a clock that does not step and runs while the machine sleeps, counted from the
// start of this process: Go's monotonic clock, which stands still during sleep, plus the time
// that the machine slept. The kernel is asked for the latter only when wall and monotonic clock
// have moved apart, as they do over every sleep, so Steady costs as little as time.Now.
func Steady() time.Duration {
	t := time.Now()
	mono := t.Sub(Started)
	apart := t.UnixNano() - int64(mono)
	if last := diff.Load(); apart-last > int64(time.Millisecond) || last-apart > int64(time.Millisecond) {
		if total := sleptSince(time.Duration(apart - last)); total > time.Duration(slept.Load()) {
			slept.Store(int64(total))
		}
		diff.Store(apart)
	}
	return mono + time.Duration(slept.Load())
}

// Up is how long this kernel has run, asleep or awake: on Linux the same clock for all its
// processes.
func Up() time.Duration { return upAtStart + Steady() }
