package lease

import (
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Detector is a failure detector: it declares a session dead when any one of these holds:
//
//   - watch: the same beat has stood for a whole TTL on the detector's own clock, from after a
//     first look had returned to before a last one was sent. For a detached hold the first
//     look may be another process's on this host;
//   - proof: this host's kernel knows that all processes with its file are gone;
//   - age: the store's clock says that the beat is older than the TTL, and a mark that asks
//     for a beat has stood unanswered for half a TTL, in which a heartbeat comes even without
//     the mark. This rule relies on the store's clock not having leapt by more than the
//     margin.
//
// To declare a session dead is to swap the very record that was observed for a tombstone, so
// either the next beat or that write wins. Death is permanent, and may be remembered for ever;
// life may not.
//
// The zero value is ready. It has no session that is dead; the caller forgets those that
// nobody asks about any more.
type Detector struct{ watched map[string]*watched }

type watched struct {
	beat    record.Session
	since   Instant // when this beat was first seen
	born    Instant // when it was written, as far as the store's clock tells; Never
	looked  Instant // when it was last looked at
	marked  Instant // when its mark was first seen; Never
	ttl     time.Duration
	absent  bool
	version record.Version // the newest seen of its record: a stale read of an older one is no news
}

// A Sighting is one look at a session's record.
type Sighting struct {
	Record  record.Session
	Absent  bool // the key holds nothing
	Version record.Version
	Age     time.Duration // of the record by the store's clock; negative: not known
	Asked   Instant       // before the call was sent
	Got     Instant       // after it had been answered
	Stale   bool          // it may be out of date: a verdict needs a fresh read
}

// An Observer is the client that looks.
type Observer struct {
	By      string        // its name, for people
	Patient bool          // it goes on waiting, so it can see a mark stand
	TTL     time.Duration // after which a session without a record is declared dead
	Clocks  record.Clocks
	// Ago is how long ago another process of this host first saw this beat of a detached
	// hold. It counts only where Detector.Watches says that the beat is new.
	Ago time.Duration
	Now Instant // read after Ago was asked for
}

// A Verdict is what follows from a sighting.
type Verdict int8

const (
	Alive       Verdict = iota
	Dead                // a tombstone stands
	Suspect             // ask it for a heartbeat
	Adopt               // a claim but no record: give it an observable one, if the claim still stands
	DeclareDead         // declare it dead
)

// An Observation is a verdict, and the write that carries it out.
type Observation struct {
	Verdict Verdict
	Session string
	Record  record.Session // that was observed
	Why     string         // DeclareDead

	Old  record.Version // Suspect, Adopt, DeclareDead: the version that the write follows
	Next record.Session // what to write; for Adopt the caller sets the TTL
}

// Known is a session's record if it was last seen at this version.
func (d *Detector) Known(session string, v record.Version) (record.Session, bool) {
	if w := d.watched[session]; w != nil && w.version == v {
		return w.beat, true
	}
	return record.Session{}, false
}

// Watches says whether this beat of a session has been seen before.
func (d *Detector) Watches(session string, rec record.Session) bool {
	w := d.watched[session]
	return w != nil && !w.absent && w.beat.SameBeat(rec)
}

// Forget drops what is known of the sessions that need not be kept; if keep is nil, of all.
func (d *Detector) Forget(keep func(session string) bool) {
	for s := range d.watched {
		if keep == nil || !keep(s) {
			delete(d.watched, s)
		}
	}
}

// ForgetOld drops what is known of sessions that need not be kept and were not looked at for their
// TTL. A caller that soon waits for them again, as the requests of a hold do one after the other,
// goes on with what was seen.
func (d *Detector) ForgetOld(keep func(session string) bool, now Instant) {
	for s, w := range d.watched {
		if now.Sub(w.looked) > w.ttl && (keep == nil || !keep(s)) {
			delete(d.watched, s)
		}
	}
}

// Next is when to look at one of the sessions, because its beat will be late or have stood
// for a TTL, or its mark for half a TTL; Never: no such time is known.
func (d *Detector) Next(sessions []string) Instant {
	at := Never
	for _, s := range sessions {
		w := d.watched[s]
		if w == nil {
			continue
		}
		var room [6]Instant
		moments := append(room[:0], w.since.Add(w.ttl/2), w.since.Add(w.ttl))
		if w.born != Never {
			moments = append(moments, w.born.Add(w.ttl/2), w.born.Add(w.ttl))
		}
		if w.absent {
			moments = append(moments, w.since.Add(FirstPoll))
		}
		if w.marked != Never {
			moments = append(moments, w.marked.Add(w.ttl/2))
		}
		for _, due := range moments {
			if due > w.looked && (at == Never || due < at) {
				at = due
			}
		}
	}
	return at
}

// FirstPoll is how long a session that has a claim may be without a record.
const FirstPoll = 50 * time.Millisecond

// Observe judges one sighting of a session.
func (d *Detector) Observe(session string, s Sighting, o Observer) Observation {
	if s.Record.Dead != 0 {
		return Observation{Verdict: Dead, Session: session, Record: s.Record}
	}
	w := d.watched[session]
	old := s.Stale && w != nil && s.Version < w.version
	if old { // no news: what is known may stand still
		s.Record, s.Absent, s.Age, s.Version = w.beat, w.absent, -1, w.version
	}
	j := Observation{Session: session, Record: s.Record, Old: s.Version}
	if s.Version == 0 || s.Absent {
		j.Old = record.IfEmpty
	}
	w = d.watch(session, s, o)
	stood := s.Asked.Sub(w.since)
	if s.Absent {
		// A first claim may outrun its session's record, or a crash may have lost the record.
		if stood >= FirstPoll/2 {
			j.Verdict, j.Old, j.Next = Adopt, record.IfEmpty, record.Session{Suspected: &record.Suspicion{By: o.By}}
		}
		return j
	}
	if stood >= w.ttl {
		return j.DeclareDead(fmt.Sprintf("silent for %s", record.Short(stood)), o)
	}
	age := s.Record.Age(s.Age)
	if !old {
		w.born = Never
	}
	if age >= 0 {
		w.born = s.Asked.Add(-age + time.Millisecond) // a look then is not too early
	}
	return j.byAge(s, w, age, stood, o)
}

// watch notes a sighting.
func (d *Detector) watch(session string, s Sighting, o Observer) *watched {
	ttl := s.Record.Duration()
	if s.Absent || ttl <= 0 {
		ttl = o.TTL
	}
	w := d.watched[session]
	if w == nil || w.absent != s.Absent || !w.beat.SameBeat(s.Record) {
		w = &watched{since: s.Got, born: Never, marked: Never, absent: s.Absent}
		if s.Record.Detached {
			w.since = min(w.since, o.Now.Add(-o.Ago))
		}
		if d.watched == nil {
			d.watched = make(map[string]*watched)
		}
		d.watched[session] = w
	}
	w.beat, w.ttl, w.looked, w.version = s.Record, ttl, s.Asked, s.Version // a mark may have come
	if s.Record.Suspected != nil && w.marked == Never {
		w.marked = s.Got
	}
	return w
}

// byAge judges a beat by the store's clock. It suspects a session whose beat is late by that clock
// or by the detector's own; stood is how long the beat has stood on the latter.
func (j Observation) byAge(s Sighting, w *watched, age, stood time.Duration, o Observer) Observation {
	rec := s.Record
	switch {
	case rec.EndedAlone(age, 0, o.Clocks):
		return j.DeclareDead("its time is over", o)
	case age >= w.ttl && rec.Suspected != nil && !rec.Detached && s.Age >= w.ttl/2 && (!o.Patient || s.Asked.Sub(w.marked) >= w.ttl/2):
		// A patient observer has seen the mark stand on its own clock as well. One that
		// asks only once cannot, and relies on the store's clock not having leapt by a
		// TTL since the mark.
		return j.DeclareDead(fmt.Sprintf("silent for %s by the store's clock, asked %s ago", record.Short(age), record.Short(s.Age)), o)
	case rec.Suspected == nil && !rec.Detached && (stood >= w.ttl/2 || age >= w.ttl/2):
		j.Verdict, j.Next = Suspect, rec
		j.Next.Suspected = &record.Suspicion{By: o.By, Age: max(s.Age, 0).Microseconds()}
	}
	return j
}

// DeclareDead turns the observation into one that declares the session dead, for the reason why.
func (j Observation) DeclareDead(why string, o Observer) Observation {
	rec := j.Record
	j.Verdict, j.Why = DeclareDead, why
	j.Next = record.Session{Owner: rec.Owner, TTL: rec.TTL, Grace: rec.Grace, Beat: rec.Beat, Nonce: rec.Nonce,
		Revoked: rec.Revoked, Names: rec.Names, Client: rec.Client, Dead: o.Clocks.Wall, By: o.By, Why: why}
	if rec.Detached { // for its history
		j.Next.Detached, j.Next.At = true, rec.At
	}
	return j
}

// Answered says whether the session is now known to be dead, and by which tombstone, after the
// write that declares a death was answered. rec is the record that stands if the write lost.
func (j Observation) Answered(won bool, rec record.Session) (tomb record.Session, dead bool) {
	if won {
		return j.Next, true
	}
	return rec, rec.Dead != 0
}
