package lease

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Window is the time in which a session may believe in its locks: from before its last
// confirmed heartbeat was sent, for the TTL less the margin. The zero value has never been
// open. Counting from before sending is River's idea.
type Window struct {
	opened bool
	until  Instant
}

// Until is the end of the window; Never before it has been opened, and after Close.
func (w *Window) Until() Instant {
	if !w.opened {
		return Never
	}
	return w.until
}

// Open says whether the window is open.
func (w *Window) Open(now Instant) bool { return now < w.Until() }

// Extend moves the end of the window, or opens it. The end never moves backwards, and a
// window that has ended stays closed.
func (w *Window) Extend(sent Instant, ttl time.Duration, now Instant) {
	until := sent.Add(ttl - record.Margin(ttl))
	w.ExtendTo(until, now)
}

// ExtendTo is Extend where the end was worked out by other rules.
func (w *Window) ExtendTo(until, now Instant) {
	switch {
	case !w.opened:
		w.opened, w.until = true, until
	case w.Open(now):
		w.until = max(w.until, until)
	}
}

// Shrink ends the window at the latest when a smaller TTL, less its margin, has passed from
// now, and reports whether that is earlier than before.
func (w *Window) Shrink(ttl time.Duration, now Instant) bool {
	until := now.Add(ttl - record.Margin(ttl))
	if !w.opened || until >= w.until {
		return false
	}
	w.until = until
	return true
}

// Left is how much of the window is left at now; it is not positive when the window is not open.
func (w *Window) Left(now Instant) time.Duration {
	if w.Until() == Never {
		return 0
	}
	return w.until.Sub(now)
}

// Close ends the window, for ever.
func (w *Window) Close() { w.opened, w.until = true, Never }
