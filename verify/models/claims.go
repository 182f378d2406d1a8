package models

import "fmt"

// Titan's claims as package claims makes them: a claim counts if it was there within lockWait, is
// read after lockWait + skew + a tick, is renewed by a second claim, and the holder
// puts a guard in front of each claim of others that came in between. Clocks differ by at most
// skew; a holder stops skew before its claims expire for the quickest of them.

type claimsState struct {
	now uint8
	p   [2]claimant
}

type claimant struct {
	pc     uint8
	behind uint8 // its clock
	window uint8 // ticks of trust left
	col    [2]claimColumn
	guard  [2]uint8 // 1: before the first claim of the other, and the second, as it was then
	stamps [2]uint8 // of these guards
	times  uint8    // claims it may still make
}

// A claimColumn is one claim in the row.
type claimColumn struct{ status, stamp, began uint8 }

type claimsWorld struct {
	lockWait, skew, expire, horizon uint8
	original                        bool // the second process is Titan's own: it discards at expire
	broken                          Rule
}

const (
	noGuards  Rule = "a renewal without guards"
	noTick    Rule = "the wait is a tick too short"
	fullTrust Rule = "a holder trusts its claim until it expires"
)

const (
	cIdle = iota
	cClaims
	cHolds
	cRenews // its second claim is on its way, or there
)

func (w claimsWorld) model() Model[claimsState] {
	var all []claimsState
	for a := range w.skew + 1 {
		for b := range w.skew + 1 {
			s := claimsState{now: w.skew}
			s.p[0].behind, s.p[1].behind = a, b
			s.p[0].times, s.p[1].times = 3, 2
			all = append(all, s)
		}
	}
	return Model[claimsState]{Init: all, Next: w.next,
		Bad: func(s claimsState) string {
			if s.p[0].window > 0 && s.p[0].pc >= cHolds && s.p[1].window > 0 && s.p[1].pc >= cHolds {
				return "two holders"
			}
			return ""
		},
		Show: func(s claimsState) string {
			out := fmt.Sprintf("time %d", s.now)
			for i, p := range s.p {
				out += fmt.Sprintf(", %s:", names[i])
				for _, c := range p.col {
					if c.status != none {
						out += fmt.Sprintf(" %d%s", c.stamp, [...]string{"", "?", ""}[c.status])
					}
				}
				for j, g := range p.guard {
					if g == 1 {
						out += fmt.Sprintf(" guard at %d", p.stamps[j])
					}
				}
				if p.pc >= cHolds {
					out += fmt.Sprintf(" HOLDS for %d", p.window)
				}
			}
			return out
		}}
}

func (w claimsWorld) wait() uint8 {
	if w.broken == noTick {
		return w.lockWait + w.skew
	}
	return w.lockWait + w.skew + 1
}

func (w claimsWorld) trust() uint8 {
	if w.broken == fullTrust {
		return w.expire
	}
	return w.expire - w.skew
}

// first says whether the first claim that counts for process i is its own.
func (w claimsWorld) first(s *claimsState, i int) bool {
	p, o := &s.p[i], &s.p[1-i]
	limit := w.expire + w.skew
	if w.original && i == 1 {
		limit = w.expire
	}
	counts := func(stamp uint8) bool { return s.now-p.behind < stamp+limit }
	best, mine := uint16(1<<15), false
	see := func(stamp uint8, order uint16, own bool) {
		if rank := uint16(stamp)*8 + order; counts(stamp) && rank < best {
			best, mine = rank, own
		}
	}
	for k := range 2 {
		if p.col[k].status == won {
			see(p.col[k].stamp, 2+uint16(i), true)
		}
		if o.col[k].status == won {
			see(o.col[k].stamp, 3-uint16(i), false)
		}
		if p.guard[k] == 1 {
			see(p.stamps[k], 0, true)
		}
		if o.guard[k] == 1 {
			see(o.stamps[k], 0, false)
		}
	}
	return mine
}

func (w claimsWorld) next(s claimsState, emit func(Step, claimsState)) {
	late := false
	for i := range s.p {
		p := s.p[i]
		do := func(what string, f func(t *claimsState, p *claimant)) {
			t := s
			f(&t, &t.p[i])
			emit(Step{Who: names[i], What: what}, t)
		}
		for k, c := range p.col {
			if c.status == sent {
				do("'s claim is there", func(_ *claimsState, p *claimant) { p.col[k].status = won })
				late = late || s.now-c.began == w.lockWait
			}
		}
		column := claimColumn{sent, s.now - p.behind, s.now}
		ready := func(k int) bool { return p.col[k].status == won && s.now-p.col[k].began >= w.wait() }
		switch p.pc {
		case cIdle:
			if p.times > 0 {
				do("writes a claim", func(_ *claimsState, p *claimant) { p.pc, p.times, p.col[0] = cClaims, p.times-1, column })
			}
		case cClaims:
			age := s.now - p.col[0].began
			if ready(0) && age < w.trust() && w.first(&s, i) {
				do("reads that it is the first, and holds", func(_ *claimsState, p *claimant) { p.pc, p.window = cHolds, w.trust()-age })
			}
			if p.col[0].status == won {
				do("gives up", func(_ *claimsState, p *claimant) { *p = claimant{behind: p.behind, times: p.times} })
			}
		case cHolds:
			if p.window > 0 && p.times > 0 && !(w.original && i == 1) {
				do("writes a second claim", func(_ *claimsState, p *claimant) { p.pc, p.times, p.col[1] = cRenews, p.times-1, column })
			}
		case cRenews:
			if !ready(1) || p.window == 0 {
				break
			}
			all := true
			for k, c := range s.p[1-i].col {
				if c.status != won || p.guard[k] == 1 && p.stamps[k] == c.stamp || w.broken == noGuards {
					continue
				}
				// Whose claim sorts before the second one would be first when ours before it expires.
				if c.stamp < p.col[1].stamp || c.stamp == p.col[1].stamp && i == 1 {
					all = false
					do("puts a guard in front of a claim", func(_ *claimsState, p *claimant) { p.guard[k], p.stamps[k] = 1, c.stamp })
				}
			}
			if left := w.trust() - min(w.trust(), s.now-p.col[1].began); all && left > 0 {
				do("has renewed", func(_ *claimsState, p *claimant) {
					p.pc, p.window, p.col[0], p.col[1] = cHolds, max(p.window, left), p.col[1], claimColumn{}
				})
			}
		}
		if p.pc >= cHolds && p.col[1].status != sent {
			do("releases", func(_ *claimsState, p *claimant) { *p = claimant{behind: p.behind, times: p.times} })
		}
	}
	if !late && s.now < w.horizon {
		t := s
		t.now++
		for i := range t.p {
			if p := &t.p[i]; p.window > 0 {
				p.window--
			}
		}
		emit(Step{What: "a tick passes"}, t)
	}
}

func claimsCases() (cases []Case) {
	base := claimsWorld{lockWait: 1, skew: 1, expire: 8, horizon: 20}
	original := base
	original.original = true
	cases = append(cases,
		of("claims", "2 Lockers, lockWait 1, skew 1, expire 8, renewals with guards", "", Quick, base.model()),
		of("claims", "a Locker and an original, the same", "", Quick, original.model()))
	for _, rule := range []Rule{noGuards, noTick, fullTrust} {
		broken := original
		broken.broken = rule
		cases = append(cases, of("claims", string(rule)+"; a Locker and an original", "two holders", Quick, broken.model()))
	}
	return cases
}
