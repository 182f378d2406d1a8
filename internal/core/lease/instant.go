package lease

import "time"

// An Instant is a time on the clock of one process, which also runs while the machine
// sleeps. Only differences mean anything; instants of two processes are never compared.
type Instant int64

// Never is before every other Instant.
const Never Instant = -1 << 63

// Add is the instant d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub is the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }
