package models

// What can happen in the core.

var names = [...]string{"A", "B", "C", "D"}

func (c *core) next(s coreState, emit func(Step, coreState)) {
	if s.bad != 0 {
		return
	}
	for i := range c.n {
		c.arrivals(&s, i, emit)
		if s.p[i].pc != crashed && s.p[i].pc != gone {
			c.answers(&s, i, emit)
			c.acts(&s, i, emit)
		}
	}
	c.ghosts(&s, emit)
	if !c.still {
		c.tick(&s, emit)
	}
}

func (p *coreProc) dead() bool { return p.pc == crashed || p.pc == gone }

// arrivals: what was sent reaches the store.
func (c *core) arrivals(s *coreState, i uint8, emit func(Step, coreState)) {
	p := &s.p[i]
	if p.write == sent {
		t := *s
		c.applyWrite(&t, i)
		emit(Step{names[i], "'s write of the lock reaches the store", p.dead()}, t)
	}
	if p.beat == sent {
		t := *s
		c.applyBeat(&t, i)
		emit(Step{names[i], "'s heartbeat reaches the store", p.dead()}, t)
	}
	if p.bury != 0 {
		t := *s
		sid := p.bury - 1
		q := &t.p[i]
		if can := p.grave == fresh || c.broken == buryBlindly || c.broken == buryUnversioned; can && s.sessions[sid] != tomb {
			q.bury, q.grave = 0, 0
			c.set(&t, sid, tomb, true)
		} else {
			q.bury, q.grave, q.watch[sid] = 0, 0, 0
		}
		emit(Step{names[i], "'s burial reaches the store", p.dead()}, t)
	}
}

func (c *core) applyWrite(t *coreState, i uint8) {
	p := &t.p[i]
	can := p.writeOld == fresh || p.writeOld == blind && t.lock.n == 0 || c.broken == noVersion
	value, status := p.value, uint8(lost)
	p.write, p.writeOld, p.value, p.copyOld, p.copy = none, 0, coreRecord{}, stale, coreRecord{}
	if can {
		c.put(t, i, value)
		status = won
	}
	if p.dead() {
		return
	}
	p.write, p.copyOld, p.copy, p.told = status, fresh, t.lock, c.tell(t, i)
}

func (c *core) applyBeat(t *coreState, i uint8) {
	p := &t.p[i]
	sid := p.beatOf
	if p.beatOld == fresh || p.beatOld == blind && t.sessions[sid] == absent {
		p.beat = none
		c.set(t, sid, live, true)
		if p.dead() {
			p.beatOld, p.beatOf, p.beatAge = 0, 0, 0
			return
		}
		p.beat, p.beatOld, p.marks = won, fresh, 0
		return
	}
	if p.dead() {
		p.beat, p.beatOld, p.beatOf, p.beatAge = none, 0, 0, 0
		return
	}
	p.beat, p.beatOld, p.beatLost = lost, fresh, t.sessions[sid]
	if c.standing(t, sid) >= 0 {
		p.beatLost = ours
	}
}

// standing is the ghost whose heartbeat is what a session's record shows.
func (c *core) standing(s *coreState, sid uint8) int {
	for g := range s.ghosts {
		if s.ghosts[g].kind == ghostBeat && s.ghosts[g].status == won && s.ghosts[g].session == sid {
			return g
		}
	}
	return -1
}

// tell says what the record is for the claim that process i wants or leaves.
func (c *core) tell(s *coreState, i uint8) uint8 {
	if s.p[i].pc != want && s.p[i].pc != leave {
		return untold
	}
	claim := c.claim(i, s)
	for j, other := range s.lock.claims[:s.lock.n] {
		if other == claim || c.broken == adoptOld && c.owner(c.sessionOf(other)) == i {
			if j < int(s.lock.holders) {
				return holder
			}
			return waiter
		}
	}
	return missing
}

