package models

import "fmt"

// spindle as it was written: a leader beats a row; who finds it stale inserts a second
// row, named by the token, and then puts its own token into the first. And the same in
// one conditional statement.

type spindleState struct {
	row, token, age uint8 // the main row: whether it is there, its token and how old its heartbeat is
	owner           uint8 // who wrote it last
	second          uint8 // bit t: the row name_t is there
	next            uint8 // commit timestamps
	crashes         uint8
	p               [3]spindleProc
	bad             uint8
}

type spindleProc struct{ pc, token, seen, fresh uint8 }

const (
	sIdle = iota
	sStale
	sInserted
	sLeads
	sDead
)

type spindle struct {
	n, ttl, tokens, crashes uint8
	fixed                   bool
	judged                  uint8 // 1 progress, 2 deposed, 3 backwards; 0 all
}

func (w spindle) model() Model[spindleState] {
	m := Model[spindleState]{Init: []spindleState{{next: 1, crashes: w.crashes}}, Next: w.next, Show: w.show,
		Bad: func(s spindleState) string {
			return [...]string{"", "", "a leader with a fresh heartbeat is deposed", "the token goes backwards"}[s.bad]
		}}
	if w.judged <= 1 {
		m.Done = func(s spindleState) bool {
			dead := uint8(0)
			for _, p := range s.p[:w.n] {
				if p.pc == sLeads && p.token == s.token {
					return true
				}
				if p.pc == sDead {
					dead++
				}
			}
			return dead == w.n || s.next > w.tokens
		}
	}
	return m
}

func (w spindle) show(s spindleState) string {
	out := fmt.Sprintf("T%d, heartbeat %d old", s.token, s.age)
	for t := range uint8(8) {
		if s.second>>t&1 == 1 {
			out += fmt.Sprintf(", row name_T%d", t)
		}
	}
	return out
}

func (w spindle) next(s spindleState, emit func(Step, spindleState)) {
	if s.bad != 0 {
		return
	}
	touch := func(t *spindleState) {
		for i := range t.p {
			t.p[i].fresh = 0
		}
	}
	blame := func(t *spindleState, what uint8) {
		if w.judged == what || w.judged == 0 {
			t.bad = what
		}
	}
	for i := range w.n {
		p := s.p[i]
		do := func(what string, fault bool, f func(t *spindleState, p *spindleProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{names[i], what, fault}, t)
		}
		if p.pc != sDead && s.crashes > 0 {
			do("crashes", true, func(t *spindleState, p *spindleProc) { *p, t.crashes = spindleProc{pc: sDead}, t.crashes-1 })
		}
		lead := func(t *spindleState, p *spindleProc, token uint8) {
			if s.row == 1 && s.age < w.ttl && s.owner != i {
				blame(t, 2)
			}
			if token < s.token {
				blame(t, 3)
			}
			touch(t)
			t.row, t.token, t.age, t.owner = 1, token, 0, i
			*p = spindleProc{pc: sLeads, token: token}
		}
		switch {
		case p.pc == sIdle && s.next <= w.tokens:
			if s.row == 0 {
				do("inserts the row", false, func(t *spindleState, p *spindleProc) { lead(t, p, s.next); t.next++ })
			} else if s.age >= w.ttl {
				do("finds the heartbeat stale", false, func(_ *spindleState, p *spindleProc) { p.pc, p.seen, p.fresh = sStale, s.token, 1 })
			}
		case p.pc == sStale && w.fixed:
			do("takes over in one statement, if the row is still the one it judged", false, func(t *spindleState, p *spindleProc) {
				if p.fresh == 1 && s.next <= w.tokens {
					lead(t, p, s.next)
					t.next++
				} else {
					*p = spindleProc{}
				}
			})
		case p.pc == sStale:
			do("inserts the second row", false, func(t *spindleState, p *spindleProc) {
				if s.second>>p.seen&1 == 1 || s.next > w.tokens {
					*p = spindleProc{} // already exists
					return
				}
				t.second |= 1 << p.seen
				*p = spindleProc{pc: sInserted, token: s.next}
				t.next++
			})
		case p.pc == sInserted:
			do("puts its token into the row", false, func(t *spindleState, p *spindleProc) { lead(t, p, p.token) })
		case p.pc == sLeads && s.token == p.token:
			do("beats", false, func(t *spindleState, _ *spindleProc) {
				touch(t)
				t.age, t.second = 0, 0
			})
		case p.pc == sLeads:
			do("sees another token and steps down", false, func(_ *spindleState, p *spindleProc) { *p = spindleProc{} })
		}
	}
	t := s
	if t.row == 1 {
		t.age = min(t.age+1, w.ttl)
	}
	emit(Step{What: "a tick passes"}, t)
}

func spindleCases() []Case {
	wrong := func(judged, n, crashes uint8) Model[spindleState] {
		return spindle{n: n, ttl: 2, tokens: 6, crashes: crashes, judged: judged}.model()
	}
	right := spindle{n: 3, ttl: 2, tokens: 7, crashes: 2, fixed: true}
	return []Case{
		of("spindle", "as written (S1); 3 candidates, 2 crashes", Stuck, Quick, wrong(1, 3, 2)),
		of("spindle", "as written (S2); 3 candidates", "a leader with a fresh heartbeat is deposed", Quick, wrong(2, 3, 0)),
		of("spindle", "as written (S3); 3 candidates", "the token goes backwards", Quick, wrong(3, 3, 0)),
		of("spindle", "repaired: one conditional statement; 3 candidates, 2 crashes, 7 terms", "", Quick, right.model()),
	}
}
