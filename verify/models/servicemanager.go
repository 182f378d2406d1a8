package models

import "fmt"

// The locks of Service Manager as they were written. First the shared ones: a row in Lock says that
// somebody holds, rows in LockShared say who shares, and they are
// written and deleted one by one. Repaired, each step locks the head row.

type sharedState struct {
	head uint8 // the row in Lock: 0 none, 1 shared, 2 exclusive
	rows uint8 // bit p: its row in LockShared
	p    [3]sharedProc
}

type sharedProc struct{ pc, left uint8 }

const (
	hIdle  = iota
	hJoins // has seen or written the shared head row, not yet its own
	hShares
	hLeaves // has deleted its own row
	hExclusive
)

type shared struct {
	fixed  bool
	rounds uint8
}

func (w shared) model() Model[sharedState] {
	s := sharedState{}
	for i := range s.p {
		s.p[i].left = w.rounds
	}
	return Model[sharedState]{Init: []sharedState{s}, Next: w.next,
		Bad: func(s sharedState) string {
			if s.p[2].pc == hExclusive && (s.p[0].pc == hShares || s.p[1].pc == hShares) {
				return "a writer beside a reader"
			}
			return ""
		},
		Done: func(s sharedState) bool {
			for _, p := range s.p {
				if p.pc != hIdle || p.left > 0 {
					return false
				}
			}
			return s.head == 0
		},
		Show: func(s sharedState) string {
			return fmt.Sprintf("Lock %s, LockShared %03b", [...]string{"-", "shared", "exclusive"}[s.head], s.rows)
		}}
}

func (w shared) next(s sharedState, emit func(Step, sharedState)) {
	who := [...]string{"reader A", "reader B", "writer C"}
	for i := range uint8(3) {
		p := s.p[i]
		do := func(what string, f func(t *sharedState, p *sharedProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{Who: who[i], What: what}, t)
		}
		switch {
		case p.pc == hIdle && p.left == 0:
		case i == 2 && p.pc == hIdle && s.head == 0:
			do("inserts an exclusive row", func(t *sharedState, p *sharedProc) { t.head, p.pc, p.left = 2, hExclusive, p.left-1 })
		case i == 2 && p.pc == hExclusive:
			do("deletes its row", func(t *sharedState, p *sharedProc) { t.head, p.pc = 0, hIdle })
		case i == 2:
		case w.fixed && p.pc == hIdle && s.head != 2:
			do("joins, with the head row locked", func(t *sharedState, p *sharedProc) {
				t.head, t.rows, p.pc, p.left = 1, s.rows|1<<i, hShares, p.left-1
			})
		case w.fixed && p.pc == hShares:
			do("leaves, with the head row locked", func(t *sharedState, p *sharedProc) {
				if t.rows &^= 1 << i; t.rows == 0 {
					t.head = 0
				}
				p.pc = hIdle
			})
		case p.pc == hIdle && s.head == 0:
			do("inserts the shared head row", func(t *sharedState, p *sharedProc) { t.head, p.pc, p.left = 1, hJoins, p.left-1 })
		case p.pc == hIdle && s.head == 1:
			do("finds the head row shared", func(_ *sharedState, p *sharedProc) { p.pc, p.left = hJoins, p.left-1 })
		case p.pc == hJoins:
			do("inserts its own row, and holds", func(t *sharedState, p *sharedProc) { t.rows, p.pc = s.rows|1<<i, hShares })
		case p.pc == hShares:
			do("deletes its own row", func(t *sharedState, p *sharedProc) { t.rows, p.pc = s.rows&^(1<<i), hLeaves })
		case p.pc == hLeaves:
			do("deletes the head row, if nobody shares any more", func(t *sharedState, p *sharedProc) {
				if s.rows == 0 && s.head == 1 {
					t.head = 0
				}
				p.pc = hIdle
			})
		}
	}
}

// The Suspected flag: waiters set it, the owner takes it down with each heartbeat, and a waiter that
// still finds it set when its time is over removes the lock. Repaired, a waiter remembers which
// heartbeat it saw, and judges that one.

type suspectState struct {
	flag, removed uint8
	silent        uint8 // ticks since the owner's heartbeat
	waiting       [2]uint8
	same          [2]uint8 // the heartbeat is the one that the waiter saw at first
}

type suspect struct {
	patience, period uint8
	fixed            bool
}

func (w suspect) model() Model[suspectState] {
	return Model[suspectState]{Init: []suspectState{{}},
		Bad: func(s suspectState) string {
			if s.removed == 1 {
				return "the lock of a healthy owner is removed"
			}
			return ""
		},
		Show: func(s suspectState) string {
			return fmt.Sprintf("suspected %d, last heartbeat %d ago", s.flag, s.silent)
		},
		Next: w.next}
}

func (w suspect) next(s suspectState, emit func(Step, suspectState)) {
	if s.removed == 1 {
		return
	}
	t := s
	t.flag, t.silent, t.same = 0, 0, [2]uint8{}
	emit(Step{Who: "A", What: "beats and takes the flag down"}, t)
	for i := range s.waiting {
		who := names[1+i]
		t := s
		switch over := s.waiting[i] > w.patience; {
		case s.waiting[i] == 0, w.fixed && s.same[i] == 0:
			t.flag, t.waiting[i], t.same[i] = 1, 1, 1
			emit(Step{Who: who, What: "suspects"}, t)
		case !w.fixed && s.flag == 0:
			// As it is written: the flag is looked at again, not since when it stands.
			if !over {
				break
			}
			t.waiting[i] = 0
			emit(Step{Who: who, What: "finds the flag down when its time is over"}, t)
		case over:
			t.removed = 1
			emit(Step{Who: who, What: "has waited long enough, finds it suspected, and removes the lock"}, t)
		}
	}
	if s.silent < w.period { // the owner is healthy: it never misses its time
		t := s
		t.silent++
		for i := range t.waiting {
			if t.waiting[i] > 0 {
				t.waiting[i] = min(t.waiting[i]+1, w.patience+1)
			}
		}
		emit(Step{What: "a tick passes"}, t)
	}
}

func serviceManagerCases() []Case {
	return []Case{
		of("service manager, shared", "as written (H1, H2); 2 readers, a writer, 2 rounds", "a writer beside a reader", Quick, shared{rounds: 2}.model()),
		of("service manager, shared", "repaired: each step locks the head row; 2 readers, a writer, 3 rounds", "", Quick, shared{fixed: true, rounds: 3}.model()),
		of("service manager, suspected", "as written (H5); an owner that beats every 2 ticks, 2 waiters with a patience of 10", "the lock of a healthy owner is removed", Quick, suspect{patience: 10, period: 2}.model()),
		of("service manager, suspected", "repaired: the heartbeat that was seen is judged; the same", "", Quick, suspect{patience: 10, period: 2, fixed: true}.model()),
	}
}
