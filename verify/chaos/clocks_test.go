//go:build linux

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// ofOwnClocks are what can happen to the clocks of those who lock, by as much as the
// margin pays for. A program that was built without the tag faultinject has only the
// clock of the machine.
func ofOwnClocks() []fault {
	if !bends {
		return nil
	}
	return []fault{
		{"own clocks wrong", func(e *episode) {
			for range 3 {
				for _, p := range e.workers {
					e.bend(p, []int64{slowest, fastest, e.rng.Int64N(fastest-slowest+1) + slowest}[e.rng.IntN(3)])
				}
				e.sleep(e.part(0.7, 1.3))
			}
			e.straighten()
		}, []string{bent}},
		{"the machine of a holder sleeps", func(e *episode) {
			for range 2 {
				e.suspend(e.who(false), right, e.part(0.8, 2.3))
				e.sleep(e.part(0.3, 0.7))
			}
		}, []string{bent}},
		slowHolder("it stands still", func(e *episode, slow *process) {
			e.stop(slow, e.part(0.8, 1.8))
			e.sleep(e.part(0.2, 0.5))
		}),
		slowHolder("its machine sleeps", func(e *episode, slow *process) {
			e.suspend(slow, slowest, e.part(0.8, 1.8))
			e.sleep(e.part(0.2, 0.5))
		}),
		slowHolder("it is cut off", func(e *episode, slow *process) {
			e.cutOff(true, true, slow)
			e.sleep(e.part(0.7, 1.3))
		}),
	}
}

// slowHolder is that the clock of a holder is slow, that those of the others are fast,
// and that something befalls it.
func slowHolder(what string, befalls func(e *episode, slow *process)) fault {
	return fault{"own clock of a holder slow, those of the others fast, and " + what, func(e *episode) {
		slow := e.who(false)
		for _, p := range e.workers {
			e.bend(p, fastest)
		}
		e.bend(slow, slowest)
		e.sleep(e.part(0.3, 0.7))
		befalls(e, slow)
		e.straighten()
	}, []string{bent}}
}

// Clocks are wrong by a twentieth, in millionths of true time.
const slowest, right, fastest = 950_000, 1_000_000, 1_050_000

// bent is the flag of a worker whose clock goes by a file; the rest of its flags are
// its own.
const bent = "-bent"

func (e *episode) clockOf(id string) string { return filepath.Join(e.dir, "clock-"+id) }

// bend has the clock of a worker run at a rate.
func (e *episode) bend(p *process, rate int64) {
	e.wind(p, fmt.Sprint(rate))
	p.Rates(rate)
	e.wrong = float64(fastest-right) / right
	e.note("the clock of %s runs at %d", p.ID, rate)
}

// wind says how the clock of a worker runs.
func (e *episode) wind(p *process, text string) {
	path := e.clockOf(p.ID)
	must(e.t, os.WriteFile(path+".new", []byte(text), 0o600))
	must(e.t, os.Rename(path+".new", path))
}

// suspend has the machine of a worker sleep for about d: the process is stopped, its
// clock goes on, and its timers have as long to go afterwards as they had before.
func (e *episode) suspend(p *process, rate int64, d time.Duration) {
	const soon = 150 * time.Millisecond // it looks that often, and more
	e.note("the machine of %s sleeps", p.ID)
	e.pauses = true
	from, until := life.Now(), time.Now().Add(soon+d)
	e.wind(p, fmt.Sprint(rate, " ", until.UnixNano()))
	e.sleep(soon)
	p.Stop(time.Until(until))
	p.Sleeps = append(p.Sleeps, [2]int64{from, life.Now()})
	e.note("the machine of %s has woken", p.ID)
}

// straighten has all clocks be right, and waits until they are.
func (e *episode) straighten() {
	for _, p := range e.workers {
		e.bend(p, right)
	}
	e.sleep(100 * time.Millisecond)
}

// without is the flags but for one, and whether that was there.
func without(flags []string, flag string) ([]string, bool) {
	rest := slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f == flag })
	return rest, len(rest) < len(flags)
}
