package check

import (
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Step is one write that a store applied.
type Step struct {
	Key     driver.Key
	Version int64
	Value   string
	Lazy    bool
	At      time.Duration
	// Writers are those who may have sent this write, one bit each. Two who
	// happened to send the very same cannot be told apart.
	Writers uint64
	// Restored: no write, but what a crash of the store left behind.
	Restored bool
}

// An Audit checks C5: it is told of all steps in the order in which they were
// applied, and keeps its own copy of the store.
type Audit struct {
	// Owner says which writer a session belongs to, as one bit.
	Owner func(session string) uint64
	// Leap is how far in all the store's clock may have leapt forward: by so
	// much sooner a session may be declared dead by its age.
	Leap time.Duration
	// Rates is by how much clocks may be wrong, as a part of 1: by so much sooner may
	// others be judged, and graces end.
	Rates float64
	// Began is what the wall clocks, which are right, showed when At was 0: graces count
	// from the decision that a session is dead, and its write may take a while. Zero:
	// graces count from the write.
	Began time.Time
	// Gone says of which sessions the processes were killed, so that the kernel
	// may have proved their death; nil: of none.
	Gone func(session string) bool

	locks    map[string]*lockState
	sessions map[string]*sessionState
	found    []Violation
}

type lockState struct {
	lock
	version int64
	highest int64 // token ever given
	entered map[id]time.Duration
}

type sessionState struct {
	Session
	present bool
	version int64
	beatAt  map[string]time.Duration // when each beat was applied, by nonce
	since   time.Duration            // when the present beat was applied
	died    bool                     // it has had a tombstone; that is for ever, also once it is swept
	deadAt  time.Duration
	decided time.Duration // when its grace began
}

// NewAudit returns an audit of an empty store.
func NewAudit(owner func(session string) uint64, leap time.Duration) *Audit {
	return &Audit{Owner: owner, Leap: leap, locks: map[string]*lockState{}, sessions: map[string]*sessionState{}}
}

// Check audits a whole history.
func (a *Audit) Check(steps []Step) []Violation {
	for _, s := range steps {
		a.Step(s)
		if len(a.found) > 0 {
			break // what follows a bad step means little
		}
	}
	return a.found
}

// Step audits one step.
func (a *Audit) Step(s Step) {
	switch s.Key.Space {
	case driver.Names:
		a.lockStep(s)
	case driver.Sessions:
		a.sessionStep(s)
	}
}

func (a *Audit) bad(s Step, format string, args ...any) {
	v := violation("C5", format, args...)
	v.Text += "\n\tat " + s.At.String() + " " + s.Key.Space.String() + " " + s.Key.Name + ": " + s.Value
	a.found = append(a.found, v)
}

func (a *Audit) lockStep(s Step) {
	was := a.locks[s.Key.Name]
	if was == nil {
		was = &lockState{entered: map[id]time.Duration{}}
		a.locks[s.Key.Name] = was
	}
	next, err := readLock(s.Value, s.Version)
	if err != nil {
		a.bad(s, "not a lock record: %v", err)
		return
	}
	if !s.Restored {
		if s.Version <= was.version {
			a.bad(s, "version %d after %d", s.Version, was.version)
		}
		a.changes(s, was, next)
	}
	entered := make(map[id]time.Duration)
	for _, c := range next.claims() {
		at, ok := was.entered[c.id()]
		if !ok {
			at = s.At
		}
		entered[c.id()] = at
	}
	was.lock, was.version, was.entered = next, s.Version, entered
}

// changes checks that next is what stood before, less claims that may go, plus
// new ones at the end of the queue, settled.
func (a *Audit) changes(s Step, was *lockState, next lock) {
	here := make(map[id]claim, len(next.Holders)+len(next.Waiters))
	for _, c := range next.claims() {
		if _, ok := here[c.id()]; ok {
			a.bad(s, "claim %v stands there twice", c.id())
		}
		here[c.id()] = c
	}
	before := make(map[id]bool)
	stays := func(claims []claim) (kept []claim) {
		for _, c := range claims {
			before[c.id()] = true
			if now, ok := here[c.id()]; ok {
				kept = append(kept, c)
				if now.Slots != c.Slots || now.N != c.N || c.Token != 0 && now.Token != c.Token {
					a.bad(s, "claim %v has changed from %+v to %+v", c.id(), c, now)
				}
			} else {
				a.mayGo(s, c, next)
			}
		}
		return kept
	}
	holders, queue := stays(was.Holders), stays(was.Waiters)
	for _, c := range next.claims() {
		if !before[c.id()] {
			queue = append(queue, c)
			if owner := a.Owner(c.Session); owner&s.Writers == 0 {
				a.bad(s, "a claim of session %s was made by somebody else", c.Session)
			}
		}
	}
	n := len(holders)
	for len(queue) > 0 && queue[0].fits(holders) {
		holders, queue = append(holders, queue[0]), queue[1:]
	}
	if !sameClaims(holders, next.Holders) || !sameClaims(queue, next.Waiters) {
		a.bad(s, "not settled, or out of order: want holders %v, waiters %v", ids(holders), ids(queue))
		return
	}
	for _, h := range next.Holders[n:] {
		if h.Token <= was.highest {
			a.bad(s, "token %d of claim %v after %d", h.Token, h.id(), was.highest)
		}
		if s.Lazy {
			a.bad(s, "token %d is given by a write that may be lost", h.Token)
		}
		was.highest = h.Token + h.tokens() - 1
	}
}

// mayGo checks that a claim is dropped by its own process, by a break, or after
// its session's death.
func (a *Audit) mayGo(s Step, c claim, next lock) {
	if a.Owner(c.Session)&s.Writers != 0 {
		return
	}
	for _, b := range next.Breaks {
		if b.Session == c.Session && b.Nr == c.Nr {
			return
		}
	}
	sess := a.sessions[c.Session]
	switch {
	case sess == nil || !sess.died:
		a.bad(s, "claim %v was dropped, and its session has no tombstone", c.id())
	case a.fast(s.At-sess.decided) < time.Duration(sess.Grace)*time.Millisecond:
		a.bad(s, "claim %v was dropped within the grace of its session", c.id())
	}
}

// fast is a time as the fastest clock has it.
func (a *Audit) fast(d time.Duration) time.Duration { return d + time.Duration(float64(d)*a.Rates) }

func sameClaims(a, b []claim) bool {
	return slices.EqualFunc(a, b, func(x, y claim) bool { return x.id() == y.id() })
}

func ids(claims []claim) (list []id) {
	for _, c := range claims {
		list = append(list, c.id())
	}
	return list
}

// Left says what is left in the store: claims, records and sessions.
func (a *Audit) Left() (left []Violation) {
	for name, l := range a.locks {
		if len(l.Holders)+len(l.Waiters)+len(l.Breaks) > 0 {
			left = append(left, violation("C7", "left under %q: %+v", name, l.lock))
		}
	}
	for id, s := range a.sessions {
		if s.present {
			left = append(left, violation("C7", "left of session %s: %+v", id, s.Session))
		}
	}
	return left
}

// Sessions says whose claim a token was of, "" if no step gave it.
func Sessions(steps []Step) func(name string, token int64) string {
	type grant struct {
		first, end int64
		session    string
	}
	given := make(map[string][]grant)
	for _, s := range steps {
		if s.Key.Space != driver.Names {
			continue
		}
		l, err := readLock(s.Value, s.Version)
		if err != nil {
			continue
		}
		for _, h := range l.Holders {
			g := grant{h.Token, h.Token + h.tokens(), h.Session}
			if !slices.Contains(given[s.Key.Name], g) {
				given[s.Key.Name] = append(given[s.Key.Name], g)
			}
		}
	}
	return func(name string, token int64) string {
		for _, g := range slices.Backward(given[name]) { // a block may have grown
			if g.first <= token && token < g.end {
				return g.session
			}
		}
		return ""
	}
}

// BrokenAtOnce says whether a token was of a claim that was broken without
// waiting for its holder.
func BrokenAtOnce(steps []Step) func(name string, token int64) bool {
	type tokens struct{ first, end int64 }
	broken := make(map[string][]tokens)
	last := make(map[string]lock)
	for _, s := range steps {
		if s.Key.Space != driver.Names {
			continue
		}
		next, err := readLock(s.Value, s.Version)
		if err != nil {
			continue
		}
		for _, b := range next.Breaks {
			for _, h := range last[s.Key.Name].Holders {
				if b.Now && b.Session == h.Session && b.Nr == h.Nr {
					broken[s.Key.Name] = append(broken[s.Key.Name], tokens{h.Token, h.Token + h.tokens()})
				}
			}
		}
		last[s.Key.Name] = next
	}
	return func(name string, token int64) bool {
		return slices.ContainsFunc(broken[name], func(t tokens) bool { return t.first <= token && token < t.end })
	}
}