// answers: what became of a call is told to its process, or never.
func (c *core) answers(s *coreState, i uint8, emit func(Step, coreState)) {
	p := &s.p[i]
	if p.write == won || p.write == lost {
		t := *s
		t.p[i].write = none
		c.left(&t, i)
		emit(Step{Who: names[i], What: "hears of its write"}, t)
	}
	if p.beat == won || p.beat == lost {
		t := *s
		c.hearBeat(&t, i)
		emit(Step{Who: names[i], What: "hears of its heartbeat"}, t)
	}
	if s.unknowns == 0 {
		return
	}
	if p.write != none && !(c.broken == readOnly && p.writeOld == blind) {
		t := *s
		t.unknowns--
		q := &t.p[i]
		if p.write == sent && p.writeOld != stale {
			t.haunt(coreGhost{kind: ghostWrite, of: i, old: p.writeOld, value: p.value})
		}
		if p.write != sent || q.copyOld == blind {
			q.copyOld, q.copy = stale, coreRecord{}
		}
		q.write, q.writeOld, q.value, q.told = none, 0, coreRecord{}, untold
		emit(Step{names[i], "never hears of its write", true}, t)
	}
	if p.beat != none {
		t := *s
		t.unknowns--
		q := &t.p[i]
		g := coreGhost{kind: ghostBeat, of: i, old: p.beatOld, age: p.beatAge, status: sent, session: p.beatOf}
		switch stands := s.sessions[p.beatOf]; {
		case p.beat == sent && p.beatOld != stale:
			t.haunt(g)
		case p.beat == won && (stands == live || stands == marked):
			g.status, g.old = won, fresh
			t.haunt(g)
		}
		q.beat, q.beatOld, q.beatOf, q.beatAge, q.beatLost = none, 0, 0, 0, 0
		emit(Step{names[i], "never hears of its heartbeat", true}, t)
	}
	if p.bury != 0 {
		t := *s
		t.unknowns--
		q := &t.p[i]
		if p.grave == fresh {
			t.haunt(coreGhost{kind: ghostBury, old: fresh, session: p.bury - 1})
		}
		q.bury, q.grave = 0, 0
		emit(Step{names[i], "never hears of its burial", true}, t)
	}
}

func (c *core) hearBeat(t *coreState, i uint8) {
	p := &t.p[i]
	status, age, of, old, to := p.beat, p.beatAge, p.beatOf, p.beatOld, p.beatLost
	p.beat, p.beatOld, p.beatOf, p.beatAge, p.beatLost = none, 0, 0, 0, 0
	if of != c.sid(i, t) {
		return
	}
	if status == lost {
		switch to {
		case ours:
			if g := c.standing(t, of); g >= 0 {
				age = t.ghosts[g].age
				t.ghosts[g] = coreGhost{}
				sortGhosts(t)
			} else {
				age = c.ttl // something has come upon it since
			}
		case marked, live:
			p.known = old
			if p.marks++; p.marks == 2 {
				t.bad = markedTwice
			}
			return
		default:
			c.lose(t, i)
			return
		}
	}
	left := c.ttl - age
	if c.broken == windowFromAnswer {
		left = c.ttl
	}
	p.known = old
	switch {
	case p.open == 0 && left == 0:
		c.lose(t, i)
	case p.open == 0:
		p.open, p.window = 1, left
	default:
		p.window = max(p.window, left)
	}
}

// lose ends the session of process i for ever.
func (c *core) lose(t *coreState, i uint8) {
	p := &t.p[i]
	if p.pc == held || p.pc == leave {
		p.pc = idle
		p.left--
	}
	p.open, p.window, p.known, p.told, p.marks = 0, 0, 0, untold, 0
	if p.session+1 == c.sessionsEach() || p.pc == idle && p.left == 0 {
		c.retire(p, gone)
		return
	}
	p.session++
}

// retire leaves of a process what is on its way.
func (c *core) retire(p *coreProc, pc uint8) {
	q := coreProc{pc: pc, session: p.session, bury: p.bury, grave: p.grave}
	if p.write == sent {
		q.write, q.writeOld, q.value = sent, p.writeOld, p.value
	}
	if p.beat == sent {
		q.beat, q.beatOld, q.beatOf = sent, p.beatOld, p.beatOf
	}
	*p = q
}

// left ends a round if the claim is known to be gone for good.
func (c *core) left(t *coreState, i uint8) {
	p := &t.p[i]
	if p.pc == leave && p.told == missing && (!c.mayCome(t, i) || c.broken == readOnly) {
		p.pc, p.told = idle, untold
		p.left--
	}
}

// mayCome says whether a write of process i may still follow the version that stands.
func (c *core) mayCome(s *coreState, i uint8) bool {
	for _, g := range s.ghosts {
		if g.kind == ghostWrite && g.of == i && g.old == fresh {
			return true
		}
	}
	return false
}

