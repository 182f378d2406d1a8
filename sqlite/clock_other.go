//go:build !linux

package sqlite

import "time"

// steadily reads a clock that does not step.
func steadily() time.Duration { return time.Since(started) }

var started = time.Now()
