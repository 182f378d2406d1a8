package sim

import "math/rand/v2"

// Flaws are what can be wrong with a database, and the isolation of one that has it.
var Flaws = map[string]string{
	string(noRecheck):   string(readCommitted),
	string(noConflicts): string(snapshot),
	string(noLock):      string(readCommitted),
	string(resurrected): string(lightweight),
}

// RunFlawed plays a seed on a database that is wrong in one way.
func RunFlawed(seed uint64, isolated, wrong string) *Result {
	p := drawPlan(rand.New(rand.NewPCG(seed, 1)))
	p.without = make([]bool, maxMisfortunes+1)
	r := rand.New(rand.NewPCG(seed, 6))
	p.isolation, p.pace = isolation(isolated), 1+p.storeTTL/100
	if p.isolation == lightweight {
		p.faults.NoClock, p.jumps, p.limbo = true, 0, []float64{0.02, 0.1, 0.3}[r.IntN(3)]
	}
	if flaw(wrong) == noLock { // it shows where a fence that began in time ends late
		p.names, p.overruns, p.grace, p.once, p.alone, p.states, p.least, p.remotes = 1, true, 0, false, false, false, false, 0
	}
	w := newWorld(seed, p, nil)
	w.slow.flaw = flaw(wrong)
	w.run()
	return w.result()
}
