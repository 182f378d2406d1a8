package faultstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Process is the store as one simulated process sees it: a driver.Store,
// Watcher and Awaiter. Watch fails where the inner store has none.
type Process struct {
	bus  *Bus
	name string

	mu      sync.Mutex // guards all below
	calls   []calling
	count   map[string]uint64 // calls, by kind
	scripts map[script][]func() error
	crashed bool
	cut     bool
	paused  bool
	moved   chan struct{} // closed, and made anew, when one of the three changes
}

var (
	_ driver.Store   = (*Process)(nil)
	_ driver.Awaiter = (*Process)(nil)
	_ driver.Watcher = (*Process)(nil)
)

// A Point is a moment in the life of a call.
type Point int

const (
	BeforeApply Point = iota // the store knows nothing of the call yet
	AfterApply               // the store has done it, the process does not know
)

func (p Point) String() string {
	if p == BeforeApply {
		return "before apply"
	}
	return "after apply"
}

type script struct {
	call  int
	point Point
}

// Process returns the store as a process of this name sees it. Each name is
// used once.
func (b *Bus) Process(name string) *Process {
	return &Process{
		bus:     b,
		name:    name,
		count:   map[string]uint64{},
		scripts: map[script][]func() error{},
		moved:   make(chan struct{}),
	}
}

// Bus is what the process calls the store through.
func (p *Process) Bus() *Bus { return p.bus }

// Plain returns the same without Watcher and Awaiter.
func (p *Process) Plain() driver.Store { return struct{ driver.Store }{p} }

// Calls lists the Load, Await, CompareAndSwap, Keys and Sweep calls that the process has
// made, in the order in which they began.
func (p *Process) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]string, len(p.calls))
	for i, c := range p.calls {
		list[i] = c.kind + " " + c.what()
	}
	return list
}

// At calls do at a point of the nth of Calls, counted from 1, in the goroutine
// of the call. What do does to the process already counts for this call. A call
// that is lost has no AfterApply.
func (p *Process) At(n int, point Point, do func()) {
	p.script(n, point, func() error { do(); return nil })
}

// FailAt makes the nth of Calls fail at a point: it was lost, or its answer was.
func (p *Process) FailAt(n int, point Point) {
	p.script(n, point, func() error { return fault("call %d fails %s", n, point) })
}

// CrashAt crashes the process at a point of the nth of Calls.
func (p *Process) CrashAt(n int, point Point) { p.At(n, point, p.Crash) }

func (p *Process) script(n int, point Point, do func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scripts[script{n, point}] = append(p.scripts[script{n, point}], do)
}

// Crash ends the process for its store: none of its calls is answered, now or
// later; each waits until its context is done. Some of the writes on their way
// are still applied, as drawn from the seed. It cannot be undone.
func (p *Process) Crash() { p.set(func() { p.crashed = true }) }

// Partition cuts the process off from the store, or ends that. While it lasts,
// calls and answers are lost, and no notifications arrive.
func (p *Process) Partition(cut bool) { p.set(func() { p.cut = cut }) }

// Pause holds the calls and answers of the process until Resume.
func (p *Process) Pause() { p.set(func() { p.paused = true }) }

// Resume releases what Pause has held.
func (p *Process) Resume() { p.set(func() { p.paused = false }) }

func (p *Process) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.moved)
	p.moved = make(chan struct{})
}

// Traits implements driver.Store: they are those of the inner store.
func (p *Process) Traits() driver.Traits { return p.bus.inner.Traits() }

// Load implements driver.Store.
func (p *Process) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if how == driver.Stale && p.Traits().StaleReads {
		return p.StaleLoad(ctx, keys)
	}
	c := p.begin(ctx, "load", all(keys))
	var records []driver.Record
	err := c.run(func() error {
		p.bus.catchUp()
		p.bus.told(keys, true)
		if c.chance(c.faults.Split) && len(keys) > 1 {
			records = make([]driver.Record, len(keys))
			for _, i := range c.random.Perm(len(keys)) {
				if err := c.sleep(upTo(c.random, c.faults.Delay)); err != nil {
					return err
				}
				p.bus.catchUp()
				one, err := p.bus.inner.Load(ctx, keys[i:i+1], driver.Fresh)
				if err != nil {
					return err
				}
				records[i] = one[0]
				p.bus.tell(&records[i], time.Now())
			}
			return nil
		}
		var err error
		records, err = p.bus.inner.Load(ctx, keys, driver.Fresh)
		now := time.Now()
		for i := range records {
			p.bus.tell(&records[i], now)
		}
		return err
	}, nil)
	if err != nil {
		return nil, err
	}
	return records, nil
}

