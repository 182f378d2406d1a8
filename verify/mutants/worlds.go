package main

import (
	"regexp"
	"strings"
)

// world is a test that searches one of the explorer's worlds.
func world(name string) test {
	return test{"./internal/core/explore", "^TestWorlds$/^" + strings.ReplaceAll(regexp.QuoteMeta(name), " ", "_") + "$"}
}

// planted are defects of the core that the explorer has to find by itself.
var planted = []mutant{
	{"world: a grant is believed outside the window", "R4", []edit{{"internal/core/name.go",
		"	if !env.trusts(g.id.Session) {\n		return\n	}\n	g.state, g.token", "	g.state, g.token"}}, world("S X S, time stands still")},
	{"world: a blind write is forgotten", "Q9", []edit{{"internal/core/step.go",
		"		n.blind = true\n", ""}}, world("X X, time stands still, 1 ambiguous")},
	{"world: an ambiguous write is settled by reading", "Q8", []edit{{"internal/core/step.go",
		"		n.openOld = w.Old\n", ""}}, world("X X, time stands still, 1 ambiguous, 1 cancel")},
	{"world: release grants to nobody", "P6", []edit{{"internal/core/rules.go",
		"	for len(r.Waiters) > 0 && Fits(r.Waiters[0], r.Holders) {", "	for len(r.Holders) > 0 && len(r.Waiters) > 0 && Fits(r.Waiters[0], r.Holders) {"}}, world("X X, time stands still, 2 rounds")},
	{"world: a write that lost is taken for one that won", "R1", []edit{{"internal/core/step.go",
		"	case out.Won:\n		n.shut", "	case out.Err == nil:\n		n.shut"}}, world("X X, time stands still, 2 rounds")},
	{"world: claims of others are dropped", "P1", []edit{{"internal/core/reconcile.go",
		"if !env.ours(c.Session) || n.wants(", "if n.wants("}}, world("X X, time stands still, 2 rounds")},
	{"world: the window is counted from the answer", "R4", []edit{{"internal/core/window.go",
		"until := sent.Add(", "until := now.Add("}}, world("X X")},
	{"world: declared dead after half a TTL", "R6", []edit{{"internal/core/detector.go",
		"if stood >= w.ttl {", "if stood >= w.ttl/2 {"}}, world("X X")},
	{"world: no record means dead", "Q6", []edit{{"internal/core/detector.go",
		"j.Verdict, j.Old, j.Next = Adopt,", "j.Verdict, j.Old, j.Next = Dead,"}}, world("X X")},
	{"world: the next grant ignores the block", "Q15", []edit{{"internal/core/lock_record.go",
		"base := max(Token(version), r.Next)", "base := Token(version)"}}, world("X(2) X, time stands still")},
	{"world: a block is forgotten when emptied", "Q15", []edit{{"internal/core/lock_record.go",
		"== 0 && r.Next <= Token(old)+2\n", "== 0\n"}}, world("X(2) X, time stands still")},
	{"world: hand-off past the block", "P3", []edit{{"internal/core/localqueue.go",
		"case g.token == g.last || n.foreign &&", "case n.foreign &&"}}, world("X(2) X, time stands still")},
	{"world: newcomers go to the head", "R13", []edit{{"internal/core/rules.go",
		"{ r.Waiters = append(r.Waiters, c) }", "{ r.Waiters = slices.Insert(r.Waiters, 0, c) }"}}, world("X X X, time stands still")},
	{"world: a reader overtakes a writer", "P5", []edit{{"internal/core/rules.go",
		"{ r.Waiters = append(r.Waiters, c) }", "{ r.Waiters = slices.Insert(r.Waiters, min(c.Slots, len(r.Waiters)), c) }"}}, world("S X S, time stands still")},
	{"world: a writer goes in beside readers", "R12", []edit{{"internal/core/rules.go",
		"	return c.Slots == 0 || n <= c.Slots\n", "	return true\n"}}, world("S X S, time stands still")},
	{"world: slots are not counted", "R12", []edit{{"internal/core/rules.go",
		"if h.Slots != 0 && n > h.Slots {", "if h.Slots == 1 && n > h.Slots {"}, {"internal/core/rules.go",
		"	return c.Slots == 0 || n <= c.Slots\n", "	return c.Slots != 1 || n <= c.Slots\n"}}, world("2 2 2, time stands still")},
	{"world: a claim of a lost session is kept", "R7", []edit{{"internal/core/name.go",
		"g.id, g.state, g.given, g.doubt = ClaimID{}, wanted, false, false", "g.state, g.given, g.doubt = wanted, false, false"}}, world("X, 2 sessions, 1 ambiguous")},
	{"world: confirmed while a write is out", "N2", []edit{{"internal/core/name.go",
		"	for g := range n.each {\n		if g.state == held && len", "	n.confirm()\n	for g := range n.each {\n		if g.state == held && len"}}, world("X X, time stands still, 1 ambiguous, 1 cancel")},
	{"world: a debt is not looked at", "Q9", []edit{{"internal/core/name.go",
		"	if n.blind {\n		n.look, eff.Work = true, true", "	if n.blind {\n		n.look, eff.Work = false, false"}}, world("X X, time stands still, 1 ambiguous")},
	{"world: what was seen before a write failed is forgotten", "P6", []edit{{"internal/core/name.go",
		"	if version != n.openOld {\n", "	if version != n.openOld && version != n.version {\n"}}, records("TestSeenBeforeItFails")},
	{"world: what is gone is not said", "P6", []edit{{"internal/core/reconcile.go",
		"		if !ok {\n			n.eff.Gone", "		if false {\n			n.eff.Gone"}}, world("X X, time stands still, 2 rounds")},
	{"world: those who wait are not given what is released", "P6", []edit{{"internal/core/localqueue.go",
		"	default:\n		n.give(g, g.waiting.pop(), env)", "	default:"}}, world("X(2) X, time stands still")},
}
