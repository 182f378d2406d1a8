package lease

import (
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Session is a client's life in the store: one record, kept alive by one heartbeat for all
// its locks. It is trusted while its window is open; all its locks are lost at the end of the
// window, without waiting for I/O. Nobody may declare it dead before the TTL has passed. Loss
// is final: the client goes on with a new session. One session for all locks of a process is
// etcd's idea.
//
// The caller serialises the calls. One attempt is under way at a time; an unanswered
// attempt is remembered until a later one is accepted.
type Session struct {
	ID string

	opening bool
	opened  bool
	ending  bool   // no more beats
	over    bool   // lost or ended
	why     string // of the loss
	ttl     time.Duration
	usual   time.Duration // the TTL of a heartbeat that is not detached
	detach  time.Duration // the last beat leaves a hold without a process for that long
	least   time.Duration // how long its names stay shut, whatever becomes of the process
	shut    Instant       // until when they stay shut
	leaves  bool          // the next beat is the last, and leaves the names shut

	window   Window
	last     record.Session // as last known to stand in the store
	version  record.Version // of last; 0: not known to be written
	attempts []Attempt      // beats sent since
	lastSent Instant        // of the latest attempt
	failing  error          // why the latest attempt was not answered
	asking   bool           // an attempt is under way
	bound    time.Duration  // how long it may take
	stood    bool           // the first unanswered attempt ended long after bound: we did not run
}

// An Attempt is one beat that was sent. Its nonce tells it from every other.
type Attempt struct {
	Record record.Session
	Old    record.Version // the version that it follows
	Sent   Instant
	keeps  bool // it was sent after Keep
}

// A BeatOf says what an attempt carries.
type BeatOf struct {
	TTL    time.Duration
	Owner  *record.Owner
	Grace  time.Duration
	Nonce  string // never used before
	Labels record.ClaimLabels
	Clocks record.Clocks
}

// An Outcome says what became of an attempt.
type Outcome struct {
	Won     bool
	Version record.Version
	Record  record.Session // what it lost to
	Absent  bool           // it lost to a key that holds nothing
	Bad     error          // what it lost to cannot be read
	Err     error          // there was no answer: it may have been applied, now or later
}

// Effects are what follows from an event of a session.
type Effects struct {
	Opened  bool
	Moved   bool // the window
	Alone   bool // it is a hold without a process now, or does what Keep or Leave has asked for
	Again   bool // another beat is wanted at once
	Asked   string
	Revoked []record.Revocation
	Lost    bool // now, and for ever
	Why     string
	Err     error
}

// TTL is how long the session may be silent; 0 before Begin.
func (s *Session) TTL() time.Duration { return s.ttl }

// Usual is the TTL of its heartbeats where they are not detached. The time between
// heartbeats depends on it.
func (s *Session) Usual() time.Duration { return s.usual }

// beatsInTTL is how many heartbeats are sent in a TTL.
const beatsInTTL = 3

// Pace is how long the session waits after one heartbeat before it sends the next.
func (s *Session) Pace() time.Duration { return min(s.ttl, s.usual) / beatsInTTL }

// Follows says whether the store's setting of the TTL is read before the next attempt: that is done
// once in a TTL, since it rarely changes.
func (s *Session) Follows() bool { return s.opened && s.last.Beat%beatsInTTL == 0 }

// Until is the end of the window; Never: not open.
func (s *Session) Until() Instant { return s.window.Until() }

// Trusted says whether the window is open.
func (s *Session) Trusted(now Instant) bool { return s.window.Open(now) }

// Opening says whether somebody opens the session or has done so, Opened whether its first
// record has stood, Over whether it was lost or has ended, Ending whether it sends no more
// heartbeats.
func (s *Session) Opening() bool { return s.opening }
func (s *Session) Opened() bool  { return s.opened }
func (s *Session) Over() bool    { return s.over }
func (s *Session) Ending() bool  { return s.ending }

// Why is the reason for the loss.
func (s *Session) Why() string { return s.why }

// Failing is why the latest attempt was not answered; nil: it was.
func (s *Session) Failing() error { return s.failing }

// Open notes that the caller opens the session.
func (s *Session) Open() { s.opening = true }

// Begin sets the TTL of the first record.
func (s *Session) Begin(ttl time.Duration) { s.ttl, s.usual = ttl, ttl }

// Detach makes the next attempts leave a hold without a process, for d.
func (s *Session) Detach(d time.Duration) { s.detach = d }

// Keep keeps the names of the session shut for d from now, whatever becomes of the process: each
// attempt leaves a hold without a process for the rest of d. When the rest is less than the
// usual TTL, and less than half of d, attempts are as usual again. The lock may go on.
func (s *Session) Keep(d time.Duration, now Instant) { s.least, s.shut = d, now.Add(d) }

// Shut says until when the names stay shut; ok is false if Keep was not called.
func (s *Session) Shut() (until Instant, ok bool) { return s.shut, s.least > 0 }

// Leave makes the next attempt the last, which leaves the names shut for the rest of the time of
// Keep. Nobody believes in a lock of the session any more.
func (s *Session) Leave() { s.leaves = true }

// Asking notes that an attempt is about to be sent, and returns how long it may take. It
// reports false if none may be sent any more: the session is over, or about to be lost.
func (s *Session) Asking(now Instant) (bound time.Duration, ok bool) {
	if s.over || s.opened && !s.Trusted(now) {
		return 0, false
	}
	bound = s.Pace()
	if s.opened {
		bound = min(bound, s.Until().Sub(now))
	}
	s.asking, s.bound = true, bound
	return bound, true
}

// Beat is a fresh attempt. A smaller TTL shrinks the window before the attempt is sent:
// waiters go by that TTL as soon as the store has it, whether or not its answer arrives. The
// caller reports a window that was shortened before it sends the attempt.
func (s *Session) Beat(b BeatOf, now Instant) (a Attempt, shortened bool) {
	ttl, detached, least := b.TTL, s.detach > 0, record.Least("")
	s.usual = ttl
	switch rest := s.shut.Sub(now); {
	case detached:
		ttl = record.DetachedTTL(s.detach)
	case s.least == 0:
	case s.leaves:
		ttl, detached, least = max(rest, 0)+time.Millisecond, true, record.LeastKept
	case rest >= min(ttl, s.least/2):
		ttl, detached, least = rest+time.Millisecond, true, record.LeastHeld
	}
	ttl = ttl.Truncate(time.Millisecond) // others go by what the record says
	if ttl < s.ttl && s.opened {
		shortened = s.window.Shrink(ttl, now)
	}
	a = Attempt{Sent: now, Old: s.version, keeps: s.least > 0, Record: record.Session{
		Owner: b.Owner, TTL: ttl.Milliseconds(), Grace: b.Grace.Milliseconds(),
		Beat: s.last.Beat + 1, Nonce: b.Nonce, At: b.Clocks.Wall, Detached: detached, Least: least, Labels: b.Labels,
	}}
	if detached {
		a.Record.Boot, a.Record.Up = b.Clocks.Boot, b.Clocks.Up.Microseconds()
	}
	if s.version == 0 {
		a.Old = record.IfEmpty
	}
	s.attempts = append(s.attempts, a)
	s.lastSent = now
	return a, shortened
}

// TooLate says whether the session has not opened by the time when others may declare it dead
// for the silence since its first attempt. From then on it never opens, whatever the answer to
// a later attempt is: the tombstone may have come and gone, and be known to those who read it.
// A tombstone does stay for two TTLs, but where the store has no clock its age is told by wall
// clocks, which may be wrong.
func (s *Session) TooLate(now Instant) bool {
	return !s.opened && len(s.attempts) > 0 && now.Sub(s.attempts[0].Sent) >= s.ttl-record.Margin(s.ttl)
}

// Answered handles the answer to an attempt, or the lack of one.
func (s *Session) Answered(a Attempt, out Outcome, now Instant) (eff Effects) {
	s.asking = false
	if s.over {
		return eff
	}
	if s.failing == nil {
		s.stood = out.Err != nil && now.Sub(a.Sent) > s.bound+record.Margin(s.ttl)
	}
	s.failing = out.Err
	switch {
	case out.Err != nil:
		if s.TooLate(now) {
			s.lose("no answer to its first heartbeat", out.Err, &eff)
		}
		return eff
	case out.Won && s.TooLate(now):
		s.lose(openedLate, nil, &eff)
		return eff
	case out.Won:
		s.accept(a, out.Version, now, &eff)
		return eff
	case out.Bad != nil:
		s.lose("its record was overwritten", out.Bad, &eff)
		return eff
	}
	if why := s.lostTo(out, now, &eff); why != "" {
		s.lose(why, nil, &eff)
		return eff
	}
	if out.Record.Suspected != nil {
		eff.Asked = out.Record.Suspected.By
	}
	eff.Revoked = out.Record.Revoked
	return eff
}

const openedLate = "its first heartbeat was answered too late"

// lostTo handles the record that an attempt has lost to. If that ends the session,
// it says why.
func (s *Session) lostTo(out Outcome, now Instant, eff *Effects) (why string) {
	rec := out.Record
	switch {
	case rec.Dead != 0:
		why = "declared dead by " + rec.By
		if rec.Why != "" {
			why += " (" + rec.Why + ")"
		}
		return why
	case out.Absent && s.version == 0: // emptied before our first record came
		eff.Again = true
		return ""
	case out.Absent:
		return "its record has vanished from the store"
	case s.version != 0 && rec.SameBeat(s.last): // a mark or a revocation on our last beat
		s.version, eff.Again = out.Version, true
		return ""
	}
	for _, a := range s.attempts {
		if rec.SameBeat(a.Record) {
			if s.TooLate(now) {
				return openedLate
			}
			s.accept(a, out.Version, now, eff)
			eff.Again = s.detach == 0
			return ""
		}
	}
	switch {
	case rec.Beat < s.last.Beat:
		return "the store has lost a heartbeat that it had confirmed"
	case rec.Beat == 0 && rec.Suspected == nil:
		return "declared missing by another process"
	case rec.Beat == 0:
		return "declared missing by " + rec.Suspected.By
	}
	return "another process uses this session: cloned machine?"
}

// accept notes that an attempt's record is the one that stands.
func (s *Session) accept(a Attempt, version record.Version, now Instant, eff *Effects) {
	s.last, s.version = a.Record, version
	s.attempts = nil
	s.ttl = a.Record.Duration()
	s.window.Extend(a.Sent, s.ttl, now)
	eff.Opened = !s.opened
	s.opened, eff.Moved = true, true
	switch {
	case s.leaves:
		eff.Alone = a.Record.Least == record.LeastKept
	case s.least > 0:
		eff.Alone = a.keeps
	default:
		eff.Alone = a.Record.Detached
	}
}

// Lose ends belief in everything this session holds, for ever. The reason is worked out if
// none is given.
func (s *Session) Lose(why string, err error, now Instant) (eff Effects) {
	if s.over {
		return eff
	}
	if why == "" {
		left := time.Duration(0)
		if until := s.Until(); until != Never {
			left = until.Sub(now)
		}
		silent := s.ttl - record.Margin(s.ttl) - left
		switch {
		case s.failing != nil && !s.stood || s.failing == nil && s.asking && left > -record.Margin(s.ttl)/2: // otherwise this process was late to notice
			why, err = fmt.Sprintf("no heartbeat answered for %s", record.Short(silent)), s.failing
		default:
			why = fmt.Sprintf("this process stood still for %s", record.Short(silent))
		}
	}
	s.lose(why, err, &eff)
	return eff
}

func (s *Session) lose(why string, err error, eff *Effects) {
	s.over, s.why = true, why
	s.window.Close()
	eff.Lost, eff.Why, eff.Err = true, why, err
}

// Void is when the claims of the session, once it is lost, are void for its own client too: a TTL
// and the grace after its last sign of life. It reports false if the session never sent one.
func (s *Session) Void(grace time.Duration) (at Instant, ok bool) {
	return s.lastSent.Add(s.ttl + grace), s.opened || len(s.attempts) > 0
}

// Answers says whether the store has answered the latest heartbeat, or may still do so.
func (s *Session) Answers(now Instant) bool {
	return s.opened && s.failing == nil && !(s.asking && now.Sub(s.lastSent) >= time.Second)
}

// Stop ends the heartbeats of the session. It reports false if none was ever sent; the
// session is then over.
func (s *Session) Stop() bool {
	s.ending = true
	if !s.opened && len(s.attempts) == 0 {
		s.over = true
	}
	return !s.over
}

// End ends the session in order. It returns the version of its record, and whether that is
// known for certain.
func (s *Session) End() (version record.Version, known bool) {
	s.over = true
	return s.version, s.opened && len(s.attempts) == 0
}

// A View is what names need to know of their client's session.
type View struct {
	ID      string // "": there is none
	Opening bool   // somebody opens it, or has done so
	Opened  bool   // its first record has stood
	Over    bool   // it was lost or has ended
	Until   Instant
	TTL     time.Duration
}

// View is what names need to know of the session.
func (s *Session) View() View {
	return View{ID: s.ID, Opening: s.opening, Opened: s.opened, Over: s.over, Until: s.Until(), TTL: s.ttl}
}
