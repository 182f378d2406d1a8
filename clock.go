package holdfast

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Margin is the part of a TTL by which a holder stops trusting its lease
// before others may declare it dead. It pays for clock rates that differ by up to 5 %.
func Margin(ttl time.Duration) time.Duration { return record.Margin(ttl) }

// clocks reads the clocks of the client's machine; only the real one has those of a kernel.
func (c *Client) clocks() record.Clocks {
	t := clocks()
	if c.machine != nil {
		t.Boot, t.Up = "", 0
	}
	return t
}

// clocks reads the clocks of this host.
func clocks() record.Clocks {
	return record.Clocks{Wall: time.Now().UnixMicro(), Boot: clock.Boot(), Up: clock.Up()}
}

// now is the time on the clock of the client's machine.
func (c *Client) now() lease.Instant { return lease.Instant(c.machine.Now()) }
