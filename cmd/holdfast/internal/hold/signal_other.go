//go:build !unix

package hold

import (
	"os"
	"os/signal"
	"syscall"
)

func catch(bool) chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, os.Interrupt)
	return c
}

func ends(os.Signal) bool   { return true }
func isKey(os.Signal) bool  { return true }
func isStop(os.Signal) bool { return false }
func standStill()           {}

func signalName(sig syscall.Signal) string { return sig.String() }
