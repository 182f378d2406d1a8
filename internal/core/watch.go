package core

import (
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// A Watch decides which notifications a client asks its store for, and when.
type Watch struct {
	Costs bool // to be notified costs something: it ends when nobody needs it

	running bool
	begun   bool          // the store has been asked
	all     bool          // for the notifications for everybody
	session string        // else for those for this session; "": for none but those for everyone
	needed  lease.Instant // when it was last needed
	rest    time.Duration // after the next time that it fails
}

const (
	watchIdle  = 5 * time.Second // how long a watch that costs goes on unneeded, so that it need not begin anew with each wait
	watchRest  = 100 * time.Millisecond
	longestOff = 10 * time.Second
)

// Need notes that notifications are needed: all, or those for a session. It says whether the
// notification loop has to be started, or the present watch ended, so that it begins anew.
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

// Idle says whether nobody needs a watch that costs. polling: the poll loop runs.
func (w *Watch) Idle(polling, all bool, now lease.Instant) bool {
	return w.Costs && !polling && !all && now.Sub(w.needed) > watchIdle
}

// IdleEvery is how often Idle is asked during a watch that costs.
const IdleEvery = watchIdle

// Stop ends the notification loop.
func (w *Watch) Stop() { w.running = false }

// Ended notes that a watch has ended after so long, and returns about how long to wait
// before the next. anew: it was ended here.
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
