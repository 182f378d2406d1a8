//go:build !linux || (!amd64 && !arm64)

package origin

import "syscall"

// Watch returns false: it cannot be told here.
func Watch(sig syscall.Signal) bool { return false }

// Sent is false here.
func Sent(sig syscall.Signal) bool { return false }
