package clock

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
		{"a step back", -minute, time.Second, false, false},
	} {
		c := &Remote{}
		now := func() int64 { return time.Now().UnixMicro() }
		look := func() func(int64) time.Duration { return c.Ages(now(), Steady()) }
		look()
		written := now()
		c.wall -= test.wall
		c.steady -= test.steady
		written -= max(test.wall, 0)
		age := look()
		if got := age(written) >= 0; got != test.old {
			t.Errorf("%s: a record from before it is %v old, want an age: %v", test.name, age(written), test.old)
		}
		after := now() + 1
		if got := age(after) >= 0; got != test.young {
			t.Errorf("%s: a record from after it is %v old, want an age: %v", test.name, age(after), test.young)
		}
	}
}

// A look that took long does not pass for a step, and one that was overtaken
// does not either.
func TestSlowLook(t *testing.T) {
	c := &Remote{}
	began := Steady()
	wall := time.Now().UnixMicro()
	c.Ages(wall, began)
	c.took = 3 * time.Second // the clock was read at its end
	c.wall += 3_000_000
	if age := c.Ages(time.Now().UnixMicro(), Steady()); age(wall) < 0 {
		t.Error("a look that took three seconds passes for a step")
	}
	if age := c.Ages(wall-1000, began-time.Millisecond); age(wall-2000) != time.Millisecond {
		t.Errorf("by an older look a record is %v old, want 1ms", age(wall-2000))
	}
}

// What was written at a time that the clock has not reached has no age.
func TestAgeOfTheFuture(t *testing.T) {
	var c Remote
	now := time.Now().UnixMicro()
	age := c.Ages(now, Steady())
	if got := age(now + time.Hour.Microseconds()); got >= 0 {
		t.Errorf("an hour ahead of the clock: an age of %v, want none", got)
	}
	if got := age(now + time.Millisecond.Microseconds()); got != 0 {
		t.Errorf("a millisecond ahead of the clock: an age of %v, want 0", got)
	}
}
