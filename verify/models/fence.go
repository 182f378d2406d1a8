package models

import "fmt"

// A claim with a block of tokens is handed on inside a process, and can be taken over by another at any
// time. Each holder writes to a resource in the store's database, behind the fence, and such a
// write may come late.

type fenceState struct {
	owner       uint8 // 1 + process, of the record
	first, last uint8 // tokens of its claim
	next        uint8
	memory      uint8 // kept beside the record
	written     uint8 // the highest token that has written
	p           [2]fenceProc
	bad         uint8
}

type fenceProc struct {
	first, last uint8    // of the block it believes in
	at          uint8    // the token of the goroutine whose turn it is; 0 none
	late        [2]uint8 // tokens of writes on their way
}

type fenceWorld struct {
	block, tokens uint8
	broken        Rule
}

const (
	claimOnly    Rule = "the fence looks at the claim only"
	ownerOnly    Rule = "the fence looks at the owner only"
	memoryOnly   Rule = "the fence looks at its memory only"
	pastTheBlock Rule = "hand-off past the block"
	blockIgnored Rule = "the next claim ignores the block"
)

const (
	olderBehindNewer = "an older holder writes behind a newer"
	withoutLock      = "a write without the lock"
	tokenTwice       = "a token is given twice"
)

func (w fenceWorld) model() Model[fenceState] {
	return Model[fenceState]{Init: []fenceState{{next: 1}}, Next: w.next,
		Bad: func(s fenceState) string {
			return [...]string{"", olderBehindNewer, withoutLock, tokenTwice}[s.bad]
		},
		Show: func(s fenceState) string {
			return fmt.Sprintf("record: process %d with %d to %d, memory %d, written by %d", s.owner, s.first, s.last, s.memory, s.written)
		}}
}

func (w fenceWorld) next(s fenceState, emit func(Step, fenceState)) {
	if s.bad != 0 {
		return
	}
	for i := range uint8(2) {
		p := s.p[i]
		do := func(what string, f func(t *fenceState, p *fenceProc)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{Who: names[i], What: what}, t)
		}
		if s.owner != 1+i && s.next+w.block <= w.tokens {
			do("takes the lock, over the other's claim if there is one", func(t *fenceState, p *fenceProc) {
				t.owner, t.first, t.last = 1+i, s.next, s.next+w.block-1
				if t.next = t.last + 1; w.broken == blockIgnored {
					t.next = t.first + 1
				}
				if o := s.p[1-i]; o.at >= t.first && o.at > 0 {
					t.bad = 3
				}
				p.first, p.last, p.at = t.first, t.last, t.first
			})
		}
		if p.at == 0 {
			continue
		}
		if p.at < p.last || w.broken == pastTheBlock && p.at < w.tokens {
			do("hands on to the next goroutine", func(t *fenceState, p *fenceProc) {
				p.at++
				if o := s.p[1-i]; o.at == p.at {
					t.bad = 3
				}
			})
		}
		for j, token := range p.late {
			if token == 0 {
				do("sends a write", func(_ *fenceState, p *fenceProc) { p.late[j] = p.at })
				break
			}
		}
		do("gives back", func(t *fenceState, p *fenceProc) {
			p.at, p.first, p.last = 0, 0, 0
			if s.owner == 1+i {
				t.owner, t.first, t.last = 0, 0, 0
			}
		})
	}
	for i := range uint8(2) {
		for j, token := range s.p[i].late {
			if token == 0 {
				continue
			}
			t := s
			t.p[i].late[j] = 0
			holds := s.owner == 1+i && s.first <= token && token <= s.last
			passes := holds && token >= s.memory
			switch w.broken {
			case claimOnly:
				passes = holds
			case ownerOnly:
				passes = s.owner == 1+i && token >= s.memory
			case memoryOnly:
				passes = token >= s.memory
			}
			what := fmt.Sprintf("'s write with token %d is refused", token)
			if passes {
				what = fmt.Sprintf("'s write with token %d passes the fence", token)
				t.memory = max(s.memory, token)
				switch {
				case token < s.written:
					t.bad = 1
				case !holds:
					t.bad = 2
				}
				t.written = max(s.written, token)
			}
			emit(Step{Who: names[i], What: what}, t)
		}
	}
}

func fenceCases() []Case {
	w := func(rule Rule) Model[fenceState] { return fenceWorld{3, 10, rule}.model() }
	return []Case{
		of("fence", "2 processes, blocks of 3, 2 late writes each, up to 9 tokens", "", Quick, w("")),
		of("fence", string(claimOnly), olderBehindNewer, Quick, w(claimOnly)),
		of("fence", string(ownerOnly), withoutLock, Quick, w(ownerOnly)),
		of("fence", string(memoryOnly), withoutLock, Quick, w(memoryOnly)),
		of("fence", string(pastTheBlock), tokenTwice, Quick, w(pastTheBlock)),
		of("fence", string(blockIgnored), tokenTwice, Quick, w(blockIgnored)),
	}
}