// acts: what a process does by itself.
func (c *core) acts(s *coreState, i uint8, emit func(Step, coreState)) {
	p := &s.p[i]
	act := func(what string, fault bool, do func(t *coreState, p *coreProc)) {
		t := *s
		do(&t, &t.p[i])
		emit(Step{names[i], what, fault}, t)
	}
	if s.crashes > 0 {
		act("crashes", true, func(t *coreState, p *coreProc) { t.crashes--; c.retire(p, crashed) })
	}
	if p.beat == none {
		switch {
		case p.open == 0 && (p.pc == want || p.pc == leave):
			act("opens a session", false, func(t *coreState, p *coreProc) {
				p.beat, p.beatOld, p.beatOf = sent, blind, c.sid(i, t)
			})
		case p.open == 1 && !c.still && (p.window < c.ttl || c.ttl == 1 || c.marks && p.known == stale):
			act("sends a heartbeat", false, func(t *coreState, p *coreProc) {
				p.beat, p.beatOld, p.beatOf = sent, p.known, c.sid(i, t)
			})
		}
	}
	switch p.pc {
	case idle:
		if p.left > 0 {
			act("wants the lock", false, func(_ *coreState, p *coreProc) { p.pc = want })
		}
	case held:
		act("releases", false, func(_ *coreState, p *coreProc) { p.pc = leave })
		return
	case want:
		if p.write == none && p.told == holder && p.open == 1 {
			act("believes that it holds", false, func(_ *coreState, p *coreProc) {
				p.pc, p.told, p.watch = held, untold, [coreSessions]uint8{}
				if c.broken == grantOpens {
					p.window = c.ttl
				}
			})
		}
		if c.cancel {
			act("gives up waiting", true, func(t *coreState, p *coreProc) {
				p.pc, p.watch = leave, [coreSessions]uint8{}
				if p.write == none && p.copyOld == blind {
					p.pc, p.told = idle, untold
					p.left--
				}
				if p.write == none {
					c.left(t, i)
				}
			})
		}
		c.judges(s, i, act)
	}
	if p.write != none || p.open == 0 && p.beat == none {
		return
	}
	if p.pc == idle && (p.open == 0 || c.broken == forgetBlind || c.broken == readOnly) {
		return
	}
	if p.copyOld != blind {
		act("looks", false, func(t *coreState, p *coreProc) {
			p.copyOld, p.copy, p.told = fresh, t.lock, c.tell(t, i)
			c.look(t, i)
			c.left(t, i)
		})
	}
	c.sends(s, i, act)
}

// look has process i watch the sessions that are ahead of it, and no others.
func (c *core) look(t *coreState, i uint8) {
	p := &t.p[i]
	was := p.watch
	p.watch = [coreSessions]uint8{}
	if p.pc != want || p.told != waiter {
		return
	}
	mine := c.claim(i, t)
	for _, claim := range t.lock.claims[:t.lock.n] {
		if claim == mine {
			return
		}
		if sid := c.sessionOf(claim); t.sessions[sid] != tomb {
			p.watch[sid] = max(was[sid], 1)
		}
	}
}

// judges: what a waiter does about the sessions ahead of it.
func (c *core) judges(s *coreState, i uint8, act func(string, bool, func(*coreState, *coreProc))) {
	if c.still {
		return
	}
	p := &s.p[i]
	patience := 1 + c.ttl
	if c.broken == buryEarly {
		patience--
	}
	for sid, watched := range p.watch[:c.n*c.sessionsEach()] {
		if watched == 0 {
			continue
		}
		sid := uint8(sid)
		if s.sessions[sid] == absent {
			act("declares a session that has no record", false, func(t *coreState, _ *coreProc) { c.set(t, sid, declared, true) })
			continue
		}
		if watched >= patience && p.bury == 0 && !c.silence() {
			act("sees a beat that has stood for a TTL, and buries", false, func(_ *coreState, p *coreProc) { p.bury, p.grave = 1+sid, fresh })
		}
		if c.marks && (s.sessions[sid] == live || c.broken == markTwice && s.sessions[sid] == marked) {
			act("marks a session", false, func(t *coreState, _ *coreProc) { c.set(t, sid, marked, false) })
		}
	}
}

func (c *core) silence() bool { return c.broken == silenceIsDeath || c.broken == silenceAndRevival }

