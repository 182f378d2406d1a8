// Package sim runs real clients against a store that loses, delays and halves
// their calls, in the fake time of a testing/synctest bubble, one bubble a seed.
// Package check judges what they saw and what the store went through. The store
// does a call at one instant, or in steps as transactions of a database do, see
// isolation.
//
// The plan of a seed is fixed by it: who takes part, what each worker asks for,
// which faults there are and when, what happens to the nth call of each process,
// session ids and jitter. What is left is the order of goroutines that are
// runnable at one instant; package exact takes chance out of that as well, so that
// a seed always goes the same way.
//
// Each process has a clock of its own, which may be wrong by what the margin pays
// for, and a machine that may sleep. A paused process is one whose calls and
// answers stand still; a frozen holder is one whose work does not look at its
// context, and asks Err when it wakes up. Jumps of the store's clock stay within
// the margin: a longer one can void a holder that is cut off at the same time,
// which assumption A4 excludes.
package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/machine"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A world is one run: a store, the way to it, and processes.
type world struct {
	seed    uint64
	plan    plan
	store   *recorder
	slow    *database // above it; nil: each call is done at one instant
	bus     *faultstore.Bus
	began   time.Time
	procs   []*proc
	work    sync.WaitGroup // workers
	writes  sync.WaitGroup // fenced writes on their way
	ended   sync.WaitGroup // lives that have crashed
	verbose bool
	out     io.Writer

	mu        sync.Mutex // guards all below
	healed    bool
	lives     int
	holds     []*hold
	resources map[string]*resource
	seq       time.Duration // the order of accesses
	counters  map[string]*counter
	repo      *repository
	found     []check.Violation
}

// A Result is what a seed has shown.
type Result struct {
	Seed   uint64
	Holds  int
	Calls  int
	Steps  int
	Lasted time.Duration // in fake time
	Found  []check.Violation

	holds     []check.Hold
	resources map[string]*resource
	steps     []check.Step
	audit     *check.Audit
	swift     bool          // news of who waits come
	news      time.Duration // within so long
	grace     time.Duration // that the slowest clock keeps
}

// Run plays a seed, less what is named (see Reductions). It has to be called in a
// synctest bubble of its own; Judge has to be called outside. A log of all that
// happens is written to out, if that is not nil.
func Run(seed uint64, less []string, out io.Writer) *Result {
	w := newWorld(seed, lessPlan(seed, less), out)
	w.logf("plan %+v", w.plan)
	w.run()
	return w.result()
}

func newWorld(seed uint64, p plan, out io.Writer) *world {
	w := &world{
		seed: seed, plan: p, store: newRecorder(p.counts), began: time.Now(), verbose: out != nil, out: out,
		resources: map[string]*resource{}, counters: map[string]*counter{},
	}
	w.store.tells = p.tells
	if p.isolation == atomic {
		w.bus = faultstore.NewBus(w.store, seed, p.faults)
	} else {
		w.slow = newDatabase(w.store, seed, p)
		w.bus = faultstore.NewBus(w.slow, seed, p.faults)
	}
	for i := range p.procs {
		w.procs = append(w.procs, &proc{w: w, nr: i, moved: make(chan struct{})})
	}
	return w
}

// Hash tells runs apart: it is of all writes that were applied, by whom and when,
// and of all that holders saw.
func (r *Result) Hash() uint64 {
	h := fnv.New64a()
	for _, s := range r.steps {
		fmt.Fprintln(h, s.Key.Space, s.Key.Name, s.Version, s.Value, s.At, s.Writers)
	}
	for _, s := range r.holds {
		fmt.Fprintln(h, s)
	}
	return h.Sum64()
}