// Await implements driver.Awaiter, even where the inner store does not.
func (p *Process) Await(ctx context.Context, key driver.Key, version int64, every, limit time.Duration) (r driver.Record, err error) {
	keys := []driver.Key{key}
	inner, awaits := p.bus.inner.(driver.Awaiter)
	c := p.begin(ctx, "await", all(keys))
	err = c.run(func() error {
		for end := time.Now().Add(limit); ; {
			p.bus.catchUp()
			p.bus.told(keys, true)
			one := make([]driver.Record, 1)
			var err error
			if awaits {
				one[0], err = inner.Await(ctx, key, version, every, limit)
			} else {
				one, err = p.bus.inner.Load(ctx, keys, driver.Fresh)
			}
			if err != nil {
				return err
			}
			if awaits || one[0].Version != version || !time.Now().Before(end) {
				r = one[0]
				p.bus.tell(&r, time.Now())
				return nil
			}
			if err := c.sleep(every); err != nil {
				return err
			}
		}
	}, nil)
	return r, err
}

// CompareAndSwap implements driver.Store.
func (p *Process) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	kind, keys := "beat", keysOf(writes)
	for _, w := range writes {
		if err := w.Check(); err != nil {
			return nil, fmt.Errorf("faultstore: compare and swap: %w", err)
		}
		if w.Key.Space != driver.Sessions {
			kind = "swap"
		}
	}
	c := p.begin(ctx, kind, all(keys))
	var outcomes []driver.Outcome
	err := c.run(func() (err error) {
		p.bus.told(keys, true)
		outcomes, err = c.write(writes)
		now := time.Now()
		for i := range outcomes {
			p.bus.tell(&outcomes[i].Record, now)
		}
		return err
	}, writes)
	if err != nil {
		for i, o := range outcomes {
			if o.Won {
				p.bus.told(keys[i:i+1], false)
			}
		}
		return nil, err
	}
	return outcomes, nil
}

// Keys implements driver.Store.
func (p *Process) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	c := p.begin(ctx, "keys", func() string { return fmt.Sprintf("%s after %q", space, after) })
	var names []string
	err := c.run(func() (err error) {
		p.bus.catchUp()
		names, err = p.bus.inner.Keys(ctx, space, after, n)
		return err
	}, nil)
	if err != nil {
		return nil, err
	}
	return names, nil
}

// Sweep implements driver.Store. It makes all that was written durable.
func (p *Process) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	c := p.begin(ctx, "sweep", idle.String)
	err = c.run(func() (err error) {
		p.bus.catchUp()
		p.bus.applying.Lock()
		defer p.bus.applying.Unlock()
		removed, err = p.bus.inner.Sweep(ctx, idle)
		p.bus.mu.Lock()
		defer p.bus.mu.Unlock()
		clear(p.bus.undo)
		return err
	}, nil)
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// A call is a call on its way. Its chances are always drawn in the same order.
type call struct {
	p      *Process
	ctx    context.Context
	nr     int // among all calls of the process, from 1
	faults Faults
	random *rand.Rand
	mute   bool            // does not fail while the process is cut off, but hangs
	crash  <-chan struct{} // the store's, from when the call began
}

// A calling is a call that was made. What it was about is put in words only when
// somebody asks.
type calling struct {
	kind string
	what func() string
}

func (p *Process) begin(ctx context.Context, kind string, what func() string) *call {
	p.bus.mu.Lock()
	faults, crash := p.bus.faults, p.bus.crash
	p.bus.mu.Unlock()

	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, calling{kind, what})
	p.count[kind]++
	c := &call{
		p:      p,
		ctx:    ctx,
		nr:     len(p.calls),
		faults: faults,
		random: draw(p.bus.seed, p.name, kind, p.count[kind]),
		crash:  crash,
	}
	c.mute = c.chance(0.5)
	return c
}

func (c *call) chance(p float64) bool { return c.random.Float64() < p }

// run takes the call to the store and its answer back. do is the store's part;
// writes are what may still be applied when the call fails on its way there.
func (c *call) run(do func() error, writes []driver.Write) error {
	var (
		f         = c.faults
		there     = upTo(c.random, f.Delay)
		back      = upTo(c.random, f.SlowReply)
		lateBy    = upTo(c.random, lateBy(f))
		luck      = c.random.Float64()
		hangs     = c.chance(f.Hang)
		stranded  = c.chance(0.5) // what is on its way when the call ends arrives nevertheless
		lose      = luck < f.Lose
		late      = !lose && luck < f.Lose+f.Late
		loseReply = !lose && !late && luck < f.Lose+f.Late+f.LoseReply
	)
	strand := func() {
		if stranded {
			c.p.bus.delay(lateBy, writes...)
		}
	}

	// There.
	if err := c.gone(); err != nil {
		return err
	}
	if err := c.pass(nil); err != nil {
		return err // it has not left the process
	}
	if err := c.sleep(there); err != nil {
		strand()
		return err
	}
	if err := c.at(BeforeApply); err != nil {
		return err
	}
	if err := c.pass(strand); err != nil {
		return err
	}
	switch {
	case lose:
		return c.fail(hangs, c.unknown(writes, fault("the call was lost")))
	case late:
		c.p.bus.delay(lateBy, writes...)
		return c.fail(hangs, c.unknown(writes, fault("the call is late")))
	}

	if err := do(); err != nil {
		return err
	}

	// And back.
	if err := c.at(AfterApply); err != nil {
		return err
	}
	if loseReply {
		if len(writes) > 0 && c.chance(f.Double) {
			c.p.bus.delay(lateBy, writes...)
		}
		return c.fail(hangs, c.unknown(writes, fault("the answer was lost")))
	}
	if err := c.sleep(back); err != nil {
		return err
	}
	return c.pass(nil)
}

