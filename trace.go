package holdfast

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Trace is told of events as they happen, for metrics, spans and logs. Each function may be
// nil. They are called inline, never with a mutex of the client held, by several goroutines at
// once, and must not block: a heartbeat waits for them. The context is that of the call which
// brought the event about, and of Released and Lost that by which the lock was acquired; where
// there was no call it is one without values. It may have ended.
//
// Each lock, also one of a set, has one Acquired, and after that, when it is not held any
// more, one Released or Lost. So Acquired less Released less Lost is what is held, and is at no
// moment negative.
type Trace struct {
	// Of a request, which Name, Slots and Reason tell. One that a set makes in
	// passing is told of only if it waits or succeeds.
	Queued   func(context.Context, Event) // it has joined a queue
	Acquired func(context.Context, Event) // Token, Waited; Detached if by AcquireFor
	Refused  func(context.Context, Event) // it has not waited, and did not get the lock: Waited, Err
	GaveUp   func(context.Context, Event) // it has waited, and did not get the lock: Waited, Err

	// Of a lock, which Name, Token and Slots tell. A detached lock has none of them but
	// Released, where ReleaseToken gives it back.
	Released     func(context.Context, Event) // Held; Err is ErrClosed if Close did it
	Lost         func(context.Context, Event) // Held, Reason; Err is as Lock.Err
	FenceRefused func(context.Context, Event) // Err

	// Of claims of others, by what this client did.
	Broken       func(context.Context, Event) // Break has ended a claim: Name, Token, Session, Reason
	Suspected    func(context.Context, Event) // a heartbeat was asked for: Name, Session
	DeclaredDead func(context.Context, Event) // Name, Session, Reason

	// Heartbeat: one was answered, or not (Err): Took, Until.
	Heartbeat func(context.Context, Event)
	// Shortened: a smaller TTL ends the trust window earlier: TTL, Until. The heartbeat
	// that carries this TTL is sent after Shortened has returned, so whoever enforces the
	// window for the program (the guard of `holdfast run`) knows its end before anyone
	// else can rely on it.
	Shortened func(context.Context, Event)
	// StoreCall: the store has answered, or not (Err), which of a write means
	// perhaps: Operation, Rows, Won, Took.
	StoreCall func(context.Context, Event)
}

// An Event is what a Trace is told. What does not belong to an event is zero; the comment of
// each function says what does. Fields may come to it.
type Event struct {
	Name      string        // of the lock
	Token     int64         // 0: it waits
	Slots     int           // see Lock.Slots
	Detached  bool          // no process keeps it
	Session   string        // whose claim it is; see Owner.Session
	Reason    string        // of the request, of the break, of the loss, why it counts as dead
	Waited    time.Duration // since it was asked for
	Held      time.Duration // since it was granted
	Took      time.Duration // what the store took
	Until     time.Time     // the end of the trust window now, with a monotonic reading
	TTL       time.Duration // the new one
	Operation string        // of the store: load, compare and swap, keys, sweep
	Rows      int           // keys that were asked for, writes that were sent, rows that were listed or removed
	Won       int           // of the writes
	Err       error
}

// And is a trace that tells both, t first. Either may be nil.
func (t *Trace) And(u *Trace) *Trace {
	switch {
	case t == nil:
		return u
	case u == nil:
		return t
	}
	return &Trace{
		Queued: both(t.Queued, u.Queued), Acquired: both(t.Acquired, u.Acquired),
		Refused: both(t.Refused, u.Refused), GaveUp: both(t.GaveUp, u.GaveUp),
		Released: both(t.Released, u.Released), Lost: both(t.Lost, u.Lost), FenceRefused: both(t.FenceRefused, u.FenceRefused),
		Broken: both(t.Broken, u.Broken), Suspected: both(t.Suspected, u.Suspected), DeclaredDead: both(t.DeclaredDead, u.DeclaredDead),
		Heartbeat: both(t.Heartbeat, u.Heartbeat), Shortened: both(t.Shortened, u.Shortened), StoreCall: both(t.StoreCall, u.StoreCall),
	}
}

// ofLocks says whether somebody is told of requests and locks.
func (t *Trace) ofLocks() bool {
	return t.Queued != nil || t.Acquired != nil || t.Refused != nil || t.GaveUp != nil || t.Released != nil || t.Lost != nil
}

