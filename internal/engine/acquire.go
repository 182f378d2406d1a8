package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Request is one goroutine that wants a lock.
type Request struct {
	name    string
	Slots   int
	Counted bool // slots was set by Slots
	MaxWait time.Duration
	Bounded bool
	within  time.Duration // of a try: how long after start the store may answer
	Reason  string
	Labels  record.Labels
	Least   time.Duration // MinHold
	Seat    bool          // of an election
	set     string
	ctx     context.Context
	c       *Engine
	start   lease.Instant
	bad     error // why it is refused unasked

	// Guarded by c.Mu until the request is decided and await has seen that.
	p         *LocalQueue
	core      core.Request
	done      bool
	announced bool // Queued has been emitted
	lock      *Lock
	err       error
	ch        chan struct{}
	waiter    uint32 // see await
}

// NewRequest makes a request for the lock on a name, to which options can be added.
func (c *Engine) NewRequest(ctx context.Context, name string) *Request {
	r := c.requests.Get().(*Request)
	r.c, r.ctx, r.name, r.Slots, r.within = c, ctx, name, 1, core.TryPatience
	return r
}

// like makes the same request of an engine, for a name.
func (r *Request) like(c *Engine, ctx context.Context, name string) *Request {
	n := c.NewRequest(ctx, name)
	n.Slots, n.Counted, n.MaxWait, n.Bounded = r.Slots, r.Counted, r.MaxWait, r.Bounded
	n.Reason, n.Labels, n.Least, n.Seat, n.bad = r.Reason, r.Labels, r.Least, r.Seat, r.bad
	return n
}

// check says why the request is refused unasked, if it is.
func (r *Request) check() error {
	if r.bad != nil {
		return r.bad
	}
	if err := base.CheckName(r.name); err != nil {
		return err
	}
	if r.c.Opts.ReadOnly {
		return base.ErrReadOnly
	}
	return nil
}

// Acquire waits in line for the lock that is requested. Package holdfast says more.
func (c *Engine) Acquire(ctx context.Context, r *Request) (*Lock, error) {
	name := r.name
	var l *Lock
	var err error
	if r.Least > 0 && r.check() == nil {
		l, err = c.acquirePart(ctx, r)
	} else if l, err = c.acquire(ctx, r); err == nil {
		r.recycle()
	}
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, c.Opts.Public(err))
	}
	return l, nil
}

// again returns a copy of the request, to be asked once more.
func (r *Request) again() *Request {
	n := *r
	n.p, n.done, n.lock, n.err, n.waiter = nil, false, nil, nil, 0
	n.ch = make(chan struct{}, 1)
	return &n
}

// recycle keeps the memory of a request for the next one. The request was decided,
// and nothing refers to it any more.
func (r *Request) recycle() {
	pool, ch := &r.c.requests, r.ch
	*r = Request{ch: ch}
	pool.Put(r)
}

// Fail refuses the request unasked, for the first reason given.
func (r *Request) Fail(err error) {
	if r.bad == nil {
		r.bad = err
	}
}

// try says whether the request does not wait.
func (r *Request) try() bool { return r.Bounded && r.MaxWait <= 0 }

// answer decides a request; c.Mu is held.
func (r *Request) answer(l *Lock, err error) {
	if r.done {
		return
	}
	r.done, r.lock, r.err = true, l, err
	r.c.After.Wake(r)
}

func (c *Engine) acquire(ctx context.Context, r *Request) (l *Lock, err error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	r.start = c.Now()
	if c.traced {
		first := r
		defer func() { first.announced = r.announced; first.traceAnswer(l, err) }()
	}
	watched := false
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		joined := r.start
		if try > 0 {
			joined = c.Now()
		}
		if r.Bounded && !r.try() {
			c.Mu.Lock() // another goroutine drives: MaxWait runs from here on
			c.join(r, joined)
			c.Unlock()
		} else {
			c.do(ctx, func() { c.join(r, joined) })
		}
		l, err := c.await(ctx, r)
		if err == nil {
			return l, nil
		}
		held, ok := err.(*Held)
		if !ok {
			return l, err
		}
		// Say who is in the way. This look may find one of them dead.
		asked := c.Now()
		void, silent := c.Explain(held, time.Second)
		if took := asked.Sub(joined); r.try() && took > 3*core.LockedCall && c.Now().Sub(asked) < took/4 {
			held.Locked = true // reads are quick, and the write was not: another one would wait as long
		}
		if held.Locked {
			return nil, err
		}
		if !void && r.try() && !watched && Opens(held, silent, r.Slots) {
			watched = true
			void = c.WatchSilent(ctx, held, silent)
			if err := ctx.Err(); !void && err != nil {
				held.Err = fmt.Errorf("%w after %s", err, record.Short(c.Now().Sub(r.start)))
			}
		}
		if void && r.try() && try < 3 && ctx.Err() == nil {
			r = r.again()
			r.within = c.Now().Sub(r.start) + core.TryPatience
			continue
		}
		return nil, err
	}
}

