package holdfast

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/core"
)

var (
	started   = time.Now()
	clockDiff atomic.Int64 // wall minus monotonic clock when slept was last asked
	slept     atomic.Int64 // how long the machine has slept since this process began
)

// now reads the clock: Go's monotonic clock, which stands still while the
// machine sleeps, plus the time that it slept. The kernel is asked for the
// latter only when wall and monotonic clock have moved apart, as they do over
// every sleep; it costs as little as time.Now.
func now() core.Instant {
	t := time.Now()
	mono := t.Sub(started)
	diff := t.UnixNano() - int64(mono)
	if last := clockDiff.Load(); diff-last > int64(time.Millisecond) || last-diff > int64(time.Millisecond) {
		if total := sleptSince(time.Duration(diff - last)); total > time.Duration(slept.Load()) {
			slept.Store(int64(total))
		}
		clockDiff.Store(diff)
	}
	return core.Instant(mono) + core.Instant(slept.Load())
}

// bootID names this run of this kernel, and the clock that this process is shown of it
// (its time namespace); "": they cannot be known.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	clock, _ := os.Readlink("/proc/self/ns/time")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id)) + " " + clock
})

// here says whether a record was written under this run of this kernel.
func here(boot string) bool { return boot != "" && boot == bootID() }

// up is how long this kernel has run, asleep or awake: the same clock for all its
// processes.
func up() time.Duration { return upAtStart + time.Duration(now()) }

var upAtStart = clock.Steady() - time.Since(started)

// Margin is the part of a TTL by which a holder stops trusting its lease
// before others may bury it. It pays for clock rates that differ by up to 5 %.
func Margin(ttl time.Duration) time.Duration { return core.Margin(ttl) }

// clocks reads the clocks of the client's machine; one that is bent has no kernel.
func (c *Client) clocks() core.Clocks {
	t := clocks()
	if c.machine != nil {
		t.Boot, t.Up = "", 0
	}
	return t
}

// clocks reads the clocks of this host.
func clocks() core.Clocks { return core.Clocks{Wall: time.Now().UnixMicro(), Boot: bootID(), Up: up()} }

// about is now, but may not have noticed yet that the machine has slept. It
// costs half as much.
func about() core.Instant { return core.Instant(time.Since(started)) + core.Instant(slept.Load()) }

// now is the time on the clock of the client's machine.
func (c *Client) now() core.Instant {
	if c.machine == nil {
		return now()
	}
	return core.Instant(c.machine.Now())
}

func (c *Client) about() core.Instant {
	if c.machine == nil {
		return about()
	}
	return core.Instant(c.machine.Now())
}
