//go:build linux

package hostile

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/story"
)

// A plan is what happens to an episode. It returns when it has ended.
type plan struct {
	name string
	do   func(e *episode)
}

var plans = []plan{
	{"old names and listings", func(e *episode) {
		e.during(Faults{Stale: e.between(300*time.Millisecond, 900*time.Millisecond), Views: e.rng.IntN(2) == 0})
	}},
	{"lost replies", func(e *episode) { e.during(Faults{Lost: 0.1, Again: 0.1}) }},
	{"late and doubled operations", func(e *episode) { e.during(Faults{Late: 0.05, Twice: 0.15, LateBy: 2 * e.ttl}) }},
	{"failing operations", func(e *episode) { e.during(Faults{Refused: 0.1, Read: 0.03}) }},
	{"failing fsync", func(e *episode) {
		e.during(Faults{Sync: 0.2})
		e.crash()
	}},
	{"full disk", func(e *episode) {
		e.all(Faults{Full: 0.1})
		e.sleep(e.part(0.3, 0.8))
		e.server.Fill(true)
		e.note("disk full")
		e.sleep(e.part(0.4, 1.5))
		e.server.Fill(false)
		e.note("disk freed")
	}},
	{"slow", func(e *episode) {
		e.during(Faults{Slow: e.rng.Float64() * 0.4, SlowBy: e.between(20*time.Millisecond, 200*time.Millisecond)})
	}},
	{"a host cut off, hanging", func(e *episode) { e.cutOff(Hangs, e.hosts[e.who(false).host]) }},
	{"a host cut off, failing", func(e *episode) { e.cutOff(Fails, e.hosts[e.who(e.rng.IntN(2) == 0).host]) }},
	{"server away", func(e *episode) { e.cutOff([]Cut{Hangs, Fails}[e.rng.IntN(2)], e.hosts...) }},
	{"server crashes", func(e *episode) {
		for range 2 {
			e.crash()
			e.sleep(e.part(0.2, 1))
		}
	}},
	{"holders killed", func(e *episode) { e.kills(false, 3) }},
	{"waiters killed", func(e *episode) { e.kills(true, 3) }},
	{"a holder killed on a host cut off", func(e *episode) {
		w := e.who(false)
		m := e.hosts[w.host]
		m.CutOff(Hangs)
		e.sleep(e.part(0.05, 0.3))
		w.Shoot() // it may not be able to die before its host is connected again
		e.note("killed %s", w.ID)
		e.sleep(e.part(0, 1.5))
		m.CutOff(Connected)
		w.Destroy()
		e.start()
	}},
	{"a holder stopped", func(e *episode) { e.stop(e.who(false), e.part(0.8, 2.2)) }},
	{"the server's clock", func(e *episode) {
		by := []time.Duration{time.Hour, -time.Hour, e.part(0.7, 1.5), -e.part(0.7, 1.5)}[e.rng.IntN(4)]
		e.leap = 2 * time.Hour
		e.server.Skew(by)
		e.note("clock set %v ahead", by)
		e.sleep(e.part(1, 2))
		e.server.Skew(0)
		e.note("clock set back")
		e.sleep(e.part(0.5, 1))
	}},
	{"everything", func(e *episode) {
		p := func(most float64) float64 { return e.rng.Float64() * most }
		for range 2 {
			f := Faults{Refused: p(0.05), Lost: p(0.05), Again: p(0.05), Late: p(0.03), Twice: p(0.05), LateBy: e.part(0.2, 2), Sync: p(0.05),
				Read: p(0.02), Full: p(0.05), Slow: p(0.1), SlowBy: e.between(0, 100*time.Millisecond), Stale: e.between(0, 500*time.Millisecond), Views: e.rng.IntN(2) == 0}
			e.note("%+v", f)
			e.all(f)
			e.sleep(e.part(0.3, 0.8))
			var others sync.WaitGroup
			if w := e.who(false); e.rng.IntN(2) == 0 {
				d := e.part(0.5, 1.6)
				e.pauses = true
				others.Go(func() { e.stop(w, d) })
			}
			switch e.rng.IntN(4) {
			case 0:
				e.crash()
			case 1:
				e.cutOff(Hangs, e.hosts[0])
			case 2:
				e.kills(e.rng.IntN(2) == 0, 1)
			}
			e.sleep(e.part(0.1, 0.5))
			others.Wait()
		}
	}},
}

