//go:build !linux || portableguard

package guard

import (
	"os"
	"os/signal"
	"syscall"
)

// Joins is false here: the command never shares this process's group.
const Joins = false

// Keys tells nothing here.
type Keys struct{}

// Listen returns nil here.
func Listen() *Keys { return nil }

// Typed is true here.
func (*Keys) Typed(syscall.Signal) bool { return true }

// Ignored is signal.Ignored.
func Ignored(sig os.Signal) bool { return signal.Ignored(sig) }

// Hides is false here.
func Hides() bool { return false }

// Boxed is "" here.
func Boxed() string { return "" }
