//go:build !portableguard

package guard

import "golang.org/x/sys/unix"

// Now is this instant.
func Now() Instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("clock_gettime: " + err.Error())
	}
	return Instant(t.Nano())
}
