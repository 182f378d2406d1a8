package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/internal/machine"
)

// reductions make a plan smaller, each by one thing. One that leaves a plan as it
// is has nothing to take away.
var reductions = []struct {
	name  string
	apply func(p *plan)
}{
	{"proc", func(p *plan) { p.procs = max(p.procs-1, 1); p.ttls, p.rates = p.ttls[:p.procs], p.rates[:p.procs] }},
	{"worker", func(p *plan) { p.workers = max(p.workers-1, 1) }},
	{"op", func(p *plan) { p.ops = max(p.ops-1, 1) }},
	{"remote", func(p *plan) { p.remotes = max(p.remotes-1, 0) }},
	{"remotes", func(p *plan) { p.remotes = 0 }},
	{"remoteop", func(p *plan) { p.remoteOps = max(p.remoteOps-1, 1) }},
	{"name", func(p *plan) { p.names = max(p.names-1, 1) }},
	{"grace", func(p *plan) { p.grace = 0 }},
	{"delay", func(p *plan) { p.faults.Delay = 0 }},
	{"slow", func(p *plan) { p.faults.SlowReply = 0 }},
	{"lose", func(p *plan) { p.faults.Lose = 0 }},
	{"losereply", func(p *plan) { p.faults.LoseReply = 0 }},
	{"double", func(p *plan) { p.faults.Double = 0 }},
	{"late", func(p *plan) { p.faults.Late = 0 }},
	{"split", func(p *plan) { p.faults.Split = 0 }},
	{"partial", func(p *plan) { p.faults.Partial = 0 }},
	{"busy", func(p *plan) { p.faults.Busy, p.faults.Singly = 0, 0 }},
	{"stale", func(p *plan) { p.faults.Stale = 0 }},
	{"notificationfaults", func(p *plan) {
		p.faults.LoseNotification, p.faults.DoubleNotification, p.faults.DelayNotification = 0, 0, 0
	}},
	{"locked", func(p *plan) { p.locked = 0 }},
	{"ttls", func(p *plan) { p.setTTLs = false }},
	{"breaks", func(p *plan) { p.breaks, p.breakNow = false, false }},
	{"breaknow", func(p *plan) { p.breakNow = false }},
	{"sets", func(p *plan) { p.sets = false }},
	{"elections", func(p *plan) { p.elections = false }},
	{"tries", func(p *plan) { p.tries = false }},
	{"alone", func(p *plan) { p.alone = false }},
	{"once", func(p *plan) { p.once = false }},
	{"storerate", func(p *plan) { p.faults.Rate = 0 }},
	{"slots", func(p *plan) { p.slots = false }},
	{"shared", func(p *plan) { p.shared = false }},
	{"overruns", func(p *plan) { p.overruns = false }},
	{"costly", func(p *plan) { p.costly = false }},
	{"stale reads", func(p *plan) { p.staleReads = false }},
	{"isolation", func(p *plan) { p.isolation, p.pace, p.limbo = atomic, 0, 0 }},
	{"pace", func(p *plan) { p.pace = min(p.pace, 1) }},
	{"limbo", func(p *plan) { p.limbo = 0 }},
	{"states", func(p *plan) { p.states = false }},
	{"rates", func(p *plan) {
		p.drift, p.rates = 0, slices.Clone(p.rates)
		for i := range p.rates {
			p.rates[i] = machine.True
		}
	}},
}

// maxMisfortunes is above what a plan has.
const maxMisfortunes = 20

// Reductions are the names of all that can be taken from a seed.
func Reductions() (names []string) {
	for i := range maxMisfortunes {
		names = append(names, fmt.Sprintf("misfortune%d", i+1))
	}
	for _, r := range reductions {
		names = append(names, r.name)
	}
	return names
}

// lessPlan is the plan of a seed, less what is named; what is unknown is ignored.
func lessPlan(seed uint64, less []string) plan {
	p := drawPlan(rand.New(rand.NewPCG(seed, 1)))
	p.without = make([]bool, maxMisfortunes+1)
	for _, name := range less {
		p.reduce(name)
	}
	return p
}

// misfortunes is how many there are, in the order in which run draws them.
func (p *plan) misfortunes() int {
	return p.partitions + p.pauses + p.crashes + p.restarts + p.storeCrashes + p.jumps + p.sleeps
}

func (p *plan) reduce(name string) {
	var nr int
	if _, err := fmt.Sscanf(name, "misfortune%d", &nr); err == nil && 0 < nr && nr <= p.misfortunes() {
		p.without = slices.Clone(p.without)
		p.without[nr] = true
		return
	}
	for _, r := range reductions {
		if r.name == name {
			r.apply(p)
		}
	}
}

// Shrink looks for the least of a seed that still fails: what all can be left away
// one by one, in any order, with fails still true of the rest. Where what happens is
// exact this is a schedule that fails each time.
func Shrink(seed uint64, fails func(less []string) bool) (less []string) {
	for again := true; again; {
		again = false
		for _, name := range Reductions() {
			for {
				more := append(slices.Clone(less), name)
				if describe(seed, more) == describe(seed, less) || !fails(more) {
					break
				}
				less, again = more, true
			}
		}
	}
	return less
}

// describe tells plans apart.
func describe(seed uint64, less []string) string {
	return fmt.Sprintf("%+v", lessPlan(seed, less))
}

// Less is a list of reductions as it stands on a command line.
func Less(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
