package explore

import (
	"unsafe"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// leftOut has the fields on which nothing is decided, each with the reason. bounded has how
// many ticks back an instant matters.
var (
	leftOut = map[string]string{
		"Name.rooms":           "room",
		"room.step":            "the world has it",
		"room.took":            "how long a pause is, not whether there is one",
		"Name.ambiguousSince":  "how long a pause is",
		"room.eff":             "a buffer",
		"room.spare":           "room",
		"room.evicts":          "for people",
		"Step.evicts":          "for people",
		"Name.guests":          "no hold is followed",
		"desired.retries":      "for people",
		"desired.since":        "for people",
		"desired.labels":       "for people",
		"Claim.Retries":        "for people",
		"Claim.Since":          "for people",
		"Claim.Granted":        "for people",
		"Claim.Labels":         "for people",
		"Session.why":          "for people",
		"SessionRecord.Why":    "for people",
		"SessionRecord.By":     "for people",
		"SessionRecord.Owner":  "for people",
		"SessionRecord.Labels": "for people",
		"SessionRecord.Beat":   "its nonce says it",
		"Deaths.died":          "for people",
		"Break.Was":            "for people",
		"Break.By":             "for people",
		"Revocation.By":        "for people",
		"Suspicion.By":         "for people",
		"Judgement.Why":        "for people",
		"Judgement.Record":     "its write says it",
		"watched.looked":       "when to look again",
		"watched.born":         "when to look again",
		"Grant.At":             "for people",
		"Set.names":            "the setup has them",
		"Set.began":            "how long it waits",
		"Breaker.token":        "its claim has it",
		"World.Now":            "instants count from it",
		"World.Leapt":          "what was written counts from it",
		"World.nonces":         "a counter",
		"World.sessionV":       "a counter",
		"World.bad":            "nothing follows",
	}
	bounded = map[string]int{
		"Name.asked": 1, "Name.got": 1, "Name.staleRead": 1, "Name.foreignSince": 1, "desired.born": 1, // compared with core.Turn
		"Window.until":  0, // open or not
		"left.At":       1,
		"Breaker.since": 0, // whether it waits; else how long a pause is
	}
)

// partly has the fields of which not all matters.
var partly = map[string]coder{
	// A heartbeat is sent once a tick.
	"client.Beaten": func(e *encoder, p unsafe.Pointer) { e.buf = append(e.buf, bit(e.w.Now > *(*core.Instant)(p))) },
	// The age is asked for where the store has a clock, and by that clock.
	"row.Written": func(e *encoder, p unsafe.Pointer) {
		if e.ages {
			e.instant(*(*core.Instant)(p)-e.w.Leapt, e.longest)
		}
	},
	// Wall clocks decide of detached holds, and of the grace in a tombstone, and only together
	// with the store's clock.
	"SessionRecord.At": func(e *encoder, p unsafe.Pointer) {
		if e.ages && e.alone {
			e.wall(*(*int64)(p))
		}
	},
	"SessionRecord.Dead": func(e *encoder, p unsafe.Pointer) {
		if e.buf = append(e.buf, bit(*(*int64)(p) != 0)); e.ages || e.sweeps {
			e.wall(*(*int64)(p))
		}
	},
}
