package sim

import (
	"math/rand/v2"
	"os"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/machine"
)

// A plan is what a seed draws before anything runs: who takes part, with what
// settings, and which faults there are (a swarm: each seed has some).
type plan struct {
	procs, names, workers, ops int
	ttls                       []time.Duration // of each process; 0: the store's setting
	storeTTL                   time.Duration
	maxTTL                     time.Duration // that is ever set
	grace                      time.Duration
	notifications              bool
	length                     time.Duration // of the time of faults
	faults                     faultstore.Faults
	partitions, pauses         int
	crashes, restarts          int
	storeCrashes, jumps        int
	setTTLs                    bool
	breaks, breakNow           bool
	sets, elections, tries     bool
	slots, shared              bool
	overruns                   bool
	counts                     bool          // the store has no clock, and counts versions
	costly                     bool          // to watch costs the store: only who waits does
	staleReads                 bool          // the store has a cheap look that may be out of date
	locked                     float64       // how many writes of names lose to nothing but a lock on the row
	leap                       time.Duration // the most that all jumps of the store's clock leap forward
	rates                      []int64       // of each process's clock, in millionths of true time
	drift                      float64       // the most by which one is wrong, as a part of 1
	sleeps                     int           // machines that sleep a while
	states                     bool          // a state key, its writers and readers
	isolation                  isolation     // of the database's transactions
	pace                       time.Duration // of these, the most that a step takes
	limbo                      float64       // lightweight writes that nobody answers
	alone                      bool          // holds without a process
	remotes, remoteOps         int           // clients of holds, which the processes serve
	once                       bool          // processes that ask once and end
	least                      bool          // holds that keep their name shut for a time at least
	labels                     bool          // claims have labels, which change while they are held
	tells                      bool          // notifications tell the record that was written
	awaits                     bool          // the store can await a write
	extends                    bool          // holds without a process are made to end later
	without                    []bool        // misfortunes that do not happen, by their order
}

// staleReadsAlways gives every seed a store with a cheap look.
var staleReadsAlways = os.Getenv("HOLDFAST_STALE_READS") != ""