func lateBy(f Faults) time.Duration {
	if f.LateBy == 0 {
		return time.Minute
	}
	return f.LateBy
}

// write is the store's part of CompareAndSwap.
func (c *call) write(writes []driver.Write) ([]driver.Outcome, error) {
	var (
		b       = c.p.bus
		partial = c.chance(c.faults.Partial) && len(writes) > 1
		split   = c.chance(c.faults.Split) && len(writes) > 1
	)
	if !partial && !split {
		return b.apply(c.ctx, writes)
	}

	outcomes := make([]driver.Outcome, len(writes))
	var missed []int
	for _, i := range c.random.Perm(len(writes)) {
		wait, lateBy, luck := upTo(c.random, c.faults.Delay), upTo(c.random, lateBy(c.faults)), c.random.IntN(3)
		if partial && luck < 2 {
			if missed = append(missed, i); luck == 1 {
				b.delay(lateBy, writes[i])
			}
			continue
		}
		if err := c.sleep(wait); err != nil {
			return nil, err
		}
		one, err := b.apply(c.ctx, writes[i:i+1])
		if err != nil {
			return nil, err
		}
		outcomes[i] = one[0]
	}
	if !partial {
		return outcomes, nil
	}
	failed := c.unknown(writes, fault("the batch was done in part"))
	if len(missed) == len(writes) || !c.chance(c.faults.Singly) {
		return outcomes, failed
	}
	for _, i := range missed {
		outcomes[i].Err = failed
	}
	return outcomes, nil
}

// unknown is err as a call of writes reports it: some stores say that they are
// busy.
func (c *call) unknown(writes []driver.Write, err error) error {
	if len(writes) > 0 && c.faults.Busy > 0 && c.chance(c.faults.Busy) {
		return &driver.BusyError{Err: err}
	}
	return err
}

// at runs what the test has put at this point of this call.
func (c *call) at(point Point) error {
	p := c.p
	p.mu.Lock()
	todo := p.scripts[script{c.nr, point}]
	delete(p.scripts, script{c.nr, point})
	p.mu.Unlock()
	for _, do := range todo {
		if err := do(); err != nil {
			return err
		}
	}
	if len(todo) == 0 {
		return nil
	}
	return c.pass(nil)
}

// pass returns when the way is free, and an error when it will not be. Then it
// calls lost first, if that is not nil.
func (c *call) pass(lost func()) error {
	end := func() {
		if lost != nil {
			lost()
			lost = nil
		}
	}
	for {
		c.p.mu.Lock()
		crashed, cut, paused, moved := c.p.crashed, c.p.cut, c.p.paused, c.p.moved
		c.p.mu.Unlock()
		if err := c.gone(); err != nil && !crashed {
			end()
			return err
		}
		switch {
		case crashed:
			end()
			select {
			case <-c.ctx.Done():
				return c.ctx.Err()
			case <-c.p.bus.closed:
				return fault("the process has crashed")
			}
		case cut:
			// Some systems say so, some only wait.
			end()
			return c.fail(c.mute, fault("the process is cut off"))
		case !paused:
			return nil
		}
		select {
		case <-moved:
		case <-c.ctx.Done():
		case <-c.crash:
		case <-c.p.bus.closed:
		}
	}
}

var (
	errCrash  = fault("the store has crashed")
	errClosed = fault("the bus is closed")
)

// gone says why the call cannot go on, whatever way it takes.
func (c *call) gone() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	select {
	case <-c.crash:
		return errCrash
	default:
	}
	select {
	case <-c.p.bus.closed:
		return errClosed
	default:
		return nil
	}
}

// fail ends the call with err: at once, or when its context is done.
func (c *call) fail(hang bool, err error) error {
	if !hang {
		return err
	}
	select {
	case <-c.ctx.Done():
		return c.ctx.Err()
	case <-c.crash:
		return errCrash
	case <-c.p.bus.closed:
		return errClosed
	}
}

func (c *call) sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	case <-c.crash:
		return errCrash
	case <-c.p.bus.closed:
		return errClosed
	}
}

// all describes keys, as they are now.
func all(keys []driver.Key) func() string {
	switch len(keys) {
	case 0:
		return func() string { return "nothing" }
	case 1:
		key := keys[0]
		return func() string { return describe(key) }
	}
	first, more := keys[0], len(keys)-1
	return func() string { return fmt.Sprintf("%s and %d more", describe(first), more) }
}

func describe(k driver.Key) string {
	if len(k.Name) > 40 {
		return fmt.Sprintf("%s %q… (%d bytes)", k.Space, k.Name[:40], len(k.Name))
	}
	return fmt.Sprintf("%s %q", k.Space, k.Name)
}
