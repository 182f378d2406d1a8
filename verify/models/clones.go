package models

import "fmt"

// A machine was cloned: two processes go on with one session, and each believes in its locks. Each heartbeat
// attempt has a nonce of its own, so that one of them finds a beat that is not its own.

type cloneState struct {
	since    uint8 // ticks since the machine was cloned
	writer   uint8 // 0 before, 1 + process: whose beat stands
	unknowns uint8
	p        [2]cloneProc
}

type cloneProc struct{ window, known, beat, old, age, lostTo uint8 }

type cloneWorld struct {
	ttl, unknowns uint8
	broken        Rule
}

const noNonce Rule = "heartbeats are told apart by their number alone"

func (w cloneWorld) model() Model[cloneState] {
	var all []cloneState
	for window := range w.ttl {
		s := cloneState{unknowns: w.unknowns}
		for i := range s.p {
			s.p[i] = cloneProc{window: window + 1, known: fresh}
		}
		all = append(all, s)
	}
	return Model[cloneState]{Init: all, Next: w.next,
		Bad: func(s cloneState) string {
			if s.since == w.ttl && s.p[0].window > 0 && s.p[1].window > 0 {
				return "two go on with one session"
			}
			return ""
		},
		Show: func(s cloneState) string {
			return fmt.Sprintf("%d ticks after, windows %d and %d", s.since, s.p[0].window, s.p[1].window)
		}}
}

func (w cloneWorld) next(s cloneState, emit func(Step, cloneState)) {
	for i := range uint8(2) {
		p := s.p[i]
		do := func(what string, f func(t *cloneState, p *cloneProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{Who: names[i], What: what}, t)
		}
		if p.window > 0 && p.beat == none {
			do("sends a heartbeat", func(_ *cloneState, p *cloneProc) { p.beat, p.old, p.age = sent, p.known, 0 })
		}
		if p.beat == sent {
			do("'s heartbeat reaches the store", func(t *cloneState, p *cloneProc) {
				if p.old != fresh {
					p.beat, p.lostTo = lost, s.writer
					return
				}
				t.writer = 1 + i
				p.beat = won
				o := &t.p[1-i]
				o.known = stale
				if o.beat == sent {
					o.old = stale
				}
			})
		}
		if p.beat == won || p.beat == lost {
			do("hears of its heartbeat", func(_ *cloneState, p *cloneProc) {
				mine := p.beat == won || p.lostTo == 1+i || w.broken == noNonce
				*p = cloneProc{window: p.window, known: p.known, age: p.age}
				switch {
				case !mine:
					*p = cloneProc{} // lost, for ever
				case p.window > 0:
					p.window = max(p.window, w.ttl-p.age)
					if p.known = fresh; s.writer != 1+i && w.broken != noNonce {
						p.known = stale
					}
				}
				p.age = 0
			})
			if s.unknowns > 0 {
				do("never hears of its heartbeat", func(t *cloneState, p *cloneProc) {
					t.unknowns--
					*p = cloneProc{window: p.window, known: stale}
				})
			}
		}
	}
	t := s
	t.since = min(s.since+1, w.ttl)
	for i := range t.p {
		p := &t.p[i]
		p.window -= min(1, p.window)
		if p.beat == sent || p.beat == won {
			p.age = min(p.age+1, w.ttl)
		}
		if p.window == 0 {
			p.known = stale
		}
	}
	emit(Step{What: "a tick passes"}, t)
}

func cloneCases() []Case {
	return []Case{
		of("clones", "two processes with one session; TTL 6, 2 unknown", "", Quick, cloneWorld{6, 2, ""}.model()),
		of("clones", string(noNonce), "two go on with one session", Quick, cloneWorld{6, 2, noNonce}.model()),
	}
}
