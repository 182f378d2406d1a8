package models

import "fmt"

// Rows come and go: two clients take one name, blindly and by its version, in
// blocks of tokens, give it back, and a sweeper removes rows that hold nothing and raises
// the floor. Writes may be applied late. Tokens have to grow, and no write of the
// past may meet a record that it was not made for.

type sweepState struct {
	row, version, next uint8
	holder             uint8 // 0 nobody, 1 + client
	first              uint8 // its first token
	floor              uint8
	life               uint8 // how often the row was written, for ever
	last               uint8 // the highest token given
	unknowns           uint8
	p                  [2]sweepProc
	bad                uint8
}

type sweepProc struct {
	holds     uint8
	kind      uint8 // of the write on its way: 0 none, 1 blind, 2 by version, 3 release
	old, life uint8 // the version that it follows, and which life of it
	next      uint8
	seen      uint8 // has looked: version, life, next
	version   uint8
	seenLife  uint8
	seenNext  uint8
	ghost     uint8 // a write whose answer never comes
	ghostOld  uint8
	ghostLife uint8
	ghostNext uint8
}

type sweepWorld struct {
	block, versions uint8
	unknowns        uint8
	broken          Rule
}

const (
	noFloor      Rule = "no floor under swept rows"
	emptiedBelow Rule = "emptied below its block"
	ignoresBlock Rule = "the next grant ignores the block"
)

func (w sweepWorld) model() Model[sweepState] {
	return Model[sweepState]{Init: []sweepState{{unknowns: w.unknowns}}, Next: w.next,
		Bad: func(s sweepState) string {
			return [...]string{"", "the token goes back", "a write of the past meets another record"}[s.bad]
		},
		Show: func(s sweepState) string {
			return fmt.Sprintf("row %d version %d next %d holder %d, floor %d, last token %d", s.row, s.version, s.next, s.holder, s.floor, s.last)
		}}
}

// write is a write that has won: to holder (1 + client) or to nobody.
func (w sweepWorld) write(t *sweepState, to, next uint8) {
	if t.row == 0 {
		t.row, t.version = 1, t.floor
	}
	old := t.version
	t.version++
	t.life++
	t.holder, t.first = to, 0
	if to != 0 {
		t.first = t.version
		if w.broken != ignoresBlock {
			t.first = max(t.first, next)
		}
		if t.first <= t.last {
			t.bad = 1
		}
		t.last = t.first + w.block - 1
		t.next = t.first + w.block
		return
	}
	t.next = next
	if next <= old+2 || w.broken == emptiedBelow {
		t.next = 0
	}
}

func (w sweepWorld) next(s sweepState, emit func(Step, sweepState)) {
	if s.bad != 0 {
		return
	}
	apply := func(t *sweepState, i, kind, old, life, next uint8) bool {
		empty := t.row == 0 || t.holder == 0 && t.next == 0
		switch {
		case kind == 1 && empty:
			w.write(t, 1+i, 0)
			return true
		case kind != 1 && t.row == 1 && t.version == old:
			if t.life != life {
				t.bad = 2
			}
			to := uint8(0)
			if kind == 2 {
				to = 1 + i
			}
			w.write(t, to, next)
			return true
		}
		return false
	}
	for i := range uint8(2) {
		p := s.p[i]
		do := func(what string, f func(t *sweepState, p *sweepProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{Who: names[i], What: what}, t)
		}
		if p.kind == 0 && s.version < w.versions {
			if p.holds == 0 {
				do("writes its claim blindly", func(_ *sweepState, p *sweepProc) { p.kind = 1 })
				if p.seen == 0 && s.row == 1 && s.holder == 0 {
					do("looks", func(_ *sweepState, p *sweepProc) {
						p.seen, p.version, p.seenLife, p.seenNext = 1, s.version, s.life, s.next
					})
				}
				if p.seen == 1 {
					do("writes its claim over what it saw", func(_ *sweepState, p *sweepProc) {
						p.kind, p.old, p.life, p.next, p.seen, p.version, p.seenLife, p.seenNext = 2, p.version, p.seenLife, p.seenNext, 0, 0, 0, 0
					})
				}
			}
			if s.row == 1 && s.holder == 1+i {
				do("gives back", func(_ *sweepState, p *sweepProc) {
					p.kind, p.old, p.life, p.next, p.holds = 3, s.version, s.life, s.next, 0
				})
			}
		}
		if p.kind != 0 {
			do("'s write reaches the store", func(t *sweepState, p *sweepProc) {
				if apply(t, i, p.kind, p.old, p.life, p.next) && p.kind != 3 {
					p.holds = 1
				}
				p.kind, p.old, p.life, p.next = 0, 0, 0, 0
			})
			if s.unknowns > 0 && p.ghost == 0 {
				do("never hears of its write", func(t *sweepState, p *sweepProc) {
					p.ghost, p.ghostOld, p.ghostLife, p.ghostNext = p.kind, p.old, p.life, p.next
					p.kind, p.old, p.life, p.next = 0, 0, 0, 0
					t.unknowns--
				})
			}
		}
		if p.ghost != 0 {
			do("'s write of before is applied after all", func(t *sweepState, p *sweepProc) {
				if apply(t, i, p.ghost, p.ghostOld, p.ghostLife, p.ghostNext) && p.ghost != 3 {
					p.holds = 1
				}
				p.ghost, p.ghostOld, p.ghostLife, p.ghostNext = 0, 0, 0, 0
			})
		}
	}
	if s.row == 1 && s.holder == 0 {
		t := s
		if s.next == 0 {
			t.row, t.version = 0, 0
			if w.broken != noFloor {
				t.floor = max(s.floor, s.version)
			}
			emit(Step{Who: "the sweeper", What: "removes the row and raises the floor"}, t)
		} else if s.version < w.versions {
			w.write(&t, 0, s.next)
			emit(Step{Who: "the sweeper", What: "writes the free record again"}, t)
		}
	}
}

func sweepCases() (cases []Case) {
	one := sweepWorld{block: 1, versions: 7, unknowns: 2}
	three := sweepWorld{block: 3, versions: 9, unknowns: 2}
	cases = append(cases,
		of("sweep", "blocks of 1, 2 unknown, up to 7 versions", "", Quick, one.model()),
		of("sweep", "blocks of 3, 2 unknown, up to 9 versions", "", Medium, three.model()))
	three.unknowns = 1
	cases = append(cases, of("sweep", "blocks of 3, 1 unknown, up to 9 versions", "", Quick, three.model()))
	for _, rule := range []Rule{noFloor, emptiedBelow, ignoresBlock} {
		broken := three
		if broken.broken = rule; rule == noFloor {
			broken.block = 1
		}
		cases = append(cases, of("sweep", string(rule)+fmt.Sprintf("; blocks of %d", broken.block), "the token goes back", Quick, broken.model()))
	}
	return cases
}
