//go:build !linux

package clock

import "time"

// sleptSince takes every forward step of the wall clock against the monotonic
// clock for sleep: a step by hand may end a session early, never late.
func sleptSince(step time.Duration) time.Duration {
	if diff.Load() == 0 || step < 0 {
		return 0
	}
	return time.Duration(slept.Load()) + step
}

const upAtStart = time.Duration(0)
