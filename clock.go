package holdfast

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
)

// An instant is a time on this process's own clock, which also runs while the
// machine sleeps. Only differences mean anything; instants of two processes
// are never compared.
type instant int64

func (t instant) add(d time.Duration) instant { return t + instant(d) }

func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }

const never instant = -1 << 63

var (
	started   = time.Now()
	clockDiff atomic.Int64 // wall minus monotonic clock when slept was last asked
	slept     atomic.Int64 // how long the machine has slept since this process began
)

// now reads the clock: Go's monotonic clock, which stands still while the
// machine sleeps, plus the time that it slept. The kernel is asked for the
// latter only when wall and monotonic clock have moved apart, as they do over
// every sleep; it costs as little as time.Now.
func now() instant {
	t := time.Now()
	mono := t.Sub(started)
	diff := t.UnixNano() - int64(mono)
	if last := clockDiff.Load(); diff-last > int64(time.Millisecond) || last-diff > int64(time.Millisecond) {
		if total := sleptSince(time.Duration(diff - last)); total > time.Duration(slept.Load()) {
			slept.Store(int64(total))
		}
		clockDiff.Store(diff)
	}
	return instant(mono) + instant(slept.Load())
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
func Margin(ttl time.Duration) time.Duration {
	return max(ttl/10, min(time.Second, ttl/4))
}

// about is now, but may not have noticed yet that the machine has slept. It
// costs half as much.
func about() instant { return instant(time.Since(started)) + instant(slept.Load()) }

// now is the time on the clock of the client's machine.
func (c *Client) now() instant {
	if c.machine == nil {
		return now()
	}
	return instant(c.machine.Now())
}

func (c *Client) about() instant {
	if c.machine == nil {
		return about()
	}
	return instant(c.machine.Now())
}
