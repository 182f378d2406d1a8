//go:build unix

package guard

import (
	"os"
	"syscall"
	"time"
)

// reap notes what became of the command and clears away its orphans.
func (w *watch) reap() {
	for w.main != 0 && !w.childless {
		pid, status, err := wait(syscall.WUNTRACED)
		if err == syscall.ECHILD {
			w.childless = w.alone()
			w.goneAt = Now()
			return
		}
		if pid <= 0 {
			return
		}
		w.note(pid, status)
	}
}

func (w *watch) note(pid int, status syscall.WaitStatus) {
	switch {
	case pid != w.main:
	case status.Stopped():
		w.stopped(status.StopSignal())
		w.conn.send(Event{Stopped: true, PID: pid}, nil)
	default:
		w.status, w.ended, w.endedAt = status, true, Now()
	}
}

// step does what is due, and reports whether all is over.
func (w *watch) step(now Instant) bool {
	if w.main == 0 {
		return false
	}
	closing := now >= w.deadline.Add(-w.killAfter)
	switch {
	case w.childless:
	case w.askedAt != 0:
	case !w.ended && w.toStop:
		w.ask(now, Told)
	case !w.ended && closing:
		w.ask(now, Deadline)
	case w.ended && (closing || now >= w.endedAt.Add(settle)):
		w.left = w.request(now)
	}
	if !w.childless && (w.hunt == nil && now < w.due() || !w.pursue()) {
		return false
	}
	w.report()
	return true
}

// ask begins to end a command that did not end by itself.
func (w *watch) ask(now Instant, why Why) {
	w.why = why
	w.conn.send(Event{Stopping: true, Why: why, Within: max(0, w.limit(now).Sub(now))}, nil)
	w.request(now)
}

// request asks all processes to end, or as many as there is time for, and returns how
// many there were.
func (w *watch) request(now Instant) int {
	w.askedAt = now
	n := w.askAll(func() bool {
		t := Now()
		w.askTook = t.Sub(now)
		return t >= w.end()
	})
	w.killAt = w.limit(now)
	return n
}

// limit is when processes that are asked to end now are killed.
func (w *watch) limit(now Instant) Instant { return min(now.Add(w.killAfter), w.end()) }

// end is when everything is killed at the latest: early enough to find and kill all
// of it before the lease ends, which takes about twice as long as asking it to end.
func (w *watch) end() Instant { return w.deadline.Add(-reserve(w.killAfter) - 2*w.askTook) }

// due is when everything is killed as things stand.
func (w *watch) due() Instant {
	if w.askedAt != 0 {
		return min(w.killAt, w.end())
	}
	return w.end()
}

// pause is how long nothing needs to be done.
func (w *watch) pause(now Instant) time.Duration {
	if w.main == 0 {
		if w.toStart {
			return 0
		}
		return time.Hour
	}
	next := w.due()
	switch {
	case w.hunt != nil:
		return w.hunt.pause
	case w.askedAt == 0:
		next = min(next, w.deadline.Add(-w.killAfter))
		if w.ended {
			next = min(next, w.endedAt.Add(settle))
		}
	}
	return max(0, min(pollInterval, next.Sub(now)))
}

// pursue kills everything that is there, and reports whether nothing is left.
func (w *watch) pursue() bool {
	if w.hunt == nil {
		w.conn.send(Event{Killing: true}, nil)
		w.hunt = newHunt(w.main, nil, w.box, w.note)
		if w.group && !w.ended && syscall.Kill(-w.main, syscall.SIGKILL) == nil { // most of it in one call
			w.hunt.last = Now()
		}
	}
	if w.hunt.pass() {
		w.childless, w.goneAt = true, Now()
		return true
	}
	if alive, news := w.hunt.survivors(); news {
		w.conn.send(Event{Alive: alive}, nil)
	}
	return false
}

func (w *watch) report() {
	e := Event{Ended: true, Why: w.why, PID: w.main, Status: w.status, Left: w.left}
	if w.askedAt != 0 {
		e.After = Now().Sub(w.askedAt)
	}
	e.Late, e.Stood = w.hunt.late(w.goneAt, w.deadline, reserve(w.killAfter))
	e.Killed = w.hunt.struck()
	w.back()
	w.conn.send(e, nil)
	if w.why == Deadline {
		w.wake()
	}
}

// wake resumes the program if it is stopped although its lease is over: it may have
// been stopped in the middle of a write, which keeps others from their locks.
func (w *watch) wake() {
	if os.Getppid() != w.program { // it is gone
		return
	}
	if p, ok := look(w.program); ok && p.state == 'T' {
		p.signal(syscall.SIGCONT)
	}
}
