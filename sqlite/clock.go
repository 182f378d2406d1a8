package sqlite

import (
	"sync"
	"time"
)

// A clock is the wall clock, which all processes on this host share, and an
// eye on its steps. A step forward would make every record look old, and the
// sessions of the living dead; so what was written before a step has no age.
type clock struct {
	mu      sync.Mutex
	wall    int64         // µs since 1970 at the last look
	steady  time.Duration // of a clock that does not step, at the last look
	stepped int64         // µs; what was written until then has no age
}

// now is the wall clock in µs since 1970.
func (c *clock) now() int64 { return time.Now().UnixMicro() }

// ages returns a function that tells a record's age, by its version.
func (c *clock) ages() func(version int64) time.Duration {
	wall, steady := c.now(), steadily()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wall != 0 {
		went := time.Duration(wall-c.wall) * time.Microsecond
		should := steady - c.steady
		// Discipline of a clock is at most 0.05 %; reading two clocks is not
		// one moment.
		if off := went - should; off.Abs() > should/50+100*time.Millisecond {
			c.stepped = max(wall, c.wall)
		}
	}
	c.wall, c.steady = wall, steady
	stepped := c.stepped
	return func(version int64) time.Duration {
		if version <= stepped {
			return -1
		}
		return max(0, time.Duration(wall-version)*time.Microsecond)
	}
}