func drawPlan(r *rand.Rand) plan {
	chance := func(p float64) bool { return r.Float64() < p }
	count := func(p float64, most int) int {
		if !chance(p) {
			return 0
		}
		return 1 + r.IntN(most)
	}
	var p plan
	p.procs = 2 + min(r.IntN(3), r.IntN(3))
	if chance(0.05) {
		p.procs = 5 + r.IntN(2)
	}
	p.names = 1 + min(r.IntN(3), r.IntN(3))
	p.workers = 1 + r.IntN(2)
	p.ops = max(1, (8+r.IntN(10))/(p.procs*p.workers))
	p.storeTTL = drawTTL(r)
	p.maxTTL = p.storeTTL
	for range p.procs {
		ttl := time.Duration(0)
		if chance(0.5) {
			ttl = drawTTL(r)
		}
		p.ttls = append(p.ttls, ttl)
		p.maxTTL = max(p.maxTTL, ttl)
	}
	least := p.storeTTL
	for _, ttl := range p.ttls {
		if ttl > 0 {
			least = min(least, ttl)
		}
	}
	p.length = p.maxTTL + time.Duration(r.Int64N(int64(2*p.maxTTL)))
	p.notifications = chance(0.6)
	if chance(0.1) {
		p.grace = time.Duration(r.Int64N(int64(2 * time.Second)))
	}

	f := &p.faults
	if chance(0.8) {
		f.Delay = time.Duration(r.Int64N(int64(least / 20)))
	}
	if chance(0.3) {
		f.Delay = time.Duration(r.Int64N(int64(least / 2)))
	}
	if chance(0.4) {
		f.SlowReply = time.Duration(r.Int64N(int64(least)))
		if chance(0.7) {
			f.SlowReply /= 10
		}
	}
	rate := func() float64 { return []float64{0.02, 0.1, 0.3}[r.IntN(3)] }
	if chance(0.4) {
		f.Lose = rate()
	}
	if chance(0.5) {
		f.LoseReply = rate()
	}
	if chance(0.4) {
		f.Late, f.LateBy = rate(), 1+time.Duration(r.Int64N(int64(2*p.maxTTL)))
	} else {
		f.LateBy = time.Second
	}
	f.Hang = r.Float64()
	if chance(0.4) {
		f.Split = 0.5
	}
	if chance(0.3) {
		f.Partial = rate()
	}
	f.LoseNotification, f.DoubleNotification, f.DelayNotification = r.Float64()*0.5, r.Float64()*0.3, time.Duration(r.Int64N(int64(time.Second)))
	f.NoClock = chance(0.3)
	f.LazyFor = time.Duration(1 + r.Int64N(int64(2*time.Second)))

	p.partitions, p.pauses = count(0.4, 2), count(0.4, 2)
	p.crashes, p.restarts = count(0.4, 2), count(0.2, 2)
	if f.Delay > 0 { // else many versions share a microsecond, and a crash makes them repeat
		p.storeCrashes = count(0.3, 2)
	}
	if !f.NoClock {
		p.jumps = count(0.3, 2)
		p.leap = holdfast.Margin(least)
	}
	if p.storeCrashes == 0 && chance(0.4) { // a crash would have it count the same twice
		p.counts = true
	}
	p.setTTLs = chance(0.3)
	p.breaks = chance(0.3)
	p.breakNow = p.breaks && chance(0.3)
	p.sets, p.elections, p.tries = chance(0.4), chance(0.3), chance(0.5)
	p.slots, p.shared = chance(0.4), chance(0.6)
	p.overruns = chance(0.4)
	p.costly = chance(0.5)
	if chance(0.2) {
		p.locked = rate()
	}
	// Drawn last, so that the plans of older seeds stay what they were.
	if p.staleReads = chance(0.25) || staleReadsAlways; p.staleReads {
		f.Stale = []time.Duration{0, time.Second, p.maxTTL, 3 * p.maxTTL}[r.IntN(4)]
		f.Singly, f.Busy = r.Float64(), []float64{0, 0.5, 1}[r.IntN(3)]
	}
	for range p.procs {
		p.rates = append(p.rates, machine.True)
	}
	if chance(0.4) {
		p.drift = 0.05                         // as much as the margin pays for
		p.leap = max(0, p.leap-p.maxTTL*6/100) // which pays for leaps as well
		for i := range p.rates {
			p.rates[i] += []int64{-50_000, 50_000, r.Int64N(100_001) - 50_000}[r.IntN(3)]
		}
	}
	p.sleeps = count(0.3, 2)
	p.states = chance(0.3)
	if chance(0.3) {
		p.isolation = []isolation{readCommitted, snapshot, lightweight}[r.IntN(3)]
		p.pace = time.Duration(1 + r.Int64N(int64(min(least/100, 20*time.Millisecond))))
		if p.isolation == lightweight {
			f.NoClock, p.jumps = true, 0
			if chance(0.5) {
				p.limbo = rate()
			}
		}
	}
	if chance(0.3) {
		f.Double = []float64{0.1, 0.5, 1}[r.IntN(3)]
	}
	p.alone, p.once = chance(0.3), chance(0.3)
	if chance(0.3) {
		p.grace = time.Duration(r.Int64N(int64(p.maxTTL)))
	}
	if p.drift > 0 && chance(0.5) {
		f.Rate = []float64{1 - p.drift, 1 + p.drift, 1 + p.drift*(2*r.Float64()-1)}[r.IntN(3)]
		p.leap = max(0, holdfast.Margin(least)-p.maxTTL*115/1000)
	}
	if p.setTTLs {
		p.leap = min(p.leap, holdfast.Margin(2*time.Second))
		if p.drift > 0 {
			p.leap = min(p.leap, holdfast.Margin(2*time.Second)-6*time.Second*6/100)
			if f.Rate > 0 {
				p.leap = 0
			}
		}
		p.maxTTL = max(p.maxTTL, 6*time.Second)
	}
	p.least = chance(0.3)
	if chance(0.5) {
		p.remotes = 1 + r.IntN(3)
		p.remoteOps = 1 + r.IntN(4)
		p.leap = min(p.leap, holdfast.Margin(holdfast.MinTTL)) // holds have TTLs and times from MinTTL on
		if p.drift > 0 {
			p.leap = 0
		}
	}
	p.labels, p.extends = chance(0.3), chance(0.5)
	p.tells = p.storeCrashes == 0 && chance(0.5) // where a crash loses what was told
	p.awaits = !p.staleReads && chance(0.5)
	return p
}

func drawTTL(r *rand.Rand) time.Duration {
	switch n := r.IntN(20); {
	case n < 12:
		return 2*time.Second + time.Duration(r.Int64N(int64(2*time.Second))).Round(time.Millisecond)
	case n < 19:
		return 4*time.Second + time.Duration(r.Int64N(int64(4*time.Second))).Round(time.Millisecond)
	}
	return 8*time.Second + time.Duration(r.Int64N(int64(22*time.Second))).Round(time.Millisecond)
}
