package base

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Clocks reads the clocks of the client's machine; only the real one has those of a kernel.
func (c *Base) Clocks() record.Clocks {
	t := Clocks()
	if c.Machine != nil {
		t.Boot, t.Up = "", 0
	}
	return t
}

// Clocks reads the clocks of this host.
func Clocks() record.Clocks {
	return record.Clocks{Wall: time.Now().UnixMicro(), Boot: clock.Boot(), Up: clock.Up()}
}

// Now is the time on the clock of the client's machine.
func (c *Base) Now() lease.Instant { return lease.Instant(c.Machine.Now()) }
