package models

import "fmt"

// Processes that want several names. All that are missing are tried; above the lowest that was refused
// everything is given back; that one is waited for; and so on.

type setState struct {
	queue [3][3]uint8 // for each name: 1 + process, the holder first
	p     [3]setProc
}

type setProc struct {
	pc      uint8
	has     uint8 // bits of names
	tried   uint8 // bits of names tried in this go
	waiting uint8 // 1 + name
	back    uint8 // bits of names being given back
	left    uint8
}

type setWorld struct {
	wants  []uint8 // bits of names, for each process
	rounds uint8
	broken Rule
}

const keepsHigher Rule = "a set keeps what it has out of order"

const (
	setIdle = iota
	setTries
	setBack
	setWaits
	setHolds
)

func (w setWorld) model() Model[setState] {
	var s setState
	for i := range w.wants {
		s.p[i].left = w.rounds
	}
	return Model[setState]{Init: []setState{s}, Next: w.next,
		Bad: func(s setState) string {
			for i, p := range s.p {
				for j, q := range s.p[:i] {
					if p.pc == setHolds && q.pc == setHolds && w.wants[i]&w.wants[j] != 0 {
						return "two holders"
					}
				}
			}
			return ""
		},
		Done: func(s setState) bool {
			for _, p := range s.p {
				if p.pc != setIdle || p.left > 0 {
					return false
				}
			}
			return true
		},
		Show: func(s setState) string { return fmt.Sprint(s.queue[0], s.queue[1], s.queue[2]) }}
}

func (w setWorld) next(s setState, emit func(Step, setState)) {
	drop := func(t *setState, name int, i uint8) {
		q := &t.queue[name]
		for k := range q {
			if q[k] == 1+i {
				copy(q[k:], q[k+1:])
				q[len(q)-1] = 0
			}
		}
	}
	for i := range uint8(len(w.wants)) {
		p := s.p[i]
		do := func(what string, f func(t *setState, p *setProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{Who: names[i], What: what}, t)
		}
		missing := w.wants[i] &^ p.has
		switch p.pc {
		case setIdle:
			if p.left > 0 {
				do("begins", func(_ *setState, p *setProc) { p.pc, p.left = setTries, p.left-1 })
			}
		case setTries:
			untried := missing &^ p.tried
			for name := range 3 {
				if untried>>name&1 == 1 {
					do(fmt.Sprintf("tries %d", name), func(t *setState, p *setProc) {
						p.tried |= 1 << name
						if t.queue[name][0] == 0 {
							t.queue[name][0] = 1 + i
							p.has |= 1 << name
						}
					})
				}
			}
			switch {
			case missing == 0:
				do("has all", func(_ *setState, p *setProc) { p.pc, p.tried = setHolds, 0 })
			case untried == 0:
				do("gives back what is above the lowest that it did not get", func(_ *setState, p *setProc) {
					low := missing & -missing
					p.pc, p.tried, p.back = setBack, 0, p.has&^(low-1)
					if w.broken == keepsHigher {
						p.back = 0
					}
				})
			}
		case setBack:
			for name := range 3 {
				if p.back>>name&1 == 1 {
					do(fmt.Sprintf("leaves %d", name), func(t *setState, p *setProc) {
						drop(t, name, i)
						p.back &^= 1 << name
						p.has &^= 1 << name
					})
				}
			}
			if p.back == 0 {
				do("queues for it", func(t *setState, p *setProc) {
					for name := range 3 {
						if missing>>name&1 == 0 {
							continue
						}
						for k := range t.queue[name] {
							if t.queue[name][k] == 0 {
								t.queue[name][k] = 1 + i
								break
							}
						}
						p.pc, p.waiting = setWaits, uint8(1+name)
						return
					}
				})
			}
		case setWaits:
			if name := p.waiting - 1; s.queue[name][0] == 1+i {
				do(fmt.Sprintf("has been granted %d", name), func(_ *setState, p *setProc) {
					p.pc, p.waiting, p.has = setTries, 0, p.has|1<<name
				})
			}
		case setHolds:
			do("releases all", func(t *setState, p *setProc) {
				for name := range 3 {
					drop(t, name, i)
				}
				*p = setProc{left: p.left}
			})
		}
	}
}

func setCases() []Case {
	return []Case{
		of("sets", "3 processes for {0,1}, {1,2}, {0,2}, 2 rounds", "", Quick, setWorld{wants: []uint8{3, 6, 5}, rounds: 2}.model()),
		of("sets", "3 processes for {0,1,2}, {0,1,2}, {1}, 2 rounds", "", Quick, setWorld{wants: []uint8{7, 7, 2}, rounds: 2}.model()),
		of("sets", string(keepsHigher)+"; {0,1}, {1,2}, {0,2}", Stuck, Quick, setWorld{wants: []uint8{3, 6, 5}, rounds: 1, broken: keepsHigher}.model()),
	}
}
