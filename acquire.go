package holdfast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// A request is one goroutine that wants a lock.
type request struct {
	name    string
	slots   int
	counted bool // slots was set by Slots
	maxWait time.Duration
	bounded bool
	within  time.Duration // of a try: how long after start the store may answer
	reason  string
	labels  record.Labels
	least   time.Duration // MinHold
	seat    bool          // of an election
	set     string
	ctx     context.Context
	c       *Client
	start   lease.Instant
	bad     error // why it is refused unasked

	// Guarded by c.mu until the request is decided and await has seen that.
	p         *localQueue
	core      core.Request
	done      bool
	announced bool // Queued has been emitted
	lock      *Lock
	err       error
	ch        chan struct{}
	waiter    uint32 // see await
}

func (c *Client) newRequest(ctx context.Context, name string, opts []Option) *request {
	r := c.requests.Get().(*request)
	r.c, r.ctx, r.name, r.slots, r.within = c, ctx, name, 1, tryPatience
	for _, o := range opts {
		o(r)
	}
	if r.bad == nil {
		r.bad = checkName(name)
	}
	if r.bad == nil && c.opts.ReadOnly {
		r.bad = ErrReadOnly
	}
	return r
}

// again returns a copy of the request, to be asked once more.
func (r *request) again() *request {
	n := *r
	n.p, n.done, n.lock, n.err, n.waiter = nil, false, nil, nil, 0
	n.ch = make(chan struct{}, 1)
	return &n
}

// recycle keeps the memory of a request for the next one. The request was decided,
// and nothing refers to it any more.
func (r *request) recycle() {
	pool, ch := &r.c.requests, r.ch
	*r = request{ch: ch}
	pool.Put(r)
}

func (r *request) fail(err error) {
	if r.bad == nil {
		r.bad = err
	}
}

// try says whether the request does not wait.
func (r *request) try() bool { return r.bounded && r.maxWait <= 0 }

// answer decides a request; c.mu is held.
func (r *request) answer(l *Lock, err error) {
	if r.done {
		return
	}
	r.done, r.lock, r.err = true, l, err
	r.c.after.wake(r)
}

// Acquire waits in line for the lock on a name, first come, first served across all processes. ctx
// bounds the wait, never the hold. The error is the ctx.Err() or the store's, ErrHeld (a
// *HeldError) if someone is in the way, ErrLost if the waiting claim was broken, ErrClosed or
// ErrReadOnly. A store that does not answer gets a TTL to come back; if it has never answered this
// client, its error is returned at once. Locks are not reentrant.
func (c *Client) Acquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	r := c.newRequest(ctx, name, opts)
	if r.least > 0 && r.bad == nil {
		l, err := c.acquirePart(ctx, name, r.least, opts)
		if err != nil {
			err = fmt.Errorf("acquire %q: %w", name, err)
		}
		return l, err
	}
	l, err := c.acquire(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("acquire %q: %w", name, err)
	}
	r.recycle()
	return l, nil
}

// TryAcquire is Acquire with MaxWait(0): it asks once and does not wait for live sessions.
// If the only claims in the way belong to sessions that seem to have been silent for their TTL,
// or dead for their grace, it asks them for a heartbeat and watches them: for half a TTL where
// the store's clock shows their silence, else for a TTL. It gives up as soon as one is seen
// alive, and otherwise takes over in the same call. ctx bounds the watch, too. A store that does
// not answer within 5s is an error.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.Acquire(ctx, name, append(slices.Clip(opts), MaxWait(0))...)
}

