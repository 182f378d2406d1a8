package sim

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/machine"
)

// run plays the plan: a time of faults, then all is healed, and then everyone
// must get what it waits for and nothing may be left.
func (w *world) run() {
	for _, p := range w.procs {
		p.start()
		for i := range w.plan.workers {
			w.work.Go(func() { p.worker(i) })
		}
	}
	for i := range w.plan.remotes {
		w.work.Go(func() { w.remoteClient(i) })
	}
	for _, e := range w.misfortunes() {
		time.Sleep(e.at - w.now())
		e.do()
	}
	time.Sleep(w.plan.length - w.now())
	w.heal()
	if !w.within(w.patience(), w.work.Wait) {
		w.broken("P6", "an operation still waits %v after all was healed", w.patience())
		for _, p := range w.procs {
			p.crash()
		}
	} else if !w.within(w.patience(), w.takeTurns) {
		w.broken("P6", "a lock is not obtained %v after all was healed", w.patience())
	}
	w.end()
}

// A misfortune is a fault at a time of its own.
type misfortune struct {
	at time.Duration
	do func()
}

func (w *world) misfortunes() (list []misfortune) {
	r := rand.New(rand.NewPCG(w.seed, 2))
	when := func() time.Duration { return time.Duration(r.Int64N(int64(w.plan.length))) }
	nr := 0 // of the misfortune, from 1; what ends one belongs to it
	add := func(at time.Duration, do func()) {
		if nr >= len(w.plan.without) || !w.plan.without[nr] {
			list = append(list, misfortune{at, do})
		}
	}
	during := func(begin, end func(l *life)) {
		p, from := w.procs[r.IntN(len(w.procs))], when()
		for range r.IntN(2) { // shorter ones are more frequent
			from = max(from, when())
		}
		to := from + time.Duration(r.Int64N(int64(w.plan.maxTTL)*3/2))
		nr++
		add(from, func() { p.now(begin) })
		add(min(to, w.plan.length), func() { p.now(end) })
	}
	for range w.plan.partitions {
		during(func(l *life) { w.logf("%s is cut off", l.name); l.edge.Partition(true) },
			func(l *life) { w.logf("%s is connected", l.name); l.edge.Partition(false) })
	}
	for range w.plan.pauses {
		during(func(l *life) { w.logf("%s is paused", l.name); l.edge.Pause() },
			func(l *life) { w.logf("%s is resumed", l.name); l.edge.Resume() })
	}
	for range w.plan.crashes {
		p, at := w.procs[r.IntN(len(w.procs))], when()
		down := time.Duration(r.Int64N(int64(w.plan.maxTTL)))
		if r.IntN(2) == 0 {
			down = 0
		}
		nr++
		add(at, p.crash)
		add(at+down, func() { p.revive() })
	}
	for range w.plan.restarts {
		nr++
		add(when(), w.procs[r.IntN(len(w.procs))].restart)
	}
	for range w.plan.storeCrashes {
		nr++
		add(when(), func() { w.logf("the store crashes and loses %d writes", w.bus.CrashStore()) })
	}
	forward := w.plan.leap
	for range w.plan.jumps {
		by := -time.Duration(r.Int64N(int64(w.plan.maxTTL)))
		if r.IntN(2) == 0 {
			by = time.Duration(r.Int64N(int64(forward) + 1))
			forward -= by
		}
		nr++
		add(when(), func() { w.logf("the store's clock jumps by %v", by); w.bus.Jump(by) })
	}
	r = rand.New(rand.NewPCG(w.seed, 3)) // its own, so that what came before stays what it was
	for range w.plan.sleeps {
		p, from := w.procs[r.IntN(len(w.procs))], when()
		to := min(from+time.Duration(r.Int64N(int64(w.plan.maxTTL)*3/2)), w.plan.length)
		var asleep *life
		nr++
		add(from, func() {
			p.now(func(l *life) {
				w.logf("%s falls asleep for %v", l.name, to-from)
				l.suspend(to - from)
				asleep = l
			})
		})
		add(to, func() {
			if asleep != nil {
				w.logf("%s wakes", asleep.name)
				asleep.edge.Resume()
			}
		})
	}
	slices.SortStableFunc(list, func(a, b misfortune) int { return cmp.Compare(a.at, b.at) })
	return list
}

