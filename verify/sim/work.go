package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// worker asks for locks, uses them and gives them back, until the plan is done
// or the time of faults is over. What it asks for is fixed by the seed.
func (p *proc) worker(nr int) {
	w := p.w
	r := rand.New(rand.NewPCG(w.seed, 1000+uint64(100*p.nr+nr)))
	for range w.plan.ops {
		time.Sleep(time.Duration(r.Int64N(int64(w.plan.length) / int64(w.plan.ops+1))))
		l := p.take()
		if l == nil {
			return
		}
		l.operate(r)
		l.ops.Done()
	}
}

func (w *world) name(r *rand.Rand) string { return fmt.Sprintf("n%d", r.IntN(w.plan.names)) }

// operate does one thing of a worker.
func (l *life) operate(r *rand.Rand) {
	w := l.w
	kind, name := r.IntN(100), w.name(r)
	asked := w.now()
	opts := w.options(r)
	if w.plan.labels {
		opts = append(opts, holdfast.Labels(map[string]string{"op": strconv.Itoa(kind)}))
	}
	// A request that waits is given long enough to be served once all is well.
	patience := 10 * time.Minute
	if r.IntN(3) == 0 {
		patience = time.Duration(r.Int64N(int64(2 * w.plan.maxTTL)))
	}
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	busy, overrun := w.busy(r), false
	if w.plan.overruns && r.IntN(4) == 0 {
		busy, overrun = w.plan.maxTTL+time.Duration(r.Int64N(int64(w.plan.maxTTL)/2)), true
	}
	switch {
	case w.plan.states && r.IntN(3) == 0:
		l.useState(ctx, r)
	case w.plan.alone && r.IntN(6) == 0:
		l.leaveAlone(ctx, r, name, opts)
	case w.plan.least && r.IntN(5) == 0:
		l.holdLeast(ctx, r, name, busy, overrun, opts)
	case w.plan.once && r.IntN(4) == 0:
		l.tryOnce(ctx, r, name, busy, opts)
	case kind < 8 && w.plan.breaks:
		l.breakSomeone(ctx, r, name)
	case kind < 12 && w.plan.setTTLs:
		ttl := 2*time.Second + time.Duration(r.IntN(4000))*time.Millisecond
		ctx, cancel := context.WithTimeout(ctx, w.plan.maxTTL)
		defer cancel()
		w.logf("%s sets the TTL to %v: %v", l.name, ttl, l.client.SetStoreTTL(ctx, ttl))
	case kind < 16:
		ctx, cancel := context.WithTimeout(ctx, w.plan.maxTTL)
		defer cancel()
		n, err := l.client.Sweep(ctx)
		w.logf("%s sweeps: %d %v", l.name, n, err)
	case kind < 36 && w.plan.tries:
		lock, err := l.client.TryAcquire(ctx, name, opts...)
		l.got(ctx, r, asked, busy, overrun, err, lock)
	case kind < 50 && w.plan.sets && w.plan.names > 1:
		names := []string{name, w.name(r), w.name(r)}[:2+r.IntN(2)]
		var locks []*holdfast.Lock
		set, err := l.client.AcquireAll(ctx, names, opts...)
		if err == nil {
			locks = set.Locks()
		}
		l.got(ctx, r, asked, busy, overrun, err, locks...)
	case kind < 60 && w.plan.elections:
		l.stand(ctx, r, name, busy)
	case kind < 75:
		err := l.client.Do(ctx, name, func(work context.Context, lock *holdfast.Lock) error {
			h := l.granted(lock, asked)
			h.use(work, r, busy, overrun)
			h.end() // Do releases it
			return nil
		}, opts...)
		w.logf("%s did %q: %v", l.name, name, err)
	default:
		lock, err := l.client.Acquire(ctx, name, opts...)
		l.got(ctx, r, asked, busy, overrun, err, lock)
	}
}