func (c *Client) acquire(ctx context.Context, r *request) (l *Lock, err error) {
	if r.bad != nil {
		return nil, r.bad
	}
	r.start = c.now()
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
			joined = c.now()
		}
		if r.bounded && !r.try() {
			c.mu.Lock() // another goroutine drives: MaxWait runs from here on
			c.join(r, joined)
			c.unlock()
		} else {
			c.do(ctx, func() { c.join(r, joined) })
		}
		l, err := c.await(ctx, r)
		if err == nil {
			return l, nil
		}
		var held *HeldError
		if !errors.As(err, &held) {
			return l, err
		}
		// Say who is in the way. This look may find one of them dead.
		asked := c.now()
		void, silent := c.explain(held, time.Second)
		if took := asked.Sub(joined); r.try() && took > 3*core.LockedCall && c.now().Sub(asked) < took/4 {
			held.Locked = true // reads are quick, and the write was not: another one would wait as long
		}
		if held.Locked {
			return nil, err
		}
		if !void && r.try() && !watched && opens(held, silent, r.slots) {
			watched = true
			void = c.watchSilent(ctx, held, silent)
			if err := ctx.Err(); !void && err != nil {
				held.Err = fmt.Errorf("%w after %s", err, record.Short(c.now().Sub(r.start)))
			}
		}
		if void && r.try() && try < 3 && ctx.Err() == nil {
			r = r.again()
			r.within = c.now().Sub(r.start) + tryPatience
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

// wake wakes the goroutine that waits for a decided request.
func (r *request) wake() {
	if atomic.SwapUint32(&r.waiter, decided) == waits {
		r.ch <- struct{}{}
	}
}

// await waits until a request is decided or no longer wanted.
func (c *Client) await(ctx context.Context, r *request) (*Lock, error) {
	if !atomic.CompareAndSwapUint32(&r.waiter, 0, waits) {
		return r.lock, r.err
	}
	var timeout <-chan time.Time
	if r.bounded {
		limit := r.maxWait
		if r.try() {
			limit = r.within
		}
		t := c.machine.NewTimer(limit - c.now().Sub(r.start))
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
	c.mu.Lock()
	id, was := c.cancel(r)
	if !was {
		c.unlock()
		<-r.ch
		if r.err != nil || ctx.Err() == nil {
			return r.lock, r.err
		}
		r.lock.Release(ctx) // it came too late: pass it on
		return nil, ctx.Err()
	}
	defer c.unlock()
	return nil, r.gaveUp(ctx, id)
}

// gaveUp is the error of a request that has given up; id is the claim that it shared. c.mu is held.
func (r *request) gaveUp(ctx context.Context, id core.ClaimID) error {
	p, waited := r.p, record.Short(r.c.now().Sub(r.start))
	switch {
	case p.n.Failed() != nil && ctx.Err() != nil:
		return fmt.Errorf("%w after %s: %w", ctx.Err(), waited, noAnswer(p.n.Failed()))
	case p.n.Failed() != nil:
		return fmt.Errorf("gave up after %s: %w", waited, noAnswer(p.n.Failed()))
	case ctx.Err() == nil && (!p.n.Known() || r.try() && p.n.Asked() < r.start):
		return fmt.Errorf("gave up after %s: the store has not answered", waited)
	}
	held := p.heldError(p.n.InTheWay())
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

// tryPatience is how long a store may take to answer a request that does not wait.
const tryPatience = core.TryPatience

// explain fills in who the claims of a HeldError belong to, and observes their sessions
// as a waiter would. It reports whether the claims of one session are void, and the
// sessions whose claims seem to be. within bounds its calls.
func (c *Client) explain(held *HeldError, within time.Duration) (void bool, silent []string) {
	ctx, cancel := context.WithTimeout(c.ctx, within)
	defer cancel()
	if len(held.Holders)+len(held.Waiters) == 0 { // decided here, without a look
		recs, err := c.store.Load(ctx, []driver.Key{driver.Names.Key(held.Name)}, driver.Fresh)
		if err != nil {
			return false, nil
		}
		if rec, err := lockOf(recs[0]); err == nil {
			for _, h := range rec.Holders {
				held.Holders = append(held.Holders, publicClaim(h, held.Name))
			}
			for _, w := range rec.Waiters {
				held.Waiters = append(held.Waiters, publicClaim(w, held.Name))
			}
		}
	}
	looks, err := c.loadSessions(ctx, held.sessions())
	if err != nil {
		return false, nil
	}
	c.detect(ctx, looks, held.Name)
	c.detector.forgetIdle() // there may be no poll loop to do it
	c.fill(looks, held.Holders, held.Waiters)
	for _, cl := range held.Holders {
		held.Self = held.Self || cl.Own
	}
	return c.anyVoid(held.sessions()), c.seemVoid(held, looks)
}

// anyVoid says whether the claims of one of the sessions are void.
func (c *Client) anyVoid(sessions []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(sessions, c.isDead)
}

// allVoid says whether the claims of all the sessions are void.
func (c *Client) allVoid(sessions []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(sessions, func(id string) bool { return !c.isDead(id) })
}

// sessions are the sessions of the claims in the way.
func (e *HeldError) sessions() (ids []string) {
	for _, cl := range slices.Concat(e.Holders, e.Waiters) {
		ids = append(ids, cl.Owner.Session)
	}
	return ids
}

// seemVoid returns the sessions in the way that have been dead for their grace, or silent for their
// TTL, by the store's clock or else the wall clocks. This is a hint: it declares nobody dead.
func (c *Client) seemVoid(held *HeldError, looks map[string]sessionRead) (silent []string) {
	for _, id := range held.sessions() {
		s := looks[id]
		rec, err := record.DecodeSession(s.rec.Value)
		since, needs := rec.Age(s.rec.Age), rec.Duration()
		if since < 0 {
			since = time.Since(time.UnixMicro(rec.At))
		}
		if rec.Dead != 0 {
			if since = s.rec.Age; since < 0 {
				since = time.Since(time.UnixMicro(rec.Dead))
			}
			needs = time.Duration(rec.Grace) * time.Millisecond
		}
		c.mu.Lock()
		_, known := c.deaths.Tombstone(id)
		cannot := c.isOurs(id) || rec.Dead == 0 && (rec.Detached || known) // watching for a moment cannot show it dead
		c.mu.Unlock()
		if err == nil && !cannot && rec.TTL > 0 && since >= needs {
			silent = append(silent, id)
		}
	}
	return silent
}

// opens says whether a claim of that many slots would be granted if the claims of the sessions
// in gone were removed.
func opens(held *HeldError, gone []string, slots int) bool {
	stays := func(cl Claim) bool { return !slices.Contains(gone, cl.Owner.Session) }
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

// watchSilent watches sessions that seem to be dead until they are known to be, by any rule of
// the failure detector, or until the grace in a tombstone is over. A process that asks once, and
// has seen nothing before, would otherwise not find out. watchSilent ends as soon as one session
// is seen alive, and reports whether the claims of one of them are void.
func (c *Client) watchSilent(ctx context.Context, held *HeldError, ids []string) (void bool) {
	j := detector{c: c, patient: true} // the client's own forgets sessions that nobody waits for
	first := make(map[string]record.Session)
	for began := c.now(); ctx.Err() == nil && c.ctx.Err() == nil; {
		one, cancel := context.WithTimeout(ctx, DefaultTTL)
		looks, err := c.loadSessions(one, ids)
		if err != nil {
			cancel()
			break
		}
		alive, longest := false, time.Duration(0)
		for _, id := range slices.Sorted(maps.Keys(looks)) {
			s := looks[id]
			v, _ := j.observe(id, s)
			rec := v.Record
			died := c.carryOut(one, v, s.rec.Age, []string{held.Name})
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
		if c.allVoid(ids) || alive || c.now().Sub(began) > 2*longest {
			c.fill(looks, held.Holders)
			break
		}
		rest := longest / 8
		if at := j.next(ids); at != lease.Never {
			rest = min(rest, max(at.Sub(c.now()), time.Millisecond))
		}
		t := c.machine.NewTimer(rest)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
		t.Stop()
	}
	if void = c.anyVoid(ids); void {
		c.afterDeath()
	}
	return void
}

// Do runs fn while holding the lock on a name. fn's context ends with ctx, when
// the lock is lost, and with Close; the lock is released after fn has returned.
// Do returns the error that kept it from running fn, or fn's error, joined with
// ErrLost if the lock was lost while fn ran, even if fn returned nil. If fn succeeded and
// its release is not confirmed, Do returns that error of Release.
func (c *Client) Do(ctx context.Context, name string, fn func(context.Context, *Lock) error, opts ...Option) error {
	l, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	return c.with(ctx, l, fn)
}

// with runs fn under a lock and releases it.
func (c *Client) with(ctx context.Context, l *Lock, fn func(context.Context, *Lock) error) (err error) {
	if !c.use() {
		return ErrClosed
	}
	defer c.unuse()
	work, cancel := context.WithCancelCause(l.Context())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		stop()
		cancel(nil)
		release, done := context.WithTimeout(context.WithoutCancel(ctx), max(l.sess.left(), time.Millisecond))
		defer done()
		if rel := l.Release(release); errors.Is(rel, ErrLost) || rel != nil && err == nil {
			err = errors.Join(err, rel)
		}
	}()
	return fn(work, l)
}
