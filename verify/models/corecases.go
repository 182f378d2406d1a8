package models

func coreCases() (cases []Case) {
	x, s := uint8(1), uint8(0)
	slots := func(n ...uint8) []uint8 { return n }
	holds := func(size Size, w coreWorld) { cases = append(cases, of("core", w.String(), "", size, w.model())) }

	holds(Quick, coreWorld{slots: slots(x, x), rounds: slots(1, 1), ttl: 2, crashes: 1, unknowns: 1})
	holds(Quick, coreWorld{slots: slots(s, x), rounds: slots(2, 1), ttl: 2, unknowns: 1})
	holds(Quick, coreWorld{slots: slots(x, x), rounds: slots(1, 1), ttl: 2, unknowns: 1, marks: true})
	for _, three := range [][]uint8{slots(x, x, x), slots(s, s, x), slots(2, 2, 2), slots(2, 3, x)} {
		still := coreWorld{slots: three, rounds: slots(1, 1, 1), still: true, ttl: 1}
		holds(Quick, still)
		still.cancel = true
		holds(Medium, still)
		still.cancel, still.unknowns = false, 1
		holds(Medium, still)
	}
	holds(Medium, coreWorld{slots: slots(x, x), rounds: slots(2, 1), ttl: 2, crashes: 1, unknowns: 1, cancel: true})
	holds(Medium, coreWorld{slots: slots(x, x), rounds: slots(1, 1), ttl: 2, unknowns: 2})
	holds(Large, coreWorld{slots: slots(x, x), rounds: slots(1, 1), ttl: 1, sessions: 2})
	holds(Large, coreWorld{slots: slots(x, x), rounds: slots(2, 2), ttl: 2, crashes: 1, unknowns: 1, cancel: true})
	holds(Large, coreWorld{slots: slots(x, x), rounds: slots(3, 3), ttl: 2, crashes: 1, unknowns: 1, cancel: true})

	breaks := func(rule Rule, must string, w coreWorld) {
		w.broken = rule
		if must == "two holders" {
			w.plain = true
		}
		cases = append(cases, of("core", string(rule)+"; "+w.String(), must, Quick, w.model()))
	}
	two := coreWorld{slots: slots(x, x), rounds: slots(1, 1), ttl: 2}
	breaks(windowFromAnswer, "two holders", two)
	breaks(grantOpens, "two holders", two)
	breaks(buryEarly, "two holders", two)
	breaks(buryBlindly, "two holders", two)
	breaks(absentIsDead, "two holders", two)
	unknown := two
	unknown.unknowns = 1
	breaks(noVersion, "two holders", two)
	again := two
	again.sessions, again.ttl = 2, 1
	breaks(adoptOld, "two holders", again)
	cancel := two
	cancel.cancel = true
	cancel.rounds = slots(1, 2)
	breaks(dropHolder, "two holders", cancel)
	cancel.rounds = slots(1, 1)
	unknown.still, cancel.still, cancel.unknowns = true, true, 1
	breaks(forgetBlind, Stuck, unknown)
	breaks(readOnly, Stuck, cancel)
	breaks(noGrant, Stuck, two)
	three := coreWorld{slots: slots(x, x, x), rounds: slots(1, 1, 1), ttl: 1, still: true}
	breaks(writerJumps, "overtaken", three)
	three.slots = slots(s, x, s)
	breaks(readerJumps, "overtaken", three)
	three.slots = slots(1, 2, 2)
	breaks(slotsByNewcomer, "two holders", three)
	breaks(silenceAndRevival, "two holders", two)
	for _, rule := range []Rule{silenceIsDeath, revival, buryUnversioned} {
		masked := two
		masked.broken = rule
		cases = append(cases, of("core", "masked: "+string(rule)+"; "+masked.String(), "", Quick, masked.model()))
	}
	mark := two
	mark.marks = true
	breaks(markTwice, "marks made a beat lose twice", mark)
	return cases
}
