package check

import "time"

// sessionStep checks a step of a session: it is opened by its owner, or judged
// without ever having been seen; its owner alone beats, each beat follows the
// one before; others mark, revoke, and declare dead what has stood for its TTL; and no
// life follows a tombstone while it is there.
func (a *Audit) sessionStep(s Step) {
	was := a.sessions[s.Key.Name]
	if was == nil {
		was = &sessionState{beatAt: map[string]time.Duration{}}
		a.sessions[s.Key.Name] = was
	}
	next, err := ReadSession(s.Value)
	if err != nil {
		a.bad(s, "not a session record: %v", err)
		return
	}
	if _, known := was.beatAt[next.Nonce]; s.Value != "" && (!known || !was.present && !s.Restored) {
		was.beatAt[next.Nonce] = s.At
	}
	if !s.Restored {
		if s.Version <= was.version {
			a.bad(s, "version %d after %d", s.Version, was.version)
		}
		own := a.Owner(s.Key.Name)&s.Writers != 0
		switch {
		case s.Value == "":
			a.emptied(s, was, own)
		case !was.present:
			a.opened(s, next, own)
		case !was.live():
			a.bad(s, "a tombstone was overwritten")
		case !next.live():
			a.declaredDead(s, was, next, own)
		case next.Beat == was.Beat && next.Nonce == was.Nonce:
			if was.Suspected != nil && string(next.Suspected) != string(was.Suspected) {
				a.markedAgain(s, was, next)
			}
			if next.TTL != was.TTL || len(next.Revoked) < len(was.Revoked) {
				a.bad(s, "a mark changes more than the mark: before %+v", was.Session)
			}
		case !own:
			a.bad(s, "a heartbeat by somebody else")
		case next.Beat != was.Beat+1:
			a.bad(s, "beat %d follows %d", next.Beat, was.Beat)
		case len(next.Names) > 0 && len(was.Revoked) > 0:
			a.bad(s, "a hold that was broken is renewed")
		}
	}
	if !next.live() && !was.died {
		was.died, was.deadAt, was.decided = true, s.At, s.At
		if !a.Began.IsZero() {
			was.decided = min(s.At, time.UnixMicro(next.Dead).Sub(a.Began))
		}
	}
	was.Session, was.present, was.version = next, s.Value != "", s.Version
	was.since = was.beatAt[next.Nonce]
}

// markedAgain checks a mark that follows another on one beat: only a break writes one, where nothing
// renews the session, to keep how long its beat has stood.
func (a *Audit) markedAgain(s Step, was *sessionState, next Session) {
	before, after := was.stoodWhenMarked(), next.stoodWhenMarked()
	stood := s.At - was.since
	switch {
	case !next.Detached || len(next.Revoked) == 0:
		a.bad(s, "a second mark on one beat")
	case after < before || after > a.fast(stood)+a.Leap:
		a.bad(s, "a break says that the beat has stood for %v; it has for %v, and for %v at the last mark", after, stood, before)
	}
}

func (a *Audit) opened(s Step, next Session, own bool) {
	switch {
	case next.live() && next.Beat == 0:
		if next.Suspected == nil {
			a.bad(s, "a session without a beat is not marked")
		}
	case !own:
		a.bad(s, "a session was made by somebody else")
	}
}

func (a *Audit) declaredDead(s Step, was *sessionState, tomb Session, own bool) {
	gone := a.Gone != nil && a.Gone(s.Key.Name) || was.Detached && tomb.Why == "released"
	if len(was.Names) > 0 && tomb.Why != "released" { // whoever serves it may also judge it
		own = false
	}
	if stood := s.At - was.since; !own && !gone && a.fast(stood)+a.Leap < was.ttl() {
		a.bad(s, "declared dead after %v, and its TTL is %v", stood, was.ttl())
	}
}

// emptied: a session goes when its owner has left everything, a tombstone when
// no claim that it voids is left.
func (a *Audit) emptied(s Step, was *sessionState, own bool) {
	switch {
	case !was.present:
	case was.live() && !own:
		a.bad(s, "a living session was removed by somebody else")
	case !was.live():
		for name, l := range a.locks {
			for _, c := range l.claims() {
				if c.Session == s.Key.Name && l.entered[c.id()] < was.deadAt {
					a.bad(s, "a tombstone was removed, and %q still has its claim %v", name, c.id())
				}
			}
		}
	}
}
