package claims

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// Read reads the value of a column of the data, strongly (at QUORUM): nil if
// there is none.
type Read func(ctx context.Context, key, column []byte) ([]byte, error)

// A Tx is a transaction: several locks that are claimed one by one, checked
// together and held until Delete.
type Tx struct {
	l      *Locker
	read   Read
	ctx    context.Context // ends with the transaction
	cancel context.CancelCauseFunc
	waits  *queue // guarded by the mediator's mutex

	op     sync.Mutex // held while Write or Check is at work
	claims []*claim
	expect [][]byte // of each claim

	mu        sync.Mutex
	held      bool           // Check has succeeded
	announced bool           // Acquired has been emitted
	since     time.Duration  // by steady, when Acquired was emitted
	asked     time.Duration  // by steady, when it began
	stood     bool           // Acquire has waited
	err       error          // why it is over
	last      error          // of the latest renewal
	trust     []lease.Window // of each claim that is held
	timer     *time.Timer
	keep      sync.WaitGroup // the renewals

	leave sync.Once
	gone  chan bool // closed when the claims are removed, or given up
	left  error     // of their removal
}

// Begin begins a transaction. With read, Check compares each locked column's
// value with what was expected; nil: it does not. Delete ends the transaction: call
// it whatever the other methods return.
func (l *Locker) Begin(read Read) *Tx { return l.begin(context.Background(), read) }

func (l *Locker) begin(ctx context.Context, read Read) *Tx {
	t := &Tx{l: l, read: read, asked: l.steady(), gone: make(chan bool)}
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		t.fail(holdfast.ErrClosed)
		t.leave.Do(func() { close(t.gone) })
		return t
	}
	l.open[t] = true
	l.behind.Add(1)
	return t
}

