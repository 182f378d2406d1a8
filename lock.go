package holdfast

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Lock is one grant of a name to one goroutine of this process.
type Lock struct {
	c      *Client
	p      *localQueue
	sess   *session
	token  int64
	nr     int64 // of its claim
	slots  int
	reason string
	seat   bool          // of an election
	labels record.Labels // of its claim in the record
	since  lease.Instant
	waited time.Duration
	values context.Context

	// Guarded by c.mu.
	err       error // why it is no longer held; nil while it is
	broken    bool  // it was lost by a break
	announced bool  // Acquired has been emitted
	going     bool  // its release (left) has begun
	left      claimRelease
	cancel    context.CancelCauseFunc // of ctx
	set       *LockSet

	part *part // set if it has a session of its own; nil: it uses the client's

	ctx atomic.Pointer[context.Context] // see lockContext; set under c.mu
}

// Name is the name that is locked.
func (l *Lock) Name() string { return l.p.name }

// Token is the fencing token: positive, and larger than that of every earlier grant of
// this name, for ever. Among shared holders the order may differ: a shared token is larger
// than those of all earlier exclusive holders.
func (l *Lock) Token() int64 { return l.token }

// Store is the store that the lock is in, for the fences of stores.
func (l *Lock) Store() driver.Store { return l.c.bare() }

// Slots is the most holders the lock tolerates at once: 1 exclusive, N slots,
// 0 any number (shared).
func (l *Lock) Slots() int { return l.slots }

// Context has the values of the acquiring context, but not its end: it ends
// when the lock is lost or released or the client is closed, and
// context.Cause tells which (ErrLost, ErrReleased, ErrClosed). A lock of a set has
// the context of the set.
func (l *Lock) Context() context.Context {
	if l.set != nil {
		return l.set.ctx
	}
	return (*lockContext)(l)
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
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
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
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if x.err != nil {
		return context.Canceled
	}
	return nil
}

func (x *lockContext) String() string { return fmt.Sprintf("holdfast.Lock(%q)", (*Lock)(x).Name()) }

// Err is nil while the lock is held, and afterwards says why it is not. It reads
// the clock itself, so it is right even if a timer is late: it is the check to make
// before an act. Only a fence covers what happens between the check and the act.
func (l *Lock) Err() error {
	l.c.mu.Lock()
	err := l.err
	l.c.mu.Unlock()
	if err == nil && !l.sess.trusted() {
		l.sess.lose("", nil)
		l.c.mu.Lock()
		err = l.err
		l.c.mu.Unlock()
	}
	return err
}

// Deadline is the end of the trust window as of now; it moves with every
// heartbeat. It is for planning: Err decides. The time has a monotonic reading.
func (l *Lock) Deadline() time.Time { return time.Now().Add(l.sess.left()) }

// TTL is how long the lock's session may be silent, as of now, before others may
// take the lock over.
func (l *Lock) TTL() time.Duration {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.sess.life.TTL()
}

// Proof is the open file by which other processes of this host know that the
// lock's session lives. A child process that inherits it keeps the lock from
// being taken over before the TTL when this process dies. Proof is nil where there
// is no such file. The file must not be closed.
func (l *Lock) Proof() *os.File {
	if l.sess.proof == nil {
		return nil
	}
	return l.sess.proof.File
}

// Release ends belief in the lock at once and then gives it back. The write is sent
// even if ctx is done, so `defer lock.Release(ctx)` is right: ctx bounds only
// the wait for the answer. ErrLost: the lock had been lost before. Any other error is
// ambiguous: the client keeps trying to release the lock until its session ends. A
// second Release gives the same answer, or waits for it again.
func (l *Lock) Release(ctx context.Context) error {
	if l.part != nil {
		return l.part.release(ctx, l)
	}
	t := l.c.now()
	l.checkWindow(t)
	var lost error
	l.c.do(ctx, func() { lost = l.releaseLocked(t) })
	if lost != nil {
		return lost
	}
	return l.awaitGone(ctx)
}

// checkWindow ends the session if its window has ended.
func (l *Lock) checkWindow(t lease.Instant) {
	if !l.sess.trustedAt(t) {
		l.sess.lose("", nil)
	}
}

// releaseLocked ends belief in a lock and gives its claim up; c.mu is held. It returns the error of
// a lock that had been lost before. The claim of a broken lock stays in the record until the work
// has stopped, which it has now.
func (l *Lock) releaseLocked(t lease.Instant) (lost error) {
	if l.err == nil {
		l.past(t, record.EndReleased, nil, "")
		l.end((*releasedError)(l))
	} else if errors.Is(l.err, ErrLost) {
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
	case <-c.ctx.Done():
		return fmt.Errorf("release %q: not confirmed before the client was closed; it ends by itself", l.Name())
	case <-ctx.Done():
		c.mu.Lock()
		failed := l.p.n.Failed()
		c.mu.Unlock()
		err := ctx.Err()
		if failed != nil {
			err = fmt.Errorf("%w (%w)", err, failed)
		}
		return fmt.Errorf("release %q: not confirmed: %w; the client keeps trying, and after Close it ends by itself", l.Name(), err)
	}
}

// goneBy returns a channel that is closed when a lock's claim is confirmed gone, or void.
func (c *Client) goneBy(l *Lock) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// end ends belief in the lock with a cause; c.mu is held.
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
// last one is released; c.mu is held.
func (l *Lock) endContexts(cause error) {
	if cancel := l.cancel; cancel != nil {
		l.c.after.call(func() { cancel(cause) })
	}
	held := func(o *Lock) bool { return o.err == nil }
	if set := l.set; set != nil && (!errors.Is(cause, ErrReleased) || !slices.ContainsFunc(set.locks, held)) {
		l.c.after.call(func() { set.cancel(cause) })
	}
}

// lose ends a lock that was not released; c.mu is held. The other locks of its set are
// lost with it. Their claims stay, like the claim of a broken lock, until they are
// released and the work has stopped, or until the present window ends.
func (l *Lock) lose(why string, err error) {
	if l.err != nil {
		return
	}
	lost := &LostError{l.Name(), l.token, why, err}
	t := l.c.now()
	if !l.broken {
		l.past(t, record.EndLost, nil, why)
	}
	l.end(lost)
	l.c.after.call(func() {
		l.c.log.Warn("lock lost", "name", l.Name(), "token", l.token, "why", why, "err", err)
	})
	if p := l.c.part; p != nil {
		broken := l.broken
		l.c.after.call(func() { p.lost(broken) })
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
	l.c.machine.AfterFunc(max(l.sess.left(), 0), func() {
		l.c.mu.Lock()
		defer l.c.unlock()
		for _, o := range others {
			l.c.release(o, l.c.now())
		}
	})
}

// A releasedError is a lock as the error of using it after its release.
type releasedError Lock

func (e *releasedError) Is(target error) bool { return target == ErrReleased }

func (e *releasedError) Error() string {
	return fmt.Sprintf("%q (token %d) has been released", (*Lock)(e).Name(), e.token)
}

// leave is Release without the wait until the claim is gone. The driver of the name gives it
// back.
func (l *Lock) leave() (lost error) {
	t := l.c.now()
	l.checkWindow(t)
	l.c.mu.Lock()
	defer l.c.unlock()
	return l.releaseLocked(t)
}