func both(f, g func(context.Context, Event)) func(context.Context, Event) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(ctx context.Context, e Event) { f(ctx, e); g(ctx, e) }
}

// tell calls a function of a trace, if there is one.
func tell(ctx context.Context, f func(context.Context, Event), e Event) {
	if f != nil {
		f(ctx, e)
	}
}

// traceQueued tells once that a request has joined a queue; c.mu is held.
func (r *request) traceQueued() {
	f := r.c.trace.Queued
	if r.told || !r.c.traced {
		return
	}
	r.told = true
	if ctx, e := r.ctx, r.event(); f != nil {
		r.c.later = append(r.c.later, func() { f(ctx, e) })
	}
}

func (r *request) event() Event { return Event{Name: r.name, Slots: r.slots, Reason: r.reason} }

// traceAnswer tells what became of a request. Of a lock it tells before anything else is told
// of it; what has happened to it meanwhile comes after that.
func (r *request) traceAnswer(l *Lock, err error) {
	c, e := r.c, r.event()
	e.Waited, e.Err = c.now().Sub(r.start), err
	switch {
	case l != nil:
		e.Token, e.Detached = l.token, c.detaches
		tell(r.ctx, c.trace.Acquired, e)
		c.mu.Lock()
		defer c.unlock()
		if l.told = true; l.err != nil {
			l.traceEnd(l.err)
		}
	case r.told:
		tell(r.ctx, c.trace.GaveUp, e)
	default:
		tell(r.ctx, c.trace.Refused, e)
	}
}

// traceEnd tells that a lock is not held any more; c.mu is held.
func (l *Lock) traceEnd(cause error) {
	t, ctx := l.c.trace, l.values
	e := Event{Name: l.Name(), Token: l.token, Slots: l.slots, Held: l.c.now().Sub(l.since)}
	f := t.Released
	var lost *LostError
	switch {
	case errors.As(cause, &lost):
		f, e.Err, e.Reason = t.Lost, cause, lost.Reason
	case !errors.Is(cause, ErrReleased):
		e.Err = cause
	}
	if f != nil {
		l.c.later = append(l.c.later, func() { f(ctx, e) })
	}
}

// FenceFailed tells the client's Trace of an error of a fence, if that says that the lock was
// lost, and returns it. Those who write fences call it.
func (l *Lock) FenceFailed(ctx context.Context, err error) error {
	if errors.Is(err, ErrLost) {
		tell(ctx, l.c.trace.FenceRefused, Event{Name: l.Name(), Token: l.token, Slots: l.slots, Err: err})
	}
	return err
}

// A tracedStore tells of each call.
type tracedStore struct {
	driver.Store
	call func(context.Context, Event)
}

// Unwrap is what driver.Find looks through.
func (s *tracedStore) Unwrap() driver.Store { return s.Store }

// bare is the store as the caller of New gave it.
func (c *Client) bare() driver.Store {
	if t, ok := c.store.(*tracedStore); ok {
		return t.Store
	}
	return c.store
}

func (s *tracedStore) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	began := time.Now()
	recs, err := s.Store.Load(ctx, keys, how)
	s.call(ctx, Event{Operation: "load", Rows: len(keys), Took: time.Since(began), Err: err})
	return recs, err
}

func (s *tracedStore) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	began := time.Now()
	outs, err := s.Store.CompareAndSwap(ctx, writes)
	e := Event{Operation: "compare and swap", Rows: len(writes), Took: time.Since(began), Err: err}
	for _, out := range outs {
		if out.Won {
			e.Won++
		}
		if e.Err == nil {
			e.Err = out.Err
		}
	}
	s.call(ctx, e)
	return outs, err
}

func (s *tracedStore) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	began := time.Now()
	names, err := s.Store.Keys(ctx, space, after, n)
	s.call(ctx, Event{Operation: "keys", Rows: len(names), Took: time.Since(began), Err: err})
	return names, err
}

func (s *tracedStore) Sweep(ctx context.Context, idle time.Duration) (int, error) {
	began := time.Now()
	n, err := s.Store.Sweep(ctx, idle)
	s.call(ctx, Event{Operation: "sweep", Rows: n, Took: time.Since(began), Err: err})
	return n, err
}
