package models

import "fmt"

// Gerrit's global-refdb as it was written: a row is inserted, its owner
// refreshes a heartbeat, and who finds it stale takes it over, in one transaction
// that looks at the token and at a reclaim row. And the same with every statement
// conditional on the very row that was judged.

type gerritState struct {
	row      uint8 // 0 none, 1 free, 2 held
	owner    uint8
	token    uint8 // of the row
	age      uint8 // of its heartbeat
	next     uint8 // token
	reclaims uint8 // bit t: a reclaim row for token t
	p        [3]gerritProc
	bad      uint8
}

type gerritProc struct {
	pc     uint8
	token  uint8 // of the lock it holds, or of the row it has seen
	fresh  uint8 // the row is as it was when it looked
	window uint8 // ticks of trust, in the repaired protocol
	seen   uint8 // for how long the row has not changed
}

const (
	gIdle = iota
	gStale
	gHolds
	gBeats  // has checked its token, and is about to refresh
	gCloses // has checked its token, and is about to delete
)

type gerrit struct {
	n, ttl, tokens uint8
	fixed          bool
	judged         uint8 // the violation that is looked for
}

const (
	gStolen = 1 + iota
	gDeleted
	gRefreshed
)

func (g gerrit) model() Model[gerritState] {
	return Model[gerritState]{Init: []gerritState{{next: 1}}, Next: g.next, Bad: g.bad, Show: g.show}
}

func (g gerrit) bad(s gerritState) string {
	switch {
	case s.bad == gStolen:
		return "a lock with a fresh heartbeat is taken over"
	case s.bad == gDeleted:
		return "release deletes the lock of another"
	case s.bad == gRefreshed:
		return "a heartbeat refreshes the lock of another"
	}
	n := 0
	for _, p := range s.p {
		if g.fixed && p.window > 0 {
			n++
		}
	}
	if n > 1 {
		return "two holders"
	}
	return ""
}

func (g gerrit) show(s gerritState) string {
	out := "no row"
	if s.row != 0 {
		out = fmt.Sprintf("row of %s, T%d, heartbeat %d old", names[s.owner], s.token, s.age)
	}
	return out
}

func (g gerrit) next(s gerritState, emit func(Step, gerritState)) {
	if s.bad != 0 {
		return
	}
	touch := func(t *gerritState) {
		for i := range t.p {
			t.p[i].fresh, t.p[i].seen = 0, 0
		}
	}
	blame := func(t *gerritState, what uint8) {
		if g.judged == what || g.fixed {
			t.bad = what
		}
	}
	take := func(t *gerritState, i uint8) {
		touch(t)
		t.row, t.owner, t.token, t.age = 2, i, t.next, 0
		t.next++
		t.p[i] = gerritProc{pc: gHolds, token: t.token}
		if g.fixed {
			t.p[i].window, t.p[i].fresh = g.ttl, 1
		}
	}
	for i := range g.n {
		p := s.p[i]
		do := func(what string, f func(t *gerritState, p *gerritProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{Who: names[i], What: what}, t)
		}
		switch p.pc {
		case gIdle:
			if s.next > g.tokens {
				break
			}
			switch {
			case s.row == 0 || s.row == 1:
				do("takes the free lock", func(t *gerritState, _ *gerritProc) { take(t, i) })
			case !g.fixed && s.age >= g.ttl:
				do("reads a stale heartbeat", func(_ *gerritState, p *gerritProc) { p.pc, p.token = gStale, s.token })
			case g.fixed && p.fresh == 0:
				do("looks", func(_ *gerritState, p *gerritProc) { p.fresh = 1 })
			case g.fixed && p.seen >= g.ttl:
				do("has seen the row stand for the TTL", func(_ *gerritState, p *gerritProc) { p.pc, p.token = gStale, s.token })
			}
		case gStale:
			if g.fixed {
				do("takes over, if the row is still the one it judged", func(t *gerritState, p *gerritProc) {
					if p.fresh == 0 {
						*p = gerritProc{}
						return
					}
					if s.age < g.ttl {
						blame(t, gStolen)
					}
					take(t, i)
				})
				break
			}
			do("takes over in one transaction", func(t *gerritState, p *gerritProc) {
				if s.row != 2 || s.token != p.token || s.reclaims>>p.token&1 == 1 || s.next > g.tokens {
					*p = gerritProc{}
					return
				}
				if s.age < g.ttl {
					blame(t, gStolen)
				}
				t.reclaims |= 1 << p.token
				take(t, i)
			})
		case gHolds:
			if g.fixed {
				do("refreshes, if the row is still its own", func(t *gerritState, p *gerritProc) {
					if p.fresh == 0 || p.window == 0 {
						*p = gerritProc{}
						return
					}
					if s.owner != i {
						blame(t, gRefreshed)
					}
					touch(t)
					t.age, p.window, p.fresh = 0, g.ttl, 1
				})
				do("gives up the row, if it is still its own", func(t *gerritState, p *gerritProc) {
					if p.fresh == 1 {
						if s.owner != i {
							blame(t, gDeleted)
						}
						touch(t)
						t.row = 1
					}
					*p = gerritProc{}
				})
				break
			}
			mine := s.row == 2 && s.token == p.token
			do("checks its token to refresh", func(_ *gerritState, p *gerritProc) {
				if p.pc = gBeats; !mine {
					*p = gerritProc{}
				}
			})
			do("checks its token to release", func(_ *gerritState, p *gerritProc) {
				if p.pc = gCloses; !mine {
					*p = gerritProc{}
				}
			})
			if s.reclaims != 0 {
				do("removes the reclaim row", func(t *gerritState, _ *gerritProc) { t.reclaims = 0 })
			}
		case gBeats:
			do("refreshes the heartbeat", func(t *gerritState, p *gerritProc) {
				if p.pc = gHolds; s.row == 2 {
					if s.owner != i {
						blame(t, gRefreshed)
					}
					t.age = 0
				}
			})
		case gCloses:
			do("deletes the row", func(t *gerritState, p *gerritProc) {
				if s.row == 2 && s.owner != i {
					blame(t, gDeleted)
				}
				t.row, t.owner, t.token, t.age = 0, 0, 0, 0
				*p = gerritProc{}
			})
		}
	}
	t := s
	if t.row == 2 {
		t.age = min(t.age+1, g.ttl)
	}
	for i := range t.p {
		if p := &t.p[i]; g.fixed {
			if p.window > 0 {
				p.window--
			}
			if p.fresh == 1 && p.pc == gIdle {
				p.seen = min(p.seen+1, g.ttl)
			}
		}
	}
	emit(Step{What: "a tick passes"}, t)
}

func gerritCases() (cases []Case) {
	wrong := gerrit{n: 3, ttl: 2, tokens: 5}
	for _, v := range []struct {
		judged uint8
		must   string
	}{
		{gStolen, "a lock with a fresh heartbeat is taken over"},
		{gDeleted, "release deletes the lock of another"},
		{gRefreshed, "a heartbeat refreshes the lock of another"},
	} {
		wrong.judged = v.judged
		cases = append(cases, of("gerrit", fmt.Sprintf("as written (G%d); 3 clients, TTL 2", v.judged), v.must, Quick, wrong.model()))
	}
	right := gerrit{n: 3, ttl: 2, tokens: 6, fixed: true}
	return append(cases, of("gerrit", "repaired: every statement names the row that was judged; 3 clients, TTL 2, 6 grants", "", Quick, right.model()))
}
