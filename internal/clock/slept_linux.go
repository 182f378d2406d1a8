package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

var sleptBefore = bootMinusMono()

// sleptSince returns how long the machine has slept since this process began,
// in whole milliseconds, and never too much.
func sleptSince(time.Duration) time.Duration {
	total := bootMinusMono() - sleptBefore
	if total < 5*time.Millisecond {
		return 0
	}
	return total.Truncate(time.Millisecond)
}

// bootMinusMono reads two clocks one after the other, and again if something
// came in between.
func bootMinusMono() time.Duration {
	var before, boot, after unix.Timespec
	for range 100 {
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &before)
		unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)
		if after.Nano()-before.Nano() < int64(time.Millisecond) {
			break
		}
	}
	return time.Duration(boot.Nano() - after.Nano())
}

var upAtStart = func() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano()) - time.Since(Started)
}()