// Judge runs the checkers over a result.
func (r *Result) Judge() []check.Violation {
	found := r.Found
	if v := r.audit.Check(r.steps); len(v) > 0 {
		found = append(found, v...)
	} else {
		found = append(found, r.audit.Left()...)
	}
	found = append(found, check.Tokens(r.holds)...)
	overlaps := check.Windows(r.holds)
	found = append(found, overlaps...)
	if len(overlaps) == 0 {
		found = append(found, check.RWLock(r.holds)...)
		found = append(found, check.Grace(r.holds, r.grace)...)
		found = append(found, check.Least(r.holds)...)
	}
	if r.swift {
		found = append(found, check.Order(r.steps, r.holds, r.news)...)
	}
	for name, res := range r.resources {
		found = append(found, check.Register(name, res.file)...)
		found = append(found, check.Register(name, res.row)...)
	}
	return found
}

// turn is how long goroutines of one process may follow each other once
// another process waits, and how old their look at the record may be.
const turn = 20 * time.Millisecond

func (w *world) result() *Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &Result{Seed: w.seed, Holds: len(w.holds), Lasted: time.Since(w.began), Found: w.found, resources: w.resources, steps: w.store.history()}
	r.Steps = len(r.steps)
	f := w.plan.faults
	r.swift = f.Lose+f.LoseReply+f.Late+f.Partial+w.plan.limbo == 0 && w.plan.pauses+w.plan.partitions+w.plan.storeCrashes == 0
	r.news = 2*turn + 4*(f.Delay+f.SlowReply) + 20*w.plan.pace
	atOnce := check.BrokenAtOnce(r.steps)
	session := check.Sessions(r.steps)
	for _, h := range w.holds {
		h.Void = atOnce(h.Name, h.Token)
		if !h.life.woke.IsZero() { // asleep nobody believes anything, though nobody was told
			h.Ended = min(h.Ended, h.life.edge.at+h.life.edge.ended(session(h.Name, h.Token)))
		}
		r.holds = append(r.holds, h.Hold)
	}
	for name, c := range w.counters {
		void := false
		for _, h := range r.holds {
			void = void || h.Void && h.Name == name
		}
		if c.value != c.adds && !void {
			r.Found = append(r.Found, check.Violation{Rule: "C8", Text: fmt.Sprintf("counter %q is %d after %d increments", name, c.value, c.adds)})
		}
	}
	r.audit = check.NewAudit(w.store.owner, w.plan.leap)
	r.audit.Rates, r.audit.Began = w.plan.drift, w.store.began
	r.grace = w.plan.grace - time.Duration(float64(w.plan.grace)*w.plan.drift)
	return r
}

// fence runs a user's transaction: if the record of a lock allows it, it writes.
func (w *world) fence(k driver.Key, allowed func(driver.Record) bool, write func()) {
	if w.slow != nil {
		w.slow.fence(k, allowed, write)
		return
	}
	recs, err := w.store.Load(context.Background(), []driver.Key{k}, driver.Fresh)
	if err != nil {
		panic(fmt.Sprint("the store below all faults fails: ", err))
	}
	if allowed(recs[0]) {
		write()
	}
}

func (w *world) now() time.Duration { return time.Since(w.began) }

