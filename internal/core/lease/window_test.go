package lease

import (
	"testing"
	"time"
)

// A window counts from before sending, never moves back but by a smaller TTL, and once it has
// ended it stays so. Each step is at a second; TTL 8 s has a margin of 1 s.
func TestWindow(t *testing.T) {
	at := func(s int) Instant { return Instant(s) * Instant(time.Second) }
	const ttl = 8 * time.Second
	for _, test := range []struct {
		name string
		do   func(w *Window)
		open int // the last second in which it is open; -1: never
	}{
		{"never opened", func(*Window) {}, -1},
		{"opened", func(w *Window) { w.Extend(at(1), ttl, at(3)) }, 7},
		{"extended", func(w *Window) { w.Extend(at(1), ttl, at(1)); w.Extend(at(4), ttl, at(5)) }, 10},
		{"an older answer comes last", func(w *Window) { w.Extend(at(4), ttl, at(5)); w.Extend(at(1), ttl, at(6)) }, 10},
		{"an answer after the end", func(w *Window) { w.Extend(at(1), ttl, at(1)); w.Extend(at(7), ttl, at(8)) }, 7},
		{"a smaller TTL", func(w *Window) { w.Extend(at(1), ttl, at(1)); w.Shrink(4*time.Second, at(2)) }, 4},
		{"a TTL that is not smaller", func(w *Window) { w.Extend(at(1), ttl, at(1)); w.Shrink(ttl, at(2)) }, 7},
		{"a smaller TTL of one that was never open", func(w *Window) { w.Shrink(4*time.Second, at(2)) }, -1},
		{"closed", func(w *Window) { w.Extend(at(1), ttl, at(1)); w.Close(); w.Extend(at(2), ttl, at(2)) }, -1},
	} {
		var w Window
		test.do(&w)
		last := -1
		for s := range 20 {
			if w.Open(at(s)) {
				last = s
			}
		}
		if last != test.open {
			t.Errorf("%s: open up to second %d, want %d", test.name, last, test.open)
		}
	}
}
