package models

import "fmt"

// A store that fails over loses the last writes it had confirmed, which assumption A1 excludes.
// What is left then: tokens still grow if versions follow a clock, and a resource that refuses
// tokens below the highest it has seen is written in the order of tokens. Exclusion is not left.

type failoverState struct {
	clock             uint8    // of the store, or of the one that takes over: it never goes back
	version           [3]uint8 // now, and before the last writes
	holder            [3]uint8
	last              uint8 // the highest token given
	written           uint8 // the highest token that the resource has seen
	grants, writtenBy uint8 // how many grants there were, and whose write the resource saw last
	lost              uint8 // failovers left
	p                 [3]failoverProc
	bad               uint8
}

type failoverProc struct{ token, grant, late, lateGrant uint8 }

type failoverWorld struct {
	writes, failovers uint8
	broken            Rule
	exclusion         bool // is judged
}

const countedVersions Rule = "versions are counted"

func (w failoverWorld) model() Model[failoverState] {
	return Model[failoverState]{Init: []failoverState{{lost: w.failovers}}, Next: w.next,
		Bad: func(s failoverState) string {
			n := 0
			for _, p := range s.p {
				if p.token > 0 {
					n++
				}
			}
			switch {
			case s.bad == 1:
				return "the token goes back"
			case s.bad == 2:
				return olderBehindNewer
			case n > 1 && w.exclusion:
				return "two holders"
			}
			return ""
		},
		Show: func(s failoverState) string {
			return fmt.Sprintf("version %d, holder %d, last token %d", s.version[0], s.holder[0], s.last)
		}}
}

func (w failoverWorld) next(s failoverState, emit func(Step, failoverState)) {
	if s.bad != 0 {
		return
	}
	write := func(t *failoverState, holder uint8) {
		copy(t.version[1:], s.version[:2])
		copy(t.holder[1:], s.holder[:2])
		t.clock++
		t.version[0], t.holder[0] = t.clock, holder
		if w.broken == countedVersions {
			t.version[0] = s.version[0] + 1
		}
	}
	for i := range uint8(3) {
		p := s.p[i]
		do := func(what string, f func(t *failoverState)) {
			t := s
			f(&t)
			emit(Step{Who: names[i], What: what}, t)
		}
		if s.clock < w.writes {
			if p.token == 0 && s.holder[0] == 0 {
				do("takes the lock", func(t *failoverState) {
					write(t, 1+i)
					if t.p[i].token = t.version[0]; t.version[0] <= s.last {
						t.bad = 1
					}
					t.grants++
					t.p[i].grant = t.grants
					t.last = max(s.last, t.version[0])
				})
			}
			if p.token > 0 {
				do("releases", func(t *failoverState) {
					if t.p[i].token, t.p[i].grant = 0, 0; s.holder[0] == 1+i {
						write(t, 0)
					}
				})
			}
		}
		if p.token > 0 && p.late == 0 {
			do("sends a write", func(t *failoverState) { t.p[i].late, t.p[i].lateGrant = p.token, p.grant })
		}
		if p.late > 0 {
			do("'s write reaches the resource", func(t *failoverState) {
				t.p[i].late, t.p[i].lateGrant = 0, 0
				if p.late < s.written {
					return // refused
				}
				if t.written = p.late; p.lateGrant < s.writtenBy {
					t.bad = 2
				}
				t.writtenBy = p.lateGrant
			})
		}
	}
	for n := 1; n < 3 && s.lost > 0; n++ {
		t := s
		t.lost--
		copy(t.version[:], s.version[n:])
		copy(t.holder[:], s.holder[n:])
		emit(Step{What: fmt.Sprintf("the store fails over and has lost the last %d writes", n), Fault: true}, t)
	}
}

func failoverCases() []Case {
	w := failoverWorld{writes: 6, failovers: 2}
	counted, both := w, w
	counted.broken, both.exclusion = countedVersions, true
	return []Case{
		of("failover", "versions by a clock, 3 clients, 6 writes, the last 1 or 2 lost twice: tokens", "", Quick, w.model()),
		of("failover", string(countedVersions)+", not by a clock", "the token goes back", Quick, counted.model()),
		of("failover", "a store that loses confirmed writes: exclusion", "two holders", Quick, both.model()),
	}
}
