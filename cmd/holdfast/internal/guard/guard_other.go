//go:build !linux

package guard

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Main is nothing here.
func Main() {}

// Terminal is false here: nothing can be run.
func Terminal() bool { return false }

// Keys tells nothing here.
type Keys struct{}

// Listen returns nil here.
func Listen() *Keys { return nil }

// Typed is true here.
func (*Keys) Typed(syscall.Signal) bool { return true }

// Foreground is false here.
func Foreground() bool { return false }

// Ignored is signal.Ignored.
func Ignored(sig os.Signal) bool { return signal.Ignored(sig) }

// Now is this instant, by a clock that nothing is guarded by.
func Now() Instant { return Instant(time.Now().UnixNano()) }

// Usable returns ErrUnsupported.
func Usable() error { return ErrUnsupported }

// Hides is false here.
func Hides() bool { return false }

// Boxed is "" here.
func Boxed() string { return "" }

// A Guard cannot be had here.
type Guard struct{}

// Start returns ErrUnsupported.
func Start(path string, args []string, env []string) (*Guard, error) { return nil, ErrUnsupported }

func (g *Guard) Run(env []string, proof *os.File, until Instant, killAfter time.Duration) error {
	return ErrUnsupported
}
func (g *Guard) Extend(until Instant, killAfter time.Duration) {}
func (g *Guard) Signal(sig syscall.Signal)                     {}
func (g *Guard) Stop(until Instant)                            {}
func (g *Guard) Close()                                        {}
func (g *Guard) Standing() bool                                { return false }
func (g *Guard) Events() <-chan Event                          { return nil }
