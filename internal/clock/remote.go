// Package clock reads clocks that do not step, and watches those of databases and
// file servers that may.
package clock

import (
	"sync"
	"time"
)

// A Remote tells the ages of records by the clock of a database or file server, and watches for
// steps of that clock. A step forward would make every record look old, and live sessions look
// dead, so what was written before a step has no age.
type Remote struct {
	mu      sync.Mutex
	wall    int64         // the server's at the last look, µs since 1970
	steady  time.Duration // of a clock here that does not step, just before it
	took    time.Duration // the look
	stepped int64         // µs; what was written until then has no age
}

// Ages samples the server's clock, as it was between began (see Steady) and
// now, and returns a function that tells a record's age by its version.
func (c *Remote) Ages(wall int64, began time.Duration) func(version int64) time.Duration {
	took := Steady() - began
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wall != 0 && began > c.steady {
		went := time.Duration(wall-c.wall) * time.Microsecond
		should := began - c.steady
		// A disciplined clock is slewed by at most 0.05 %, and two clocks are
		// not read at the same moment.
		if off := went - should; off.Abs() > should/50+100*time.Millisecond+took+c.took {
			c.stepped = max(wall, c.wall)
		}
	}
	if c.wall == 0 || began > c.steady {
		c.wall, c.steady, c.took = wall, began, took
	}
	stepped := c.stepped
	return func(version int64) time.Duration { return ageOf(version, wall, stepped) }
}

// Age tells a record's age by its version and the server's clock. It samples nothing: it is for
// calls so long that the clock may have been read at any point in them.
func (c *Remote) Age(wall, version int64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ageOf(version, wall, c.stepped)
}

func ageOf(version, wall, stepped int64) time.Duration {
	age := time.Duration(wall-version) * time.Microsecond
	if version <= stepped || age < -time.Second { // the clock went back
		return -1
	}
	return max(age, 0)
}
