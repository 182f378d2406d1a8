package holdfast

import (
	"testing"
	"time"
)

// The time of a detached hold is over when the store's clock says that its TTL is, and
// neither the wall clocks nor the kernel that it was taken under contradict.
func TestEndedAlone(t *testing.T) {
	const ttl = 100 * time.Second
	holds := ttl - Margin(ttl)
	for _, test := range []struct {
		name         string
		age, wall    time.Duration // since it was taken, by the store's clock and the wall clocks
		boot         string
		up           time.Duration // since, by the kernel's
		within       time.Duration
		detached, is bool
	}{
		{"over", ttl, ttl, "", 0, 0, true, true},
		{"the wall clocks differ by the margin", ttl, holds, "", 0, 0, true, true},
		{"the store's clock says no", ttl - time.Millisecond, 10 * ttl, "", 0, 0, true, false},
		{"the wall clocks say no", 10 * ttl, holds - time.Second, "", 0, 0, true, false},
		{"the store has no clock", -1, 10 * ttl, "", 0, 0, true, false},
		{"this kernel says no", 10 * ttl, 10 * ttl, bootID(), holds - time.Second, 0, true, false},
		{"this kernel agrees", ttl, ttl, bootID(), holds + time.Second, 0, true, true},
		{"another kernel is not asked", ttl, ttl, "another", 0, 0, true, true},
		{"nearly", ttl - 5*time.Second, ttl, "", 0, 10 * time.Second, true, true},
		{"a session that beats", ttl, ttl, "", 0, 0, false, false},
	} {
		r := sessionRecord{Detached: test.detached, TTL: ttl.Milliseconds(), At: time.Now().Add(-test.wall).UnixMicro(),
			Boot: test.boot, Up: (up() - test.up).Microseconds()}
		if got := r.endedAlone(test.age, test.within); got != test.is {
			t.Errorf("%s: %v, want %v", test.name, got, test.is)
		}
	}
}
