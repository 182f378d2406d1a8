package record

import "time"

// DefaultTTL is how long a session may be silent unless something else is set; MinTTL and
// MaxTTL are the least and the most that are accepted.
const (
	DefaultTTL = 15 * time.Second
	MinTTL     = time.Second
	MaxTTL     = 366 * 24 * time.Hour
)

// Margin is the part of a TTL by which a holder stops trusting its lease before others may
// declare it dead. It covers clock rates that differ by up to 5 %.
func Margin(ttl time.Duration) time.Duration {
	return max(ttl/10, min(time.Second, ttl/4))
}

// Clocks are the clocks of a host at one moment, except that of the process.
type Clocks struct {
	Wall int64         // microseconds since 1970
	Boot string        // names this run of the kernel; "": not known
	Up   time.Duration // how long the kernel has run, asleep or awake
}

// Since is how long ago a wall clock showed wall, in microseconds since 1970; at most the
// longest Duration.
func (c Clocks) Since(wall int64) time.Duration {
	return time.UnixMicro(c.Wall).Sub(time.UnixMicro(wall))
}

// A Version numbers the writes of a key.
type Version int64

// IfEmpty as the Old of a write: it may follow any version, if the key holds nothing.
const IfEmpty Version = -1

// A Token is a fencing token.
type Token int64

// Short writes a duration as people say it: 3m12s, 5s, 200ms.
func Short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
