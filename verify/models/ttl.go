package models

import "fmt"

// One holder and one judge, whose clocks run at different rates, while the TTL of the store is
// changed. A true tick is 20 units; a clock that runs 5 percent fast counts 21 of them.

type ttlState struct {
	window            uint16 // units of trust left, by the holder's clock
	age               uint16 // of the beat on its way, by the holder's clock
	watched           uint16 // 1 + units for which the judge has seen the beat stand, by its clock
	ghostAge          uint16
	fast              [2]uint8 // units a tick, of the holder's clock and the judge's
	setting, ttl, rec uint8    // in ticks: of the store, of the session, in its record
	beat, beatOld     uint8
	beatTTL           uint8
	known             uint8
	ghost, ghostTTL   uint8 // a beat whose answer never comes, while it may still follow
	ghostStands       uint8 // it is what the record shows
	changes, unknowns uint8
	tomb, bad         uint8
}

type ttlWorld struct {
	long, short       uint8
	rates             []uint8 // units a tick
	margin            uint8   // a TTL less one part in so many is trusted; 0: all of it
	changes, unknowns uint8
	broken            Rule
}

const (
	keepWindow Rule = "the TTL shrinks without lowering the window"
	noMargin   Rule = "no margin for rates"
)

func (w ttlWorld) trust(ttl uint8) uint16 {
	units := uint16(ttl) * 20
	if w.margin == 0 || w.broken == noMargin {
		return units
	}
	return units - units/uint16(w.margin)
}

func (w ttlWorld) model() Model[ttlState] {
	var all []ttlState
	for _, h := range w.rates {
		for _, j := range w.rates {
			all = append(all, ttlState{window: w.trust(w.long), fast: [2]uint8{h, j}, setting: w.long, ttl: w.long, rec: w.long,
				known: fresh, changes: w.changes, unknowns: w.unknowns})
		}
	}
	return Model[ttlState]{Init: all, Next: w.next,
		Bad: func(s ttlState) string {
			if s.bad == 1 {
				return "two holders"
			}
			return ""
		},
		Show: func(s ttlState) string {
			return fmt.Sprintf("setting %d, record %d, window %.2f, watched %.2f", s.setting, s.rec, float64(s.window)/20, float64(max(s.watched, 1)-1)/20)
		}}
}

func (w ttlWorld) next(s ttlState, emit func(Step, ttlState)) {
	if s.bad != 0 || s.tomb != 0 {
		return
	}
	stand := func(t *ttlState, ttl uint8) { // a beat stands
		t.rec, t.watched = ttl, 0
		t.known = stale
		if t.ghostStands == 1 || t.ghost == fresh {
			t.ghost, t.ghostTTL, t.ghostAge, t.ghostStands = 0, 0, 0, 0
		}
		if t.beat == sent {
			t.beatOld = stale
		}
	}
	if s.changes > 0 {
		t := s
		t.changes--
		t.setting = w.long + w.short - s.setting
		emit(Step{What: "the TTL of the store is changed"}, t)
	}
	if s.window > 0 {
		if s.beat == none {
			t := s
			t.beat, t.beatOld, t.beatTTL, t.age = sent, s.known, s.setting, 0
			if s.setting < s.ttl && w.broken != keepWindow {
				t.window = min(t.window, w.trust(s.setting))
			}
			emit(Step{Who: "the holder", What: "sends a heartbeat"}, t)
		}
		if s.beat == won || s.beat == lost {
			t := s
			t.beat, t.beatOld, t.beatTTL, t.age = none, 0, 0, 0
			age, ttl := s.age, s.beatTTL
			if s.beat == lost { // to an earlier one of its own, which is what the record shows
				age, ttl = s.ghostAge, s.ghostTTL
				t.ghost, t.ghostTTL, t.ghostAge, t.ghostStands = 0, 0, 0, 0
			}
			t.known, t.ttl = fresh, ttl
			if trust := w.trust(ttl); trust > age {
				t.window = max(t.window, trust-age)
			}
			emit(Step{Who: "the holder", What: "hears of its heartbeat"}, t)
		}
		if s.beat != none && s.unknowns > 0 && s.ghost == 0 && s.ghostStands == 0 {
			t := s
			t.unknowns--
			if s.beat == sent && s.beatOld == fresh {
				t.ghost, t.ghostTTL, t.ghostAge = fresh, s.beatTTL, s.age
			} else if s.beat == won {
				t.ghostStands, t.ghostTTL, t.ghostAge = 1, s.beatTTL, s.age
			}
			if s.beat != lost {
				t.beat, t.beatOld, t.beatTTL, t.age = none, 0, 0, 0
				emit(Step{Who: "the holder", What: "never hears of its heartbeat"}, t)
			}
		}
	}
	if s.beat == sent {
		t := s
		if s.beatOld == fresh {
			t.beat = won
			stand(&t, s.beatTTL)
		} else {
			t.beat = lost
		}
		if t.beat == won || s.ghostStands == 1 {
			emit(Step{What: "the heartbeat reaches the store"}, t)
		}
	}
	if s.ghost == fresh {
		t := s
		ttl, age := s.ghostTTL, s.ghostAge
		stand(&t, ttl)
		t.ghost, t.ghostStands, t.ghostTTL, t.ghostAge = 0, 1, ttl, age
		emit(Step{What: "a heartbeat of before is applied after all"}, t)
	}
	if s.watched == 0 {
		t := s
		t.watched = 1
		emit(Step{Who: "the judge", What: "looks"}, t)
	} else if s.watched-1 >= uint16(s.rec)*20 {
		t := s
		t.tomb = 1
		if s.window > 0 {
			t.bad = 1
		}
		emit(Step{Who: "the judge", What: "has seen the beat stand for the TTL in the record, buries, and the next holds"}, t)
	}
	t := s
	t.window -= min(t.window, uint16(s.fast[0]))
	long := uint16(w.long) * 20
	if s.beat == sent || s.beat == won {
		t.age = min(t.age+uint16(s.fast[0]), long+20)
	}
	if s.ghost != 0 || s.ghostStands != 0 {
		t.ghostAge = min(t.ghostAge+uint16(s.fast[0]), long+20)
	}
	if s.watched > 0 {
		t.watched = min(t.watched+uint16(s.fast[1]), long+21)
	}
	emit(Step{What: "a tick passes"}, t)
}

func ttlCases() []Case {
	exact := ttlWorld{long: 6, short: 2, rates: []uint8{20}, changes: 2, unknowns: 2}
	rates := ttlWorld{long: 10, short: 5, rates: []uint8{19, 20, 21}, margin: 10, changes: 2, unknowns: 1}
	keep, bare := exact, rates
	keep.broken, bare.broken = keepWindow, noMargin
	return []Case{
		of("TTL", "6 and 2, exact clocks, 2 changes, 2 unknown", "", Quick, exact.model()),
		of("TTL", "10 and 5, clocks 5 % fast or slow, margin a tenth, 2 changes, 1 unknown", "", Quick, rates.model()),
		of("TTL", string(keepWindow)+"; 6 and 2, exact clocks", "two holders", Quick, keep.model()),
		of("TTL", string(noMargin)+"; 10 and 5, clocks 5 % fast or slow", "two holders", Quick, bare.model()),
	}
}
