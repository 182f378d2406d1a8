package explore

import (
	"unsafe"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// leftOut has the fields on which no decision depends, each with the reason. bounded says for
// how many ticks an instant matters.
var (
	leftOut = map[string]string{
		"core.Name.rooms":          "room",
		"core.room.step":           "the world has it",
		"core.room.took":           "how long a pause is, not whether there is one",
		"core.Name.ambiguousSince": "how long a pause is",
		"core.room.eff":            "a buffer",
		"core.room.spare":          "room",
		"core.room.evicts":         "for people",
		"core.Step.evicts":         "for people",
		"core.Name.guests":         "no hold is followed",
		"core.desired.retries":     "for people",
		"core.desired.since":       "for people",
		"core.desired.labels":      "for people",
		"record.Claim.Retries":     "for people",
		"record.Claim.Since":       "for people",
		"record.Claim.Granted":     "for people",
		"record.Claim.Labels":      "for people",
		"lease.Session.why":        "for people",
		"record.Session.Why":       "for people",
		"record.Session.By":        "for people",
		"record.Session.Owner":     "for people",
		"record.Session.Labels":    "for people",
		"record.Session.Beat":      "its nonce says it",
		"lease.Deaths.died":        "for people",
		"record.Break.Was":         "for people",
		"record.Break.By":          "for people",
		"record.Revocation.By":     "for people",
		"record.Suspicion.By":      "for people",
		"lease.Observation.Why":    "for people",
		"lease.Observation.Record": "its write says it",
		"lease.watched.looked":     "when to look again",
		"lease.watched.born":       "when to look again",
		"core.Grant.At":            "for people",
		"core.Set.names":           "the setup has them",
		"core.Set.began":           "how long it waits",
		"lease.Breaker.token":      "its claim has it",
		"explore.World.Now":        "instants count from it",
		"explore.World.Leapt":      "what was written counts from it",
		"explore.World.nonces":     "a counter",
		"explore.World.sessionV":   "a counter",
		"explore.World.bad":        "nothing follows",
	}
	bounded = map[string]int{
		"core.Name.asked": 1, "core.Name.got": 1, "core.Name.staleRead": 1, "core.Name.foreignSince": 1, "core.desired.born": 1, // compared with core.Turn
		"lease.Window.until":  0, // open or not
		"explore.left.At":     1,
		"lease.Breaker.since": 0, // whether it waits; else how long a pause is
	}
)

// reloaded matters only once writes have lost often.
const reloaded = "core.room.reloaded"

func upToThree(e *encoder, p unsafe.Pointer) { e.buf = append(e.buf, byte(min(*(*int)(p), 3))) }

// partly has the fields of which only a part matters.
var partly = map[string]coder{
	// A heartbeat is sent once a tick.
	"explore.client.Beaten": func(e *encoder, p unsafe.Pointer) { e.buf = append(e.buf, bit(e.w.Now > *(*lease.Instant)(p))) },
	// How long a pause is does not matter, and a count above two counts as three.
	"core.room.rest": func(e *encoder, p unsafe.Pointer) { e.buf = append(e.buf, bit((*core.Step)(p).Kind == core.Pause)) },
	"core.room.lost": upToThree,
	"core.Name.shut": upToThree,
	// The age matters where the store has a clock, and by that clock.
	"explore.row.Written": func(e *encoder, p unsafe.Pointer) {
		if e.ages {
			e.instant(*(*lease.Instant)(p)-e.w.Leapt, e.longest)
		}
	},
	// Wall clocks matter for detached holds, and for the grace in a tombstone, and only together
	// with the store's clock.
	"record.Session.At": func(e *encoder, p unsafe.Pointer) {
		if e.ages && e.alone {
			e.wall(*(*int64)(p))
		}
	},
	"record.Session.Dead": func(e *encoder, p unsafe.Pointer) {
		if e.buf = append(e.buf, bit(*(*int64)(p) != 0)); e.ages || e.sweeps {
			e.wall(*(*int64)(p))
		}
	},
}
