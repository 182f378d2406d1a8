package core

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// A Watch decides which notifications a client asks its store for, and when.
type Watch struct {
	Costs bool // watching has a cost, so it ends when nobody needs it

	running bool
	begun   bool          // the store has been asked
	all     bool          // for all notifications
	session string        // else for those to this session; "": only for those to everyone
	needed  lease.Instant // when it was last needed
	rest    time.Duration // how long to wait after it fails the next time
}

const (
	watchIdle  = 5 * time.Second // how long a watch with a cost goes on unneeded, for the next wait
	watchRest  = 100 * time.Millisecond
	longestOff = 10 * time.Second
)

// Need notes that notifications are needed: all, or those for a session. It says whether the
// notification loop has to be started, or the present watch ended, so that a new one begins.
func (w *Watch) Need(session string, all bool, now lease.Instant) (start, anew bool) {
	w.needed = now
	if w.running {
		return false, w.begun && !w.all && (all || session != "" && session != w.session)
	}
	w.running, w.begun, w.rest = true, false, watchRest
	return true, false
}

// Begin returns the sessions whose notifications the store is asked for; nil: all.
func (w *Watch) Begin(session string, all bool) (sessions []string) {
	w.begun, w.all, w.session = true, all, session
	switch {
	case all:
		return nil
	case session == "":
		return []string{}
	}
	return []string{session}
}

// Idle says whether the watch has a cost and nobody needs it. polling: the poll loop runs.
func (w *Watch) Idle(polling, all bool, now lease.Instant) bool {
	return w.Costs && !polling && !all && now.Sub(w.needed) > watchIdle
}

// IdleEvery is how often Idle is called during a watch that has a cost.
const IdleEvery = watchIdle

// Stop ends the notification loop.
func (w *Watch) Stop() { w.running = false }

// Ended notes that a watch has ended, and returns about how long to wait before the
// next. anew: it was ended here. lasted is how long it ran.
func (w *Watch) Ended(anew bool, lasted time.Duration) (about time.Duration) {
	switch {
	case anew:
		w.rest = watchRest
		return 0
	case lasted > time.Minute:
		w.rest = watchRest
	}
	about = w.rest
	w.rest = min(w.rest*2, longestOff)
	return about
}