// States of request.waiter; 0: await has not begun to wait.
const (
	waits   = 1 + iota // await waits for ch
	decided            // the request is; await is woken through ch if it waits
)

// Wake wakes the goroutine that waits for a decided request.
func (r *Request) Wake() {
	if atomic.SwapUint32(&r.waiter, decided) == waits {
		r.ch <- struct{}{}
	}
}

// await waits until a request is decided or no longer wanted.
func (c *Engine) await(ctx context.Context, r *Request) (*Lock, error) {
	if !atomic.CompareAndSwapUint32(&r.waiter, 0, waits) {
		return r.lock, r.err
	}
	var timeout <-chan time.Time
	if r.Bounded {
		limit := r.MaxWait
		if r.try() {
			limit = r.within
		}
		t := c.Machine.NewTimer(limit - c.Now().Sub(r.start))
		defer t.Stop()
		timeout = t.C
	}
	if done := ctx.Done(); done == nil && timeout == nil {
		<-r.ch
		return r.lock, r.err
	} else {
		select {
		case <-r.ch:
			return r.lock, r.err
		case <-done:
		case <-timeout:
		}
	}
	c.Mu.Lock()
	id, was := c.cancel(r)
	if !was {
		c.Unlock()
		<-r.ch
		if r.err != nil || ctx.Err() == nil {
			return r.lock, r.err
		}
		r.lock.Release(ctx) // it came too late: pass it on
		return nil, ctx.Err()
	}
	defer c.Unlock()
	return nil, r.gaveUp(ctx, id)
}

// gaveUp is the error of a request that has given up; id is the claim that it shared. c.Mu is held.
func (r *Request) gaveUp(ctx context.Context, id core.ClaimID) error {
	p, waited := r.p, record.Short(r.c.Now().Sub(r.start))
	switch {
	case p.n.Failed() != nil && ctx.Err() != nil:
		return fmt.Errorf("%w after %s: %w", ctx.Err(), waited, base.NoAnswer(p.n.Failed()))
	case p.n.Failed() != nil:
		return fmt.Errorf("gave up after %s: %w", waited, base.NoAnswer(p.n.Failed()))
	case ctx.Err() == nil && (!p.n.Known() || r.try() && p.n.Asked() < r.start):
		return fmt.Errorf("gave up after %s: the store has not answered", waited)
	}
	held := r.c.held(p, p.n.InTheWay())
	if ctx.Err() != nil {
		held.Err = fmt.Errorf("%w after %s", ctx.Err(), waited)
	}
	if len(held.Holders) == 0 && !held.Locked && ctx.Err() != nil {
		return held.Err
	}
	rec, _ := p.n.Record()
	for i, w := range rec.Waiters {
		if id.Nr != 0 && w.Is(id.Session, id.Nr) {
			held.Waiters = held.Waiters[:i]
			break
		}
	}
	return held
}

// Explain reads the sessions in the way, and observes them as a waiter would. It reports whether the claims of one session are void, and the
// sessions whose claims seem to be. within bounds its calls.
func (c *Engine) Explain(held *Held, within time.Duration) (void bool, silent []string) {
	ctx, cancel := context.WithTimeout(c.Ctx, within)
	defer cancel()
	if len(held.Holders)+len(held.Waiters) == 0 { // decided here, without a look
		recs, err := c.Store.Load(ctx, []driver.Key{driver.Names.Key(held.Name)}, driver.Fresh)
		if err != nil {
			return false, nil
		}
		if rec, err := base.LockOf(recs[0]); err == nil {
			held.Holders, held.Waiters = rec.Holders, rec.Waiters
		}
	}
	looks, err := c.LoadSessions(ctx, held.sessions())
	if err != nil {
		return false, nil
	}
	c.Detect(ctx, looks, held.Name)
	c.Detector.ForgetIdle() // there may be no poll loop to do it
	held.Looks = looks
	held.Self = held.Self || slices.ContainsFunc(held.Holders, func(cl record.Claim) bool { return c.Owns(cl.Session) })
	return c.anyVoid(held.sessions()), c.seemVoid(held, looks)
}

// anyVoid says whether the claims of one of the sessions are void.
func (c *Engine) anyVoid(sessions []string) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return slices.ContainsFunc(sessions, c.IsDead)
}

