//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// dieOf ends this process by a signal.
func dieOf(sig syscall.Signal) {
	signal.Reset(sig)
	syscall.Kill(os.Getpid(), sig)
	time.Sleep(time.Second)
}
