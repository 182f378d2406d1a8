package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A Lock is one grant of a name to one goroutine of this process.
type Lock struct {
	c      *Engine
	p      *LocalQueue
	sess   *base.Session
	token  int64
	nr     int64 // of its claim
	slots  int
	reason string
	seat   bool          // of an election
	labels record.Labels // of its claim in the record
	since  lease.Instant
	waited time.Duration
	values context.Context

	// Guarded by c.Mu.
	err       error // why it is no longer held; nil while it is
	broken    bool  // it was lost by a break
	announced bool  // Acquired has been emitted
	going     bool  // its release (left) has begun
	left      claimRelease
	cancel    context.CancelCauseFunc // of ctx
	set       *LockSet

	part *part // set if it has a session of its own; nil: it uses the client's

	ctx atomic.Pointer[context.Context] // see lockContext; set under c.Mu
}

// Package holdfast documents these methods.

func (l *Lock) Name() string { return l.p.Name }

func (l *Lock) Token() int64 { return l.token }

func (l *Lock) Store() driver.Store { return l.c.Bare() }

func (l *Lock) Slots() int { return l.slots }

func (l *Lock) Context() context.Context {
	if l.set != nil {
		return l.set.Ctx
	}
	return (*lockContext)(l)
}

func (l *Lock) Err() error {
	l.c.Mu.Lock()
	err := l.err
	l.c.Mu.Unlock()
	if err == nil && !l.sess.Trusted() {
		l.sess.Lose("", nil)
		l.c.Mu.Lock()
		err = l.err
		l.c.Mu.Unlock()
	}
	return err
}

func (l *Lock) Deadline() time.Time { return time.Now().Add(l.sess.Left()) }

func (l *Lock) TTL() time.Duration {
	l.c.Mu.Lock()
	defer l.c.Mu.Unlock()
	return l.sess.Life.TTL()
}

func (l *Lock) Proof() *os.File {
	if l.sess.Proof == nil {
		return nil
	}
	return l.sess.Proof.File
}

func (l *Lock) Release(ctx context.Context) error {
	if l.part != nil {
		return l.part.release(ctx, l)
	}
	t := l.c.Now()
	l.checkWindow(t)
	var lost error
	l.c.do(ctx, func() { lost = l.releaseLocked(t) })
	if lost != nil {
		return lost
	}
	return l.awaitGone(ctx)
}

// A lockContext is a lock as a context. The real context behind it costs as much
// as a whole hand-off, so it is made only when somebody waits for its end, derives
// another context from it or wants a value. Package context only ever sees that one.
type lockContext Lock

func (x *lockContext) behind() context.Context {
	l := (*Lock)(x)
	if ctx := l.ctx.Load(); ctx != nil {
		return *ctx
	}
	l.c.Mu.Lock()
	defer l.c.Mu.Unlock()
	if ctx := l.ctx.Load(); ctx != nil {
		return *ctx
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.values))
	l.cancel = cancel
	l.ctx.Store(&ctx)
	if l.err != nil {
		cancel(l.err)
	}
	return ctx
}

func (x *lockContext) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (x *lockContext) Done() <-chan struct{} { return x.behind().Done() }

func (x *lockContext) Value(key any) any { return x.behind().Value(key) }

func (x *lockContext) Err() error {
	if ctx := x.ctx.Load(); ctx != nil {
		return (*ctx).Err()
	}
	x.c.Mu.Lock()
	defer x.c.Mu.Unlock()
	if x.err != nil {
		return context.Canceled
	}
	return nil
}

func (x *lockContext) String() string { return fmt.Sprintf("holdfast.Lock(%q)", (*Lock)(x).Name()) }

// checkWindow ends the session if its window has ended.
func (l *Lock) checkWindow(t lease.Instant) {
	if !l.sess.TrustedAt(t) {
		l.sess.Lose("", nil)
	}
}

// releaseLocked ends belief in a lock and gives its claim up; c.Mu is held. It returns the error of
// a lock that had been lost before. The claim of a broken lock stays in the record until the work
// has stopped, which it has now.
func (l *Lock) releaseLocked(t lease.Instant) (lost error) {
	if l.err == nil {
		l.past(t, record.EndReleased, nil, "")
		l.end((*releasedError)(l))
	} else if errors.Is(l.err, record.ErrLost) {
		lost = l.err
	}
	l.c.release(l, t)
	return lost
}

// awaitGone waits until the claim of a lock that was given back is confirmed to be gone.
func (l *Lock) awaitGone(ctx context.Context) error {
	if l.left.gone.Load() {
		return l.confirmed()
	}
	c := l.c
	select {
	case <-c.goneBy(l):
		return l.confirmed()
	case <-c.Ctx.Done():
		return fmt.Errorf("release %q: not confirmed before the client was closed; it ends by itself", l.Name())
	case <-ctx.Done():
		c.Mu.Lock()
		failed := l.p.n.Failed()
		c.Mu.Unlock()
		err := ctx.Err()
		if failed != nil {
			err = fmt.Errorf("%w (%w)", err, failed)
		}
		return fmt.Errorf("release %q: not confirmed: %w; the client keeps trying, and after Close it ends by itself", l.Name(), err)
	}
}

