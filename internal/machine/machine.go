// Package machine stands in for what a client takes from the machine it runs on:
// time, waiting, and chance. A nil *Machine is the real one. The simulation gives
// each of its processes a machine whose clock runs fast or slow, whose timers stand
// still while it sleeps, and whose chance is a seed's; so do processes of tests that
// were built with the tag faultinject.
package machine

import (
	crand "crypto/rand"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
)

// An Owner is a store that says which machine its client runs on.
type Owner interface{ Machine() *Machine }

// A Machine has a clock and a source of randomness of its own.
type Machine struct {
	mu     sync.Mutex
	since  time.Time     // what follows was true then
	awake  time.Duration // how long the machine has run
	slept  time.Duration // how long it has slept
	until  time.Time     // it sleeps until then
	rate   int64         // of its clock, in millionths of true time
	chance *rand.ChaCha8
	random *rand.Rand
}

// True is the rate of a clock that is right.
const True = 1_000_000

// New makes a machine whose clock runs at rate millionths of true time.
func New(rate int64, seed uint64) *Machine {
	var s [32]byte
	for i := range 8 {
		s[i] = byte(seed >> (8 * i))
	}
	chance := rand.NewChaCha8(s)
	return &Machine{since: time.Now(), rate: rate, chance: chance, random: rand.New(chance)}
}

// times returns how long the machine has run and slept; m.mu is held.
func (m *Machine) times(now time.Time) (awake, slept time.Duration) {
	asleep := min(max(m.until.Sub(m.since), 0), now.Sub(m.since))
	return m.awake + m.own(now.Sub(m.since)-asleep), m.slept + m.own(asleep)
}

// own is how long d of true time takes on the machine's clock.
func (m *Machine) own(d time.Duration) time.Duration {
	return time.Duration(float64(d) * float64(m.rate) / True)
}

// True is how long d of the machine's clock takes.
func (m *Machine) True(d time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.true(d)
}

// true is how long d of the machine's clock takes, or a little more.
func (m *Machine) true(d time.Duration) time.Duration {
	if m.rate == True {
		return d
	}
	return time.Duration(math.Ceil(float64(d)*True/float64(m.rate))) + 1
}

// Now is the time on the machine's clock, which does not step and runs while it sleeps.
func (m *Machine) Now() time.Duration {
	if m == nil {
		return clock.Steady()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	awake, slept := m.times(time.Now())
	return awake + slept
}

// Set changes the rate of the clock.
func (m *Machine) Set(rate int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.awake, m.slept = m.times(now)
	m.since, m.rate = now, rate
}

// Sleep puts the machine to sleep from now on: its timers stand still for d.
func (m *Machine) Sleep(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.awake, m.slept = m.times(now)
	m.since = now
	if until := now.Add(d); until.After(m.until) {
		m.until = until
	}
}

// left is how long it takes until the machine has run for target; 0 if it already
// has. While the machine sleeps, it is at least the rest of the sleep.
func (m *Machine) left(target time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	awake, _ := m.times(now)
	asleep := max(m.until.Sub(now), 0)
	if awake >= target {
		return asleep
	}
	return asleep + m.true(target-awake)
}

func (m *Machine) target(d time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	awake, _ := m.times(time.Now())
	return awake + d
}

// A Timer is a time.Timer of a machine.
type Timer struct {
	C <-chan time.Time

	real *time.Timer // on the real machine

	m     *Machine
	c     chan time.Time
	mu    sync.Mutex // guards all below
	arm   *time.Timer
	turns int // how often it was set
}

// NewTimer is time.NewTimer.
func (m *Machine) NewTimer(d time.Duration) *Timer {
	if m == nil {
		t := time.NewTimer(d)
		return &Timer{C: t.C, real: t}
	}
	c := make(chan time.Time, 1)
	t := &Timer{C: c, m: m, c: c}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(d)
	return t
}

func (t *Timer) set(d time.Duration) {
	t.turns++
	turn, target := t.turns, t.m.target(max(d, 0))
	var fire func()
	fire = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if turn != t.turns {
			return
		}
		if left := t.m.left(target); left > 0 {
			t.arm = time.AfterFunc(left, fire)
			return
		}
		t.c <- time.Now() // it is empty: set and Stop see to that
	}
	t.arm = time.AfterFunc(t.m.left(target), fire)
}

// Stop is time.Timer's, without its result.
func (t *Timer) Stop() {
	if t.real != nil {
		t.real.Stop()
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop()
}

func (t *Timer) stop() {
	t.turns++
	t.arm.Stop()
	select {
	case <-t.c:
	default:
	}
}

// Reset is time.Timer's, without its result.
func (t *Timer) Reset(d time.Duration) {
	if t.real != nil {
		t.real.Reset(d)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop()
	t.set(d)
}

// AfterFunc is time.AfterFunc, for timers that are never stopped.
func (m *Machine) AfterFunc(d time.Duration, f func()) {
	if m == nil {
		time.AfterFunc(d, f)
		return
	}
	target := m.target(max(d, 0))
	var fire func()
	fire = func() {
		if left := m.left(target); left > 0 {
			time.AfterFunc(left, fire)
			return
		}
		f()
	}
	time.AfterFunc(m.left(target), fire)
}

// Read fills b with random bytes: those of crypto/rand on the real machine.
func (m *Machine) Read(b []byte) {
	if m == nil {
		crand.Read(b)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.chance.Read(b)
}

// Int64N is rand.Int64N.
func (m *Machine) Int64N(n int64) int64 {
	if m == nil {
		return rand.Int64N(n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.random.Int64N(n)
}
