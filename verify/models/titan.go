package models

import "fmt"

// Titan's locker: write a claim with the time, wait, read, and hold the lock if the
// claim is the first. Clocks of processes differ by at most skew ticks, and a write that counts takes at
// most lockWait ticks to be seen.

type titanState struct {
	now uint8
	p   [3]titanProc
}

type titanProc struct {
	pc      uint8
	behind  uint8 // its clock
	stamp   uint8
	written uint8 // when, by true time
}

const (
	tIdle = iota
	tWriting
	tWaiting
	tHolds
	tRefused
)

type titan struct{ n, lockWait, skew, extra uint8 }

func (w titan) model() Model[titanState] {
	var all []titanState
	var set func(s titanState, i uint8)
	set = func(s titanState, i uint8) {
		if i == w.n {
			all = append(all, s)
			return
		}
		for d := range w.skew + 1 {
			s.p[i].behind = d
			set(s, i+1)
		}
	}
	set(titanState{now: w.skew}, 0)
	return Model[titanState]{Init: all, Next: w.next,
		Bad: func(s titanState) string {
			n := 0
			for _, p := range s.p {
				if p.pc == tHolds {
					n++
				}
			}
			if n > 1 {
				return "two holders"
			}
			return ""
		},
		Show: func(s titanState) string {
			out := fmt.Sprintf("time %d", s.now)
			for i, p := range s.p[:w.n] {
				if p.pc != tIdle {
					out += fmt.Sprintf(", %s at %d (%s)", names[i], p.stamp, [...]string{"", "on its way", "there", "HOLDS", "refused"}[p.pc])
				}
			}
			return out
		}}
}

func (w titan) next(s titanState, emit func(Step, titanState)) {
	late := false
	for i := range w.n {
		p := s.p[i]
		do := func(what string, f func(p *titanProc)) {
			t := s
			f(&t.p[i])
			emit(Step{Who: names[i], What: what}, t)
		}
		switch p.pc {
		case tIdle:
			do("writes a claim", func(p *titanProc) { p.pc, p.stamp, p.written = tWriting, s.now-p.behind, s.now })
		case tWriting:
			do("'s claim is there", func(p *titanProc) { p.pc = tWaiting })
			late = late || s.now-p.written == w.lockWait
		case tWaiting:
			if s.now-p.written < w.lockWait+w.extra {
				break
			}
			first := true
			for j, o := range s.p[:w.n] {
				// Of equal times the process id decides: here the later letter goes first.
				if uint8(j) != i && (o.pc == tWaiting || o.pc == tHolds) && (o.stamp < p.stamp || o.stamp == p.stamp && uint8(j) > i) {
					first = false
				}
			}
			if first {
				do("reads that it is the first, and holds", func(p *titanProc) { p.pc = tHolds })
			} else {
				do("reads that another is before it", func(p *titanProc) { p.pc = tRefused })
			}
		}
	}
	if !late && s.now < w.skew+2*w.lockWait+w.extra+w.skew+3 {
		t := s
		t.now++
		emit(Step{What: "a tick passes"}, t)
	}
}

func titanCases() (cases []Case) {
	for skew := range uint8(4) {
		for extra := range skew + 2 {
			w := titan{n: 3, lockWait: 2, skew: skew, extra: extra}
			if skew > 1 {
				w.n = 2
			}
			world := fmt.Sprintf("lockWait 2, skew %d, wait lockWait+%d; %d processes", skew, extra, w.n)
			if extra <= skew {
				cases = append(cases, of("titan", "as written (T1); "+world, "two holders", Quick, w.model()))
			} else {
				cases = append(cases, of("titan", "repaired; "+world, "", Quick, w.model()))
			}
		}
	}
	return cases
}
