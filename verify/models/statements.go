package models

import "fmt"

// Compare-and-swap as statements of SQL: three writers that follow one version, in one of several
// shapes, under what databases do to them. At most one may win each version, and who won has to be told so.

type sqlState struct {
	version, by uint8
	locked      uint8 // 1 + writer: who has the row locked
	p           [3]sqlProc
	retries     uint8
}

type sqlProc struct {
	pc   uint8
	saw  uint8 // the version read, or of the snapshot
	told uint8 // 0 nothing, 1 won, 2 lost
	has  uint8 // whether its write was applied
}

// A sqlShape is how a swap is written.
type sqlShape string

const (
	oneStatement   sqlShape = "UPDATE … WHERE version = old, READ COMMITTED: the condition is evaluated again after waiting"
	readThenWrite  sqlShape = "SELECT, then UPDATE without a condition, READ COMMITTED"
	readThenTest   sqlShape = "SELECT, then UPDATE … WHERE version = old, READ COMMITTED"
	readForUpdate  sqlShape = "SELECT … FOR UPDATE, then UPDATE without a condition"
	snapshotFirst  sqlShape = "SELECT, then UPDATE, a snapshot of which the first committer wins"
	snapshotLatest sqlShape = "SELECT, then UPDATE, a snapshot for reads only (InnoDB's REPEATABLE READ)"
	lwtAttempt     sqlShape = "UPDATE … IF version = old, sent again after no answer, with the attempt in the row"
	lwtBare        sqlShape = "UPDATE … IF version = old, sent again after no answer, without the attempt in the row"
)

const (
	qIdle = iota
	qRead
	qSent
	qDone
)

type sqlWorld struct{ shape sqlShape }

func (w sqlWorld) model() Model[sqlState] {
	return Model[sqlState]{Init: []sqlState{{retries: 2}}, Next: w.next,
		Bad: func(s sqlState) string {
			n := 0
			for _, p := range s.p {
				if p.has == 1 {
					n++
				}
				if p.pc == qDone && p.has == 1 && p.told == 2 {
					return "told that it lost, and it has won"
				}
			}
			if n > 1 {
				return "two follow one version"
			}
			return ""
		},
		Done: func(s sqlState) bool {
			for _, p := range s.p {
				if p.pc != qDone {
					return false
				}
			}
			return true
		},
		Show: func(s sqlState) string { return fmt.Sprintf("version %d by %d", s.version, s.by) }}
}

func (w sqlWorld) next(s sqlState, emit func(Step, sqlState)) {
	lwt := w.shape == lwtAttempt || w.shape == lwtBare
	for i := range uint8(3) {
		p := s.p[i]
		do := func(what string, fault bool, f func(t *sqlState, p *sqlProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{names[i], what, fault}, t)
		}
		apply := func(t *sqlState, p *sqlProc) {
			t.version++
			t.by = 1 + i
			p.has, p.told = 1, 1
		}
		switch p.pc {
		case qIdle:
			switch {
			case w.shape == oneStatement || lwt:
				do("sends its statement", false, func(_ *sqlState, p *sqlProc) { p.pc = qSent })
			case w.shape == readForUpdate:
				if s.locked == 0 {
					do("reads and locks the row", false, func(t *sqlState, p *sqlProc) { p.pc, p.saw, t.locked = qRead, s.version, 1+i })
				}
			default:
				do("reads", false, func(_ *sqlState, p *sqlProc) { p.pc, p.saw = qRead, s.version })
			}
		case qRead:
			do("decides on what it read", false, func(t *sqlState, p *sqlProc) {
				if p.pc = qSent; p.saw != 0 { // another has followed version 0
					p.pc, p.told = qDone, 2
					if s.locked == 1+i {
						t.locked = 0
					}
				}
			})
		case qSent:
			do("'s write is applied", false, func(t *sqlState, p *sqlProc) {
				p.pc = qDone
				matches := s.version == 0
				switch w.shape {
				case readThenWrite, snapshotLatest, readForUpdate:
					matches = true
				case lwtAttempt:
					if s.by == 1+i { // its own earlier try
						p.told = 1
						return
					}
				}
				if s.locked == 1+i {
					t.locked = 0
				}
				if p.told = 2; matches {
					apply(t, p)
				}
			})
			if lwt && s.retries > 0 && s.version == 0 {
				do("'s write is applied, but it gets no answer and sends it again", true, func(t *sqlState, p *sqlProc) {
					t.retries--
					apply(t, p)
					p.told = 0
				})
			}
		}
	}
}

func sqlCases() (cases []Case) {
	for _, v := range []struct {
		shape sqlShape
		must  string
	}{
		{oneStatement, ""}, {readThenWrite, "two follow one version"}, {readThenTest, ""}, {readForUpdate, ""},
		{snapshotFirst, ""}, {snapshotLatest, "two follow one version"}, {lwtAttempt, ""}, {lwtBare, "told that it lost, and it has won"},
	} {
		cases = append(cases, of("statements", string(v.shape), v.must, Quick, sqlWorld{v.shape}.model()))
	}
	return cases
}