// allVoid says whether the claims of all the sessions are void.
func (c *Engine) allVoid(sessions []string) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return !slices.ContainsFunc(sessions, func(id string) bool { return !c.IsDead(id) })
}

// seemVoid returns the sessions in the way that have been dead for their grace, or silent for their
// TTL, by the store's clock or else the wall clocks. This is a hint: it declares nobody dead.
func (c *Engine) seemVoid(held *Held, looks map[string]base.SessionRead) (silent []string) {
	for _, id := range held.sessions() {
		s := looks[id]
		rec, err := record.DecodeSession(s.Rec.Value)
		since, needs := rec.Age(s.Rec.Age), rec.Duration()
		if since < 0 {
			since = time.Since(time.UnixMicro(rec.At))
		}
		if rec.Dead != 0 {
			if since = s.Rec.Age; since < 0 {
				since = time.Since(time.UnixMicro(rec.Dead))
			}
			needs = time.Duration(rec.Grace) * time.Millisecond
		}
		c.Mu.Lock()
		_, known := c.Deaths.Tombstone(id)
		cannot := c.IsOurs(id) || rec.Dead == 0 && (rec.Detached || known) // watching for a moment cannot show it dead
		c.Mu.Unlock()
		if err == nil && !cannot && rec.TTL > 0 && since >= needs {
			silent = append(silent, id)
		}
	}
	return silent
}

// Opens says whether a claim of that many slots would be granted if the claims of the sessions
// in gone were removed.
func Opens(held *Held, gone []string, slots int) bool {
	stays := func(cl record.Claim) bool { return !slices.Contains(gone, cl.Session) }
	if len(gone) == 0 || slices.ContainsFunc(held.Waiters, stays) {
		return false // the other waiters find the dead themselves, and come first
	}
	var left []record.Claim
	for _, cl := range held.Holders {
		if stays(cl) {
			left = append(left, record.Claim{Slots: cl.Slots})
		}
	}
	return record.Fits(record.Claim{Slots: slots}, left)
}

// WatchSilent watches sessions that seem to be dead until they are known to be, by any rule of
// the failure detector, or until the grace in a tombstone is over. A process that asks once, and
// has seen nothing before, would otherwise not find out. WatchSilent ends as soon as one session
// is seen alive, and reports whether the claims of one of them are void.
func (c *Engine) WatchSilent(ctx context.Context, held *Held, ids []string) (void bool) {
	j := base.Detector{C: &c.Base, Patient: true} // the client's own forgets sessions that nobody waits for
	first := make(map[string]record.Session)
	for began := c.Now(); ctx.Err() == nil && c.Ctx.Err() == nil; {
		one, cancel := context.WithTimeout(ctx, record.DefaultTTL)
		looks, err := c.LoadSessions(one, ids)
		if err != nil {
			cancel()
			break
		}
		alive, longest := false, time.Duration(0)
		for _, id := range slices.Sorted(maps.Keys(looks)) {
			s := looks[id]
			v, _ := j.Observe(id, s)
			rec := v.Record
			died := c.CarryOut(one, v, s.Rec.Age, []string{held.Name})
			longest = max(longest, rec.Duration())
			was, seen := first[id]
			if !seen {
				first[id] = rec
			}
			switch {
			case v.Verdict == lease.Dead && (!seen || was.Dead != 0): // its grace is as good as over
				longest = max(longest, time.Duration(rec.Grace)*time.Millisecond)
			case died && rec.Grace > 0, seen && !was.SameBeat(rec):
				alive = true // or shut for a good while
			}
		}
		cancel()
		if c.allVoid(ids) || alive || c.Now().Sub(began) > 2*longest {
			maps.Copy(held.Looks, looks)
			break
		}
		rest := longest / 8
		if at := j.Next(ids); at != lease.Never {
			rest = min(rest, max(at.Sub(c.Now()), time.Millisecond))
		}
		t := c.Machine.NewTimer(rest)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-c.Ctx.Done():
		}
		t.Stop()
	}
	if void = c.anyVoid(ids); void {
		c.AfterDeath()
	}
	return void
}

// With runs fn under a lock and releases it.
func (c *Engine) With(ctx context.Context, l *Lock, fn func(context.Context) error) (err error) {
	if !c.use() {
		return base.ErrClosed
	}
	defer c.unuse()
	work, cancel := context.WithCancelCause(l.Context())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		stop()
		cancel(nil)
		release, done := context.WithTimeout(context.WithoutCancel(ctx), max(l.sess.Left(), time.Millisecond))
		defer done()
		if rel := l.Release(release); errors.Is(rel, record.ErrLost) || rel != nil && err == nil {
			err = errors.Join(err, rel)
		}
	}()
	return fn(work)
}