// sends: the next write of the lock, from what process i has seen of it.
func (c *core) sends(s *coreState, i uint8, act func(string, bool, func(*coreState, *coreProc))) {
	p := &s.p[i]
	if p.pc == want && p.copyOld == blind {
		act("writes its claim without looking", false, func(t *coreState, p *coreProc) {
			p.write, p.writeOld = sent, blind
			p.value = coreRecord{holders: 1, n: 1, claims: [coreClaims]uint8{c.claim(i, t)}}
		})
		return
	}
	if p.copyOld == blind || p.told == holder && p.pc == want || p.copyOld == stale && c.broken != noVersion {
		return
	}
	var wanted uint8
	if p.pc == want && !(c.broken == adoptOld && p.told == waiter) {
		wanted = c.claim(i, s)
	}
	mine := c.sid(i, s)
	var before coreRecord
	for _, knows := range []bool{false, true} {
		unwanted := func(claim uint8) bool {
			sid := c.sessionOf(claim)
			switch {
			case c.broken == adoptOld && c.owner(sid) == i:
				return wanted == 0 && p.pc != want
			case sid == mine:
				return claim != wanted && !(c.broken == dropHolder && p.pc == leave)
			case !knows:
				return false
			case c.broken == absentIsDead && s.sessions[sid] == absent, c.silence() && p.watch[sid] == 1+c.ttl:
				return true
			}
			return s.sessions[sid] == tomb
		}
		if c.broken == dropHolder && p.pc == leave {
			first := p.copy.claims[0]
			unwanted = func(claim uint8) bool { return claim == first }
		}
		value := c.settle(p.copy, unwanted, wanted, !(c.broken == noGrant && p.pc == leave))
		if value == p.copy && !(p.pc == leave && c.mayCome(s, i)) || knows && value == before {
			continue
		}
		if p.pc == want && p.told == waiter && value.n == p.copy.n {
			continue // only a death makes a waiter write
		}
		before = value
		what := "writes its claim, from what it has seen"
		switch {
		case value == p.copy:
			what = "writes the record as it is, to close a write of before"
		case p.pc != want:
			what = "writes the record without its claim"
		case p.told == waiter:
			what = "writes the record without the dead"
		}
		act(what, false, func(_ *coreState, p *coreProc) { p.write, p.writeOld, p.value = sent, p.copyOld, value })
	}
}

// ghosts: a write that nobody waits for any more is applied.
func (c *core) ghosts(s *coreState, emit func(Step, coreState)) {
	for j, g := range s.ghosts {
		t := *s
		switch {
		case g.kind == ghostWrite && (g.old == fresh || s.lock.n == 0):
			t.ghosts[j] = coreGhost{}
			c.put(&t, g.of, g.value)
			emit(Step{names[g.of], "'s write of before is applied after all", true}, t)
		case g.kind == ghostBury:
			t.ghosts[j] = coreGhost{}
			c.set(&t, g.session, tomb, true)
			emit(Step{"", "a burial of before is applied after all", true}, t)
		case g.kind == ghostBeat && g.status == sent && (g.old == fresh || s.sessions[g.session] == absent):
			t.ghosts[j] = coreGhost{}
			c.set(&t, g.session, live, true)
			g.status, g.old = won, fresh
			sortGhosts(&t)
			t.haunt(g)
			emit(Step{names[g.of], "'s heartbeat of before is applied after all", true}, t)
		}
	}
}

// tick: time goes on, everywhere.
func (c *core) tick(s *coreState, emit func(Step, coreState)) {
	t := *s
	loses := false
	for i := range t.p[:c.n] {
		p := &t.p[i]
		if p.dead() {
			continue
		}
		if p.beat == sent || p.beat == won {
			p.beatAge = min(p.beatAge+1, c.ttl)
		}
		for sid := range p.watch {
			if p.watch[sid] > 0 {
				p.watch[sid] = min(p.watch[sid]+1, 1+c.ttl)
			}
		}
		if p.window > 0 {
			if p.window--; p.window == 0 {
				loses = true
				if c.broken != revival && c.broken != silenceAndRevival {
					c.lose(&t, uint8(i))
				}
			}
		}
	}
	for j := range t.ghosts {
		if g := &t.ghosts[j]; g.kind == ghostBeat {
			g.age = min(g.age+1, c.ttl)
		}
	}
	sortGhosts(&t)
	emit(Step{"", "a tick passes", loses}, t)
}