// during has faults for a while.
func (e *episode) during(f Faults) {
	e.note("%+v", f)
	e.all(f)
	e.sleep(e.part(1.5, 2.5))
}

// cutOff cuts hosts off for a while.
func (e *episode) cutOff(how Cut, hosts ...*Mount) {
	d := e.part(0.4, 2.3)
	e.note("%d hosts cut off for %v: %v", len(hosts), d, how)
	for _, m := range hosts {
		m.CutOff(how)
	}
	e.sleep(d)
	for _, m := range hosts {
		m.CutOff(Connected)
	}
	e.note("connected")
}

// crash crashes the server, which is then away for a while.
func (e *episode) crash() {
	how := []Cut{Hangs, Fails}[e.rng.IntN(2)]
	for _, m := range e.hosts {
		m.CutOff(how)
	}
	e.server.Crash()
	e.note("server crashed")
	e.sleep(e.part(0, 0.6))
	for _, m := range e.hosts {
		m.CutOff(Connected)
	}
	e.note("server started again")
}

func (e *episode) kill(w *worker) {
	w.Kill()
	e.note("killed %s", w.ID)
}

func (e *episode) kills(waits bool, n int) {
	for range n {
		e.kill(e.who(waits))
		e.start()
		e.sleep(e.part(0.1, 0.5))
	}
}

func (e *episode) stop(w *worker, d time.Duration) {
	e.pauses = true
	e.note("stopped %s for %v", w.ID, d)
	w.Stop(d)
	e.note("continued %s", w.ID)
}

// run is one episode.
func (p plan) run(t *testing.T, seed uint64) result {
	slow, err := life.Slowness()
	must(t, err)
	e := newEpisode(t, seed)
	e.note("%s, seed %d, names %v, usually %+v", p.name, seed, e.server.names, e.usual)
	e.crowd()
	e.sleep(e.part(0.1, 0.5))
	p.do(e)
	r := e.finish(slow)
	r.plan = p.name
	return r
}

// TestEpisodes goes through all plans.
func TestEpisodes(t *testing.T) {
	var rs results
	rounds := 1
	if *full {
		rounds = 12
	}
	t.Run("plan", func(t *testing.T) {
		for _, p := range plans {
			for round := range rounds {
				t.Run(fmt.Sprintf("%s/%d", p.name, round), func(t *testing.T) {
					t.Parallel()
					rs.add(p.run(t, seedOf(*seed, p.name, round)))
				})
			}
		}
	})
	rs.report(t)
}

// What is looked for is found: a holder that goes on believing on a host that is
// cut off, a crash that forgets what was reported, and an old version that comes back.
func TestNoticed(t *testing.T) {
	for _, c := range []struct {
		rule  string
		flags []string
		do    func(e *episode, w *worker)
	}{
		{"C2", []string{"-broken", "believes"}, func(e *episode, w *worker) {
			e.await("it holds the lock", func() bool { return w.Has(story.Granted, 0) })
			m := e.hosts[w.host]
			m.CutOff(Hangs)
			e.sleep(3 * e.ttl)
			m.CutOff(Connected)
		}},
		{"durable", nil, func(e *episode, w *worker) {
			e.await("it holds the lock", func() bool { return w.Has(story.Granted, 0) })
			e.ledger.mu.Lock()
			e.ledger.crashes = append(e.ledger.crashes, crash{life.Now() + int64(time.Hour), map[driver.Key]int64{{Name: "one"}: 1}})
			e.ledger.mu.Unlock()
		}},
		{"C5", nil, func(e *episode, w *worker) {
			e.await("it holds the lock", func() bool { return w.Has(story.Granted, 0) })
			e.ledger.mu.Lock()
			e.ledger.steps = append(e.ledger.steps, e.ledger.steps[0])
			e.ledger.mu.Unlock()
		}},
	} {
		slow, err := life.Slowness()
		must(t, err)
		e := newEpisode(t, *seed)
		e.startOn(0, "-names", "one/x", "-lanes", "1")
		w := e.startOn(1, append([]string{"-names", "one/x", "-lanes", "1"}, c.flags...)...)
		w.Broken = true
		c.do(e, w)
		r := e.conclude(slow)
		if !slices.ContainsFunc(r.found, func(v check.Violation) bool { return v.Rule == c.rule }) {
			t.Errorf("%s: found %v", c.rule, r.found)
			e.dump()
		}
	}
}
