package models

import "fmt"

// A living holder is broken: the revocation is written into its session, where no heartbeat can
// succeed without having read it; when it has been answered, or the session is dead, the
// claim goes and the next one holds.

type breakState struct {
	believes, window       uint8
	beat, beatOld, beatAge uint8
	known                  uint8
	record                 uint8 // of the session: live, or one of the next
	claim                  uint8 // it stands in the lock record
	breaker                uint8 // 0, 1: has written the revocation, 2: has seen the answer or a tombstone
	watched                uint8 // 1 + ticks since the record has changed, as the breaker sees it
	unknowns               uint8
	bad                    uint8
}

type breakWorld struct {
	ttl, unknowns uint8
	broken        Rule
}

const (
	leavesSession Rule = "break leaves the session alone"
	breaksEarly   Rule = "break waits a tick less than the TTL"
	beatsOver     Rule = "a heartbeat goes over a revocation unread"
)

const (
	bLive = iota
	bRevoked
	bAnswered // a beat since the revocation
	bTomb
)

func (w breakWorld) model() Model[breakState] {
	return Model[breakState]{
		Init: []breakState{{believes: 1, window: w.ttl, known: fresh, claim: 1, unknowns: w.unknowns}},
		Next: w.next,
		Bad: func(s breakState) string {
			if s.bad == 1 {
				return "two holders"
			}
			return ""
		},
		Done: func(s breakState) bool { return s.claim == 0 },
		Show: func(s breakState) string {
			return fmt.Sprintf("session %s, holder's window %d", [...]string{"live", "revoked", "answered", "dead"}[s.record], s.window)
		}}
}

func (w breakWorld) next(s breakState, emit func(Step, breakState)) {
	if s.bad != 0 || s.claim == 0 {
		return
	}
	change := func(t *breakState, to uint8) {
		t.record, t.known, t.watched = to, stale, 1
		if t.beatOld == fresh && w.broken != beatsOver {
			t.beatOld = stale
		}
	}
	if s.window > 0 && s.beat == none {
		t := s
		t.beat, t.beatOld, t.beatAge = sent, s.known, 0
		if w.broken == beatsOver {
			t.beatOld = fresh
		}
		emit(Step{Who: "the holder", What: "sends a heartbeat"}, t)
	}
	if s.beat == sent {
		t := s
		if s.beatOld == fresh && s.record != bTomb {
			t.beat, t.beatOld = won, fresh
			to := uint8(bLive)
			if s.breaker == 1 {
				to = bAnswered
			}
			t.record, t.watched = to, min(s.watched, 1)
		} else {
			t.beat = lost
		}
		emit(Step{Who: "the holder", What: "'s heartbeat reaches the store"}, t)
	}
	if s.beat == won || s.beat == lost {
		t := s
		t.beat, t.beatOld, t.beatAge = none, 0, 0
		switch {
		case s.window == 0:
		case s.beat == won:
			t.window, t.known = max(s.window, w.ttl-s.beatAge), s.beatOld
		case s.record == bTomb:
			t.window, t.believes = 0, 0
		default: // revoked: belief ends, the claim leaves, and the next beat goes over what was read
			t.believes, t.known = 0, fresh
		}
		emit(Step{Who: "the holder", What: "hears of its heartbeat"}, t)
		if s.unknowns > 0 {
			t := s
			t.beat, t.beatOld, t.beatAge, t.unknowns = none, 0, 0, s.unknowns-1
			if s.beat == won { // the next one may lose to this one, which it knows for its own
				t.known = s.beatOld
			}
			emit(Step{Who: "the holder", What: "never hears of its heartbeat", Fault: true}, t)
		}
	}
	if s.believes == 0 && s.window > 0 {
		t := s
		t.claim = 0
		emit(Step{Who: "the holder", What: "leaves the lock"}, t)
	}
	gone := func(t *breakState) {
		if t.claim = 0; t.believes == 1 && t.window > 0 {
			t.bad = 1
		}
	}
	patience := 1 + w.ttl
	if w.broken == breaksEarly {
		patience--
	}
	switch {
	case s.breaker == 0 && w.broken == leavesSession:
		t := s
		gone(&t)
		emit(Step{Who: "the breaker", What: "removes the claim, and the next holds"}, t)
	case s.breaker == 0:
		t := s
		t.breaker = 1
		change(&t, bRevoked)
		emit(Step{Who: "the breaker", What: "writes the revocation into the session"}, t)
	case s.breaker == 1 && s.record == bAnswered:
		t := s
		t.breaker = 2
		emit(Step{Who: "the breaker", What: "sees that it was answered"}, t)
	case s.breaker == 1 && s.watched >= patience:
		t := s
		t.breaker, t.record, t.known, t.beatOld = 2, bTomb, stale, stale
		emit(Step{Who: "the breaker", What: "has seen the record stand for the TTL, and buries the session"}, t)
	case s.breaker == 2:
		t := s
		gone(&t)
		emit(Step{Who: "the breaker", What: "removes the claim, and the next holds"}, t)
	}
	t := s
	t.window -= min(1, s.window)
	if s.beat == sent || s.beat == won {
		t.beatAge = min(s.beatAge+1, w.ttl)
	}
	if s.watched > 0 {
		t.watched = min(s.watched+1, 1+w.ttl)
	}
	emit(Step{What: "a tick passes"}, t)
}

func breakCases() []Case {
	w := func(rule Rule) Model[breakState] { return breakWorld{4, 2, rule}.model() }
	return []Case{
		of("break", "of a living holder; TTL 4, 2 unknown", "", Quick, w("")),
		of("break", string(leavesSession), "two holders", Quick, w(leavesSession)),
		of("break", string(breaksEarly), "two holders", Quick, w(breaksEarly)),
		of("break", string(beatsOver), "two holders", Quick, w(beatsOver)),
	}
}
