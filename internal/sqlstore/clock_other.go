//go:build !linux

package sqlstore

import "time"

// steadily reads a clock that does not step.
func steadily() time.Duration { return time.Since(started) }

var started = time.Now()
