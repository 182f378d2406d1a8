//go:build !linux

package sim_test

import (
	"syscall"
	"time"
)

func dieWithUs() *syscall.SysProcAttr { return nil }

var started = time.Now()

// computed is how long this process has had a processor, at most.
func computed() time.Duration { return time.Since(started) }
