//go:build !unix

package guard

import (
	"os"
	"syscall"
	"time"
)

// Now is this instant, by a clock that guards nothing.
func Now() Instant { return Instant(time.Now().UnixNano()) }

// Terminal is false here: nothing can be run.
func Terminal() bool { return false }

// Limits is "" here.
func Limits() string { return "" }

// Usable returns ErrUnsupported.
func Usable() error { return ErrUnsupported }

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