// Write claims the lock of a column of a key. It waits for transactions of this
// process, until ctx is done, but not for those of others, which are left to Check.
// expected is the value that Check wants to find, nil for none. A second Write of
// the same column does nothing. An error ends the transaction, and its claims are
// removed, unless it refuses a Write after Check.
func (t *Tx) Write(ctx context.Context, key, column, expected []byte) error {
	err := t.do(ctx, func(ctx context.Context) error {
		if t.isHeld() {
			return errChecked
		}
		for _, c := range t.claims {
			if bytes.Equal(c.key, key) && bytes.Equal(c.column, column) {
				return nil
			}
		}
		c, err := t.enter(ctx, key, column)
		if err != nil {
			return err
		}
		t.expect = append(t.expect, bytes.Clone(expected))
		return c.stake(ctx)
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("claim key %q, column %q: %w", key, column, err)
	if !errors.Is(err, errChecked) {
		t.end(err)
		t.traceRefused(err)
	}
	return err
}

// emit calls a function of the trace, if it is set, for each claim. t.mu is not held.
func (t *Tx) emit(f func(context.Context, holdfast.Event), e holdfast.Event) {
	if f == nil {
		return
	}
	for _, c := range t.claims {
		e.Name = c.String()
		f(t.ctx, e)
	}
}

// traceRefused emits Refused, or GaveUp after a wait.
func (t *Tx) traceRefused(err error) {
	f := t.l.opts.Trace.Refused
	if t.stood {
		f = t.l.opts.Trace.GaveUp
	}
	t.emit(f, holdfast.Event{Waited: t.l.steady() - t.asked, Err: err})
}

// traceHeld emits Acquired, once, as the first event of the locks.
func (t *Tx) traceHeld() {
	t.mu.Lock()
	first := t.held && t.since == 0
	if first {
		t.since = t.l.steady()
	}
	t.mu.Unlock()
	if !first {
		return
	}
	t.emit(t.l.opts.Trace.Acquired, holdfast.Event{Waited: t.since - t.asked})
	t.mu.Lock()
	t.announced = true
	err := t.err
	t.mu.Unlock()
	if err != nil {
		t.traceEnd(err)
	}
}

// traceEnd emits Released or Lost.
func (t *Tx) traceEnd(err error) {
	e := holdfast.Event{Held: t.l.steady() - t.since}
	f := t.l.opts.Trace.Released
	var lost *holdfast.LostError
	switch {
	case errors.As(err, &lost):
		f, e.Err, e.Reason = t.l.opts.Trace.Lost, err, lost.Reason
	case !errors.Is(err, holdfast.ErrReleased):
		e.Err = err
	}
	t.emit(f, e)
}

var errChecked = errors.New("no lock can be added after Check")

// do runs a part of the transaction; the part's ctx also ends with the transaction.
func (t *Tx) do(ctx context.Context, part func(context.Context) error) error {
	t.op.Lock()
	defer t.op.Unlock()
	if err := t.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	err := part(ctx)
	if over := t.Err(); err != nil && over != nil {
		return over
	}
	return err
}

// enter takes the local lock, and makes sure that the settings agree.
func (t *Tx) enter(ctx context.Context, key, column []byte) (*claim, error) {
	c := t.l.claim(key, column)
	if err := t.l.mediator.lock(ctx, string(c.row), t); err != nil {
		return nil, &HeldError{Local: true, Err: err}
	}
	t.claims = append(t.claims, c)
	return c, t.l.agree(ctx)
}

// Check waits until the claims may be judged, and finds out whether each of them
// is first; then it compares the expected values. nil: all locks are held, and kept by
// renewals until Delete. A *HeldError says that another claim was first, a
// *MismatchError that a value was not the expected one. Any error of this first Check
// ends the transaction. A later call only looks whether the claims still stand.
func (t *Tx) Check(ctx context.Context) error {
	err := t.do(ctx, func(ctx context.Context) error {
		if t.isHeld() {
			return t.recheck(ctx)
		}
		err := t.check(ctx)
		if err != nil {
			t.end(err)
			t.traceRefused(err)
		}
		return err
	})
	t.traceHeld()
	if err != nil {
		return fmt.Errorf("check %w", err)
	}
	return nil
}

func (t *Tx) check(ctx context.Context) error {
	for _, c := range t.claims {
		err := c.settle(ctx, c.ready)
		var s sight
		if err == nil {
			s, err = c.look(ctx)
		}
		if err == nil {
			err = c.grant(s)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
	}
	if err := t.hold(); err != nil || t.read == nil {
		return err
	}
	for i, c := range t.claims {
		got, err := t.read(ctx, c.key, c.column)
		if err != nil {
			return fmt.Errorf("%v: reading the value: %w", c, err)
		}
		if want := t.expect[i]; !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			return &MismatchError{c.key, c.column, want, got}
		}
	}
	return t.Err()
}

// recheck looks whether the claims are still first. An error of the store proves
// nothing, and does not end the transaction.
func (t *Tx) recheck(ctx context.Context) error {
	for _, c := range t.claims {
		s, err := c.look(ctx)
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		if s.ahead > 0 || s.missing {
			t.lose("it is no longer the first", nil)
		}
	}
	return t.Err()
}

// hold begins to trust the claims, and to renew them.
func (t *Tx) hold() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	for _, c := range t.claims {
		var w lease.Window
		w.ExtendTo(lease.Instant(c.until), lease.Instant(t.l.steady()))
		t.trust = append(t.trust, w)
	}
	if t.remains() <= 0 {
		return ErrExpired // while others were checked
	}
	t.held = true
	t.timer = time.AfterFunc(t.soon(), t.expire)
	for i := range t.claims {
		t.keep.Go(func() { t.keeper(i) })
	}
	return nil
}

func (t *Tx) isHeld() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// remains is how long the claims may still be trusted; t.mu is held.
func (t *Tx) remains() time.Duration {
	now, left := lease.Instant(t.l.steady()), t.l.trust()
	for _, w := range t.trust {
		left = min(left, w.Left(now))
	}
	return left
}

// soon is how long to wait before looking whether trust has ended; t.mu is held. A timer does
// not run while the machine sleeps, so it is at most a second.
func (t *Tx) soon() time.Duration { return min(max(t.remains(), 0), time.Second) }

// due is the time left until a claim that is held has to be renewed.
func (c *claim) due() time.Duration { return c.began + c.l.trust()/3 - c.l.steady() }

// keeper renews one claim until the transaction is over.
func (t *Tx) keeper(i int) {
	c, l := t.claims[i], t.l
	for {
		for c.due() > 0 {
			if sleep(t.ctx, min(c.due(), time.Second)) != nil {
				return
			}
		}
		sent := l.steady()
		err := l.agree(t.ctx)
		if err == nil {
			err = c.renew(t.ctx)
		}
		if t.ctx.Err() != nil {
			return
		}
		t.mu.Lock()
		t.last = err
		if err == nil {
			t.trust[i].ExtendTo(lease.Instant(c.until), lease.Instant(l.steady()))
		}
		until := time.Now().Add(t.remains())
		t.mu.Unlock()
		if f := l.opts.Trace.Heartbeat; f != nil {
			f(t.ctx, holdfast.Event{Name: c.String(), Took: l.steady() - sent, Until: until, Err: err})
		}
		if final(err) {
			t.lose("it could not be renewed", err)
			return
		}
		if err != nil {
			l.opts.Logger.Warn("claim not renewed", "lock", c.String(), "left", time.Until(until), "err", err)
			if sleep(t.ctx, jitter(l.trust()/60)) != nil {
				return
			}
		}
	}
}

// final says whether err means that a claim no longer stands, whatever the clock says.
func final(err error) bool {
	var settings *SettingsError
	var skew *SkewError
	return errors.As(err, &settings) || errors.As(err, &skew) ||
		errors.Is(err, holdfast.ErrHeld) || errors.Is(err, errMissing) || errors.Is(err, ErrExpired)
}

// fail ends the transaction, if it is not over.
func (t *Tx) fail(err error) {
	t.mu.Lock()
	first := t.err == nil
	if first {
		t.err = err
		if t.timer != nil {
			t.timer.Stop()
		}
		t.cancel(err)
	}
	announced, held := t.announced, t.held
	t.mu.Unlock()
	if lost := (*holdfast.LostError)(nil); first && held && errors.As(err, &lost) {
		for _, c := range t.claims {
			t.l.opts.Logger.Warn("lock lost", "lock", c.String(), "why", lost.Reason, "err", lost.Err)
		}
	}
	if first && announced {
		t.traceEnd(err)
	}
}

func (t *Tx) lose(why string, err error) { t.fail(&holdfast.LostError{Reason: why, Err: err}) }

// end ends the transaction, and removes its claims in the background.
func (t *Tx) end(err error) {
	t.fail(err)
	t.leave.Do(func() { go t.depart() })
}

func (t *Tx) depart() {
	l := t.l
	t.op.Lock() // what is at work has noticed the end, and nothing begins after it
	t.keep.Wait()
	t.op.Unlock()
	for _, c := range t.claims {
		l.mediator.unlock(string(c.row), t)
	}
	var all sync.WaitGroup
	errs := make([]error, len(t.claims))
	for i, c := range t.claims {
		all.Go(func() { errs[i] = c.leave(l.ctx) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			l.opts.Logger.Warn("claim not removed, it expires by itself", "lock", t.claims[i].String(), "err", err)
		}
	}
	t.left = errors.Join(errs...)
	close(t.gone)
	l.mu.Lock()
	delete(l.open, t)
	l.mu.Unlock()
	l.behind.Done()
}

// Err is nil until the transaction is over, and then says why: ErrLost,
// ErrReleased, ErrClosed or the error that Write or Check returned. It reads the
// clock itself, so it is right even when a timer is late: it is the check to make before an act.
func (t *Tx) Err() error {
	t.mu.Lock()
	err, held, left, last := t.err, t.held, t.remains(), t.last
	t.mu.Unlock()
	if err == nil && held && left <= 0 {
		t.lose("its claims may have expired for others", last)
		t.mu.Lock()
		err = t.err
		t.mu.Unlock()
	}
	return err
}

// expire ends the transaction if trust has ended, and looks again soon if not.
func (t *Tx) expire() {
	if t.Err() == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timer.Reset(t.soon())
	}
}

// Context ends when the transaction is over; context.Cause says why.
func (t *Tx) Context() context.Context { return t.ctx }

// Done is closed when the transaction is over.
func (t *Tx) Done() <-chan struct{} { return t.ctx.Done() }

// Deadline is the current end of trust; it moves with every renewal. Before
// Check it is zero. It is for planning: Err decides.
func (t *Tx) Deadline() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		return time.Time{}
	}
	return time.Now().Add(t.remains())
}

// Delete ends the transaction and removes its claims, every column that was ever
// written for them. That is sent even if ctx is done: ctx bounds only the wait.
// ErrLost: a lock had been lost before. Any other error means that claims may
// still stand: the Locker keeps trying until Close, and then they expire by themselves.
// A later call gives the same answer, or waits for it again.
func (t *Tx) Delete(ctx context.Context) error {
	if err := t.Err(); errors.Is(err, holdfast.ErrLost) {
		t.end(err)
		return err
	}
	t.end(holdfast.ErrReleased)
	select {
	case <-t.gone:
		return t.left
	default:
	}
	select {
	case <-t.gone:
		return t.left
	case <-ctx.Done():
		return fmt.Errorf("removing claims: not confirmed: %w", ctx.Err())
	}
}