// goneBy returns a channel that is closed when a lock's claim is confirmed gone, or void.
func (c *Engine) goneBy(l *Lock) <-chan struct{} {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if l.left.done == nil {
		if l.left.done = make(chan struct{}); l.left.gone.Load() {
			close(l.left.done)
		}
	}
	return l.left.done
}

func (l *Lock) confirmed() error {
	if l.left.void {
		return fmt.Errorf("release %q: not confirmed before the session ended; it ends by itself", l.Name())
	}
	return nil
}

// end ends belief in the lock with a cause; c.Mu is held.
func (l *Lock) end(cause error) {
	if l.err != nil {
		return
	}
	l.err = cause
	if l.cancel != nil || l.set != nil {
		l.endContexts(cause)
	}
	if l.announced {
		l.traceEnd(cause)
	}
}

// endContexts ends the lock's context, and that of its set when a lock of the set is lost or the
// last one is released; c.Mu is held.
func (l *Lock) endContexts(cause error) {
	if cancel := l.cancel; cancel != nil {
		l.c.After.Call(func() { cancel(cause) })
	}
	held := func(o *Lock) bool { return o.err == nil }
	if set := l.set; set != nil && (!errors.Is(cause, base.ErrReleased) || !slices.ContainsFunc(set.locks, held)) {
		l.c.After.Call(func() { set.cancel(cause) })
	}
}

// lose ends a lock that was not released; c.Mu is held. The other locks of its set are
// lost with it. Their claims stay, like the claim of a broken lock, until they are
// released and the work has stopped, or until the present window ends.
func (l *Lock) lose(why string, err error) {
	if l.err != nil {
		return
	}
	lost := l.c.Opts.Lost(l.Name(), l.token, why, err)
	t := l.c.Now()
	if !l.broken {
		l.past(t, record.EndLost, nil, why)
	}
	l.end(lost)
	l.c.After.Call(func() {
		l.c.Log.Warn("lock lost", "name", l.Name(), "token", l.token, "why", why, "err", err)
	})
	if p := l.c.part; p != nil {
		broken := l.broken
		l.c.After.Call(func() { p.lost(broken) })
	}
	if l.set == nil {
		return
	}
	var others []*Lock
	for _, o := range l.set.locks {
		if o.err == nil {
			o.past(t, record.EndLost, nil, fmt.Sprintf("with %q of the same set: %s", l.Name(), why))
			o.end(lost)
			others = append(others, o)
		}
	}
	l.c.Machine.AfterFunc(max(l.sess.Left(), 0), func() {
		l.c.Mu.Lock()
		defer l.c.Unlock()
		for _, o := range others {
			l.c.release(o, l.c.Now())
		}
	})
}

// A releasedError is a lock as the error of using it after its release.
type releasedError Lock

func (e *releasedError) Is(target error) bool { return target == base.ErrReleased }

func (e *releasedError) Error() string {
	return fmt.Sprintf("%q (token %d) has been released", (*Lock)(e).Name(), e.token)
}

// leave is Release without the wait until the claim is gone. The driver of the name gives it
// back.
func (l *Lock) leave() (lost error) {
	t := l.c.Now()
	l.checkWindow(t)
	l.c.Mu.Lock()
	defer l.c.Unlock()
	return l.releaseLocked(t)
}

// past notes that the lock is over; c.Mu is held.
func (l *Lock) past(t lease.Instant, end record.End, by *record.Owner, why string) {
	held := t.Sub(l.since)
	if l.c.Counted(&l.p.account, l.p.Name, end, held, l.waited) {
		return
	}
	now := time.Now()
	l.c.Ended(l.p.Name, record.Hold{Token: record.Token(l.token), Owner: l.c.Owner, From: now.Add(-held).UnixMicro(), To: now.UnixMicro(),
		Waited: l.waited.Microseconds(), End: end, By: by, Reason: l.reason, Why: why})
}

// Succeeded records that the work under the lock has succeeded.
func (l *Lock) Succeeded(ctx context.Context) error {
	return l.c.RecordSuccess(ctx, l.p.Name, record.Token(l.token))
}

// claim is the lock's claim as the record shows it, without what only its session knows.
func (l *Lock) claim() record.Claim {
	l.c.Mu.Lock()
	defer l.c.Mu.Unlock()
	rec, _ := l.p.n.Record()
	claim, _, _ := rec.Find(l.sess.ID, l.nr)
	return claim
}

// SetLabels replaces the labels of the claim from the next heartbeat on.
func (l *Lock) SetLabels(labels map[string]string) error {
	checked, err := base.CheckLabels(maps.Clone(labels))
	if err == nil {
		err = l.Err()
	}
	if err != nil {
		return fmt.Errorf("set labels of %q: %w", l.Name(), err)
	}
	l.c.Mu.Lock()
	defer l.c.Mu.Unlock()
	if l.err != nil {
		return fmt.Errorf("set labels of %q: %w", l.Name(), l.err)
	}
	if !l.sess.SetLabels(l.nr, l.labels, checked) {
		return fmt.Errorf("set labels of %q: the changed labels of this client would take more than %d bytes", l.Name(), base.MaxChanged)
	}
	return nil
}