func (w *world) broken(rule, format string, args ...any) {
	w.logf("BROKEN "+rule+" "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = append(w.found, check.Violation{Rule: rule, Text: fmt.Sprintf(format, args...) + " at " + w.now().String()})
}

func (w *world) logf(format string, args ...any) {
	if w.verbose {
		fmt.Fprintf(w.out, "%12v "+format+"\n", append([]any{w.now()}, args...)...)
	}
}

// A proc is a process that may crash and start again.
type proc struct {
	w     *world
	nr    int
	life  *life         // nil while it is down; guarded by w.mu
	again bool          // it closes and starts by itself; guarded by w.mu
	moved chan struct{} // closed, and made anew, when life changes
}

// A life is one incarnation of a process.
type life struct {
	p      *proc
	w      *world
	name   string
	edge   *edge
	client *holdfast.Client
	ctx    context.Context
	cancel context.CancelFunc
	ops    sync.WaitGroup
	dead   bool      // crashed; guarded by w.mu
	woke   time.Time // when its machine last woke, or will; guarded by w.mu
}

// start begins a new life.
func (p *proc) start() {
	w := p.w
	w.mu.Lock()
	bit := uint64(1) << (w.lives % 64)
	l := &life{p: p, w: w, name: fmt.Sprintf("p%d.%d", p.nr, w.lives)}
	w.lives++
	w.mu.Unlock()
	l.edge = w.newEdge(l.name, bit, w.plan.rates[p.nr])
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.client = w.client(l.edge, p.nr, w.plan.ttls[p.nr])
	w.mu.Lock()
	p.again = false
	p.set(l)
	w.mu.Unlock()
	w.logf("%s starts", l.name)
}

// A silent store has no notifications.
type silent struct {
	driver.Store
	machine.Owner
}

func (w *world) client(e *edge, nr int, ttl time.Duration) *holdfast.Client {
	var store driver.Store = e
	if !w.plan.notifications {
		store = silent{e, e}
	}
	var trace *holdfast.Trace
	if w.plan.least {
		trace = &holdfast.Trace{Acquired: func(ctx context.Context, _ holdfast.Event) {
			if at, ok := ctx.Value(acquiredAt{}).(*time.Duration); ok {
				*at = w.now()
			}
		}}
	}
	c, err := holdfast.New(store, &holdfast.Options{
		TTL: ttl, Grace: w.plan.grace, RuntimeDir: os.DevNull, Trace: trace,
		Owner: holdfast.Owner{Host: fmt.Sprintf("host%d", nr), PID: 100 + nr, User: "sim", Program: "sim", Started: w.began},
	})
	if err != nil {
		panic(err)
	}
	return c
}

// set makes a life the present one; w.mu is held.
func (p *proc) set(l *life) {
	p.life = l
	close(p.moved)
	p.moved = make(chan struct{})
}

// take returns the present life, with an operation begun in it; it waits for
// one while the process is down. nil: the time for operations is over.
func (p *proc) take() *life {
	for {
		p.w.mu.Lock()
		l, moved, healed := p.life, p.moved, p.w.healed
		if l != nil && !healed {
			l.ops.Add(1)
		}
		p.w.mu.Unlock()
		switch {
		case healed:
			return nil
		case l != nil:
			return l
		}
		<-moved
	}
}

// crash ends a life for the store and for all that believes in its locks.
func (p *proc) crash() {
	w := p.w
	w.mu.Lock()
	l := p.life
	if l == nil {
		w.mu.Unlock()
		return
	}
	l.dead = true
	p.set(nil)
	for _, h := range w.holds {
		if h.life == l {
			h.Lost = h.Lost || !h.ended
			h.endLocked()
		}
	}
	w.mu.Unlock()
	w.logf("%s crashes", l.name)
	l.edge.Crash()
	l.cancel()
	w.ended.Go(func() { l.client.Close() }) // frees what a real process would no longer have
}

// restart closes a life in an orderly way; the next one begins at once.
func (p *proc) restart() {
	p.w.mu.Lock()
	l := p.life
	if l == nil {
		p.w.mu.Unlock()
		return
	}
	p.set(nil)
	p.again = true
	p.w.mu.Unlock()
	p.w.logf("%s closes", l.name)
	p.w.ended.Go(func() {
		l.client.Close()
		l.cancel()
		l.ops.Wait()
		p.w.logf("%s is closed", l.name)
		p.start()
	})
}

// sleep waits for d, or less if the life ends.
func (l *life) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.ctx.Done():
	}
}

// suspend has the life's machine sleep for d from now on: nothing that waits goes
// on, and its clock does.
func (l *life) suspend(d time.Duration) {
	l.w.mu.Lock()
	if woke := time.Now().Add(d); woke.After(l.woke) {
		l.woke = woke
	}
	l.w.mu.Unlock()
	l.edge.Pause()
	l.edge.on.Sleep(d)
}

// slack is how late a process may hear of a loss now: who looks once a second
// finds out within that after it woke, and timers of clocks that are wrong are
// late by rounding.
func (l *life) slack() time.Duration {
	const rounding = 10 * time.Microsecond
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if !l.woke.IsZero() && time.Since(l.woke) <= 1100*time.Millisecond {
		return 1 << 62
	}
	return rounding
}

func (l *life) crashed() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.dead
}
