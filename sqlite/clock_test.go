package sqlite

import (
	"testing"
	"time"
)

// What was written before the wall clock stepped has no age: a step forward
// must not make the living look dead.
func TestAge(t *testing.T) {
	const minute = int64(time.Minute / time.Microsecond)
	for _, test := range []struct {
		name       string
		wall       int64         // how far the wall clock is ahead of where it was left
		steady     time.Duration // the same of the steady clock
		old, young bool          // whether a record from before the two looks, and one from after, has an age
	}{
		{"no time", 0, 0, true, true},
		{"an hour", 60 * minute, time.Hour, true, true},
		{"an hour, slowed", 60*minute - 10_000_000, time.Hour, true, true},
		{"a step forward", minute, time.Second, false, true},
		{"a step back", -minute, time.Second, false, true},
	} {
		c := &clock{}
		c.ages()
		written := c.now()
		c.wall -= test.wall
		c.steady -= test.steady
		written -= max(test.wall, 0)
		age := c.ages()
		if got := age(written) >= 0; got != test.old {
			t.Errorf("%s: a record from before it is %v old, want an age: %v", test.name, age(written), test.old)
		}
		// A step back leaves the records of the future without an age.
		after := max(c.now(), c.stepped) + 1
		if got := age(after) >= 0; got != test.young {
			t.Errorf("%s: a record from after it is %v old, want an age: %v", test.name, age(after), test.young)
		}
	}
}