// now does something to the present life, if there is one.
func (p *proc) now(do func(*life)) {
	p.w.mu.Lock()
	l := p.life
	p.w.mu.Unlock()
	if l != nil {
		do(l)
	}
}

func (p *proc) revive() {
	p.w.mu.Lock()
	down := p.life == nil && !p.again
	p.w.mu.Unlock()
	if down {
		p.start()
	}
}

// heal ends all faults. Late writes arrive now.
func (w *world) heal() {
	w.logf("all is healed")
	w.mu.Lock()
	w.healed = true
	for _, p := range w.procs {
		close(p.moved)
		p.moved = make(chan struct{})
	}
	w.mu.Unlock()
	w.bus.SetFaults(faultstore.Faults{Delay: time.Millisecond, Rate: w.plan.faults.Rate})
	if w.slow != nil {
		w.slow.heal()
	}
	for _, p := range w.procs {
		p.now(func(l *life) {
			l.edge.Partition(false)
			l.edge.Resume()
		})
	}
	w.bus.Settle()
}

// patience is how long it may take, after all is healed, until everyone who
// waits has been served: the longest TTL until the dead are declared dead (one that
// left a claim but no session is judged by the default TTL at least), their
// grace, and time for those who are served before to do their work.
func (w *world) patience() time.Duration {
	work := time.Duration(w.plan.procs*w.plan.workers) * 2 * w.plan.maxTTL
	if w.plan.alone || w.plan.least { // one after the other, each seen for the first time when all is healed
		work += time.Duration(w.plan.procs*w.plan.workers*w.plan.ops) * w.longestAlone()
	}
	work += time.Duration(w.plan.remotes) * (8*w.plan.maxTTL + w.longestAlone())
	return max(w.plan.maxTTL, holdfast.DefaultTTL) + w.plan.maxTTL + w.plan.grace + work + 10*time.Second
}

// within says whether f returns within d.
func (w *world) within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// calm says whether what was sent in the time of faults has had its time.
func (w *world) calm() bool {
	return w.now() > w.plan.length+2*max(w.plan.maxTTL, holdfast.DefaultTTL)
}

// takeTurns has everyone take each lock once.
func (w *world) takeTurns() {
	ctx, cancel := context.WithTimeout(context.Background(), w.patience())
	defer cancel()
	var all sync.WaitGroup
	for _, p := range w.procs {
		p.now(func(l *life) {
			all.Go(func() {
				for i := range w.plan.names {
					asked := w.now()
					lock, err := l.client.Acquire(ctx, "n"+string(rune('0'+i)))
					for err != nil && ctx.Err() == nil {
						// A call may still hang that was sent before all was healed.
						lock, err = l.client.Acquire(ctx, "n"+string(rune('0'+i)))
					}
					if err != nil {
						w.broken("P6", "%s, after all was healed: %v", l.name, err)
						continue
					}
					h := l.granted(lock, asked)
					time.Sleep(time.Millisecond)
					h.end()
					if err := lock.Release(ctx); err != nil && w.calm() {
						w.broken("P6", "%s, after all was healed: %v", l.name, err)
					}
				}
			})
		})
	}
	all.Wait()
}

// end closes everyone, sweeps what the dead have left, and looks for more.
func (w *world) end() {
	w.writes.Wait()
	w.ended.Wait()
	for _, p := range w.procs {
		p.now(func(l *life) {
			if err := l.client.Close(); err != nil && w.calm() {
				w.broken("C7", "%s closes with an error, and nothing is wrong: %v", l.name, err)
			}
			l.cancel()
		})
	}
	w.bus.Settle()
	if w.slow != nil {
		w.slow.under.Wait()
	}
	e := w.newEdge("sweeper", 0, machine.True)
	c := w.client(e, 99, 0)
	for range 7 {
		if _, err := c.Sweep(context.Background()); err != nil {
			w.broken("C7", "sweep: %v", err)
		}
		time.Sleep(max(w.plan.maxTTL, holdfast.DefaultTTL, w.longestAlone()) + w.plan.grace)
	}
	c.Close()
	w.bus.Close()
	w.logf("the end")
}