// options draws in which mode a lock is wanted, and how patiently.
func (w *world) options(r *rand.Rand) (opts []holdfast.Option) {
	mode, wait := r.IntN(10), r.IntN(6)
	switch {
	case mode < 3 && w.plan.shared:
		opts = append(opts, holdfast.Shared())
	case mode < 5 && w.plan.slots:
		opts = append(opts, holdfast.Slots(2+r.IntN(2)))
	}
	most := time.Duration(r.Int64N(int64(w.plan.maxTTL)))
	if wait == 0 {
		opts = append(opts, holdfast.MaxWait(most))
	}
	return opts
}

// busy draws how long a lock is used: mostly a moment, sometimes through
// several heartbeats.
func (w *world) busy(r *rand.Rand) time.Duration {
	most := int64(w.plan.maxTTL)
	switch r.IntN(4) {
	case 0:
		return time.Duration(r.Int64N(most))
	case 1:
		return time.Duration(r.Int64N(most / 4))
	}
	return time.Duration(r.Int64N(most / 50))
}

// got uses and releases what an operation has returned.
func (l *life) got(ctx context.Context, r *rand.Rand, asked, busy time.Duration, overrun bool, err error, locks ...*holdfast.Lock) {
	if err != nil {
		l.w.logf("%s gets nothing: %v", l.name, err)
		if errors.Is(err, holdfast.ErrReleased) || errors.Is(err, holdfast.ErrLost) && len(locks) == 1 && !l.w.plan.breaks {
			l.w.broken("P7", "%s: an attempt ends with %v", l.name, err)
		}
		return
	}
	var holds []*hold
	seen := make(map[*holdfast.Lock]bool)
	for _, lock := range locks {
		if !seen[lock] {
			seen[lock] = true
			holds = append(holds, l.grantedOf(lock, asked, len(locks) > 1))
		}
	}
	for i, h := range holds {
		h.use(locks[0].Context(), r, busy/time.Duration(len(holds)), overrun && i == 0)
	}
	if ctx.Err() != nil && l.crashed() {
		return
	}
	for _, h := range holds {
		h.release(r)
	}
}

// stand runs for an election until it has led a while.
func (l *life) stand(ctx context.Context, r *rand.Rand, name string, busy time.Duration) {
	w := l.w
	e := l.client.Election(name)
	ctx, cancel := context.WithTimeout(ctx, busy+time.Duration(r.Int64N(int64(2*w.plan.maxTTL))))
	defer cancel()
	asked := w.now()
	resign := r.IntN(3) == 0
	terms := 0
	err := e.Run(ctx, func(work context.Context, lock *holdfast.Lock) error {
		h := l.granted(lock, asked)
		defer h.end()
		if has, ok := e.HasLock(); ok && has != lock {
			w.broken("P2", "%s leads %q by another lock than it was given", l.name, name)
		}
		h.use(work, r, busy, false)
		asked = w.now()
		if terms++; resign && terms < 2 {
			go e.Resign(ctx)
			<-work.Done()
			return nil
		}
		return errEnough
	})
	w.logf("%s stood for %q: %v", l.name, name, err)
}

var errEnough = errors.New("led long enough")

// breakSomeone ends a claim on a name by force, if it finds one.
func (l *life) breakSomeone(ctx context.Context, r *rand.Rand, name string) {
	w := l.w
	ctx, cancel := context.WithTimeout(ctx, 2*w.plan.maxTTL)
	defer cancel()
	info, err := l.client.Show(ctx, name)
	claims := append(info.Holders, info.Waiters...)
	if err != nil || len(claims) == 0 {
		return
	}
	claim := claims[r.IntN(len(claims))]
	how, do := "", func() error { return l.client.Break(ctx, name, claim.Token, "sim") }
	switch {
	case claim.Token == 0:
		do = func() error { return l.client.BreakWaiter(ctx, claim, "sim") }
	case w.plan.breakNow && r.IntN(2) == 0:
		how, do = " at once", func() error { return l.client.BreakNow(ctx, name, claim.Token, "sim") }
	}
	w.logf("%s breaks %s of %q%s: begins", l.name, claim.ID, name, how)
	w.logf("%s breaks %s of %q%s: %v", l.name, claim.ID, name, how, do())
}
