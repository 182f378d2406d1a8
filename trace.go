package holdfast

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Trace receives events as they happen, for metrics, spans and logs. Each function may be nil.
// The client calls them inline and from several goroutines at once, never with a mutex held. They
// must not block: a heartbeat waits for them. The context is that of the call that caused the
// event. For Released and Lost it is the context of the call that acquired the lock. Events
// without such a call have a context without values. The context may have ended.
//
// Each lock, including each of a set, causes one Acquired and later one Released or Lost. So
// Acquired less Released less Lost is the number of locks that the client holds, and is never
// negative. AcquireFor causes both: the client holds the lock until it has detached it.
type Trace struct {
	// These describe a request. All set Name, Slots and Reason. For a name of a set, Queued,
	// GaveUp and Acquired are called as usual, and Refused only when the whole set fails on it.
	Queued   func(context.Context, Event) // the request has joined a queue
	Acquired func(context.Context, Event) // sets Token and Waited; Detached for AcquireFor
	Refused  func(context.Context, Event) // the request failed without waiting: sets Waited and Err
	GaveUp   func(context.Context, Event) // the request failed after waiting: sets Waited and Err

	// These describe a lock. All set Name, Token and Slots.
	Released     func(context.Context, Event) // sets Held; Detached: the lock stays held; Err is ErrClosed if Close released it
	Lost         func(context.Context, Event) // sets Held and Reason; Err is that of Lock.Err
	FenceRefused func(context.Context, Event) // sets Err

	// These describe what this client did to claims of others.
	Returned     func(context.Context, Event) // ReleaseToken has released a detached lock: sets Name, Token, Slots, Held
	Broken       func(context.Context, Event) // Break has ended a claim: sets Name, Token, Session, Reason
	Suspected    func(context.Context, Event) // the session is asked for a heartbeat: sets Name, Session
	DeclaredDead func(context.Context, Event) // sets Name, Session, Reason
	TakenOver    func(context.Context, Event) // a lock whose holder has died is free for the next: sets Name, Token, Slots, Session

	// Heartbeat is called after each heartbeat. It sets Session, TTL, Took and Until, and Err if
	// the store did not answer.
	Heartbeat func(context.Context, Event)
	// SessionEnded is called when a session of this client is over. It sets Session, and Reason
	// and Err if the session was lost. A client begins a session with its first lock, and another
	// with the next lock after a loss. A lock with MinHold has a session of its own, and so has
	// one of AcquireFor until it is detached.
	SessionEnded func(context.Context, Event)
	// Shortened is called when a smaller TTL ends the trust window earlier. It sets Session, TTL
	// and Until. The heartbeat that carries this TTL is sent after Shortened has returned, so
	// whatever enforces the window for the program (the guard of `holdfast run`) knows its end
	// before anyone else can rely on it.
	Shortened func(context.Context, Event)
	// StoreCall is called after each call to the store. It sets Operation, Rows, Won and Took,
	// and Err if the call failed. A failed write is ambiguous.
	StoreCall func(context.Context, Event)
}

// An Event describes what happened. Fields that do not apply are zero; the comment of each function
// of Trace names those that do. Later versions may add fields.
type Event struct {
	Name      string        // of the lock
	Token     int64         // 0: the claim waits
	Slots     int           // see Lock.Slots
	Detached  bool          // no process keeps the lock alive
	Queued    bool          // of Acquired and GaveUp: Queued was called for the request
	Broken    bool          // of Lost: by a break
	Election  bool          // of a request or a lock: it is for the seat of an Election
	Session   string        // the owner of the claim, or the client's own; see Owner.Session
	Reason    string        // of the request, the break, the loss or the declaration of death
	Waited    time.Duration // since the request was made
	Held      time.Duration // since the lock was granted
	Took      time.Duration // duration of the call to the store
	Until     time.Time     // end of the trust window, with a monotonic reading
	TTL       time.Duration // of the session
	Operation string        // of the store: load, await, compare and swap, keys, sweep
	Rows      int           // keys loaded, writes sent, rows listed or removed
	Won       int           // writes that won
	Err       error
}

// And returns a trace that calls the functions of both, those of t first. Either may be nil.
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
		Returned: both(t.Returned, u.Returned), Broken: both(t.Broken, u.Broken), Suspected: both(t.Suspected, u.Suspected), DeclaredDead: both(t.DeclaredDead, u.DeclaredDead),
		TakenOver: both(t.TakenOver, u.TakenOver),
		Heartbeat: both(t.Heartbeat, u.Heartbeat), SessionEnded: both(t.SessionEnded, u.SessionEnded), Shortened: both(t.Shortened, u.Shortened), StoreCall: both(t.StoreCall, u.StoreCall),
	}
}

// ofLocks reports whether a function for requests or locks is set.
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

// emit calls a function of a trace if it is set.
func emit(ctx context.Context, f func(context.Context, Event), e Event) {
	if f != nil {
		f(ctx, e)
	}
}

// traceQueued emits Queued once; c.mu is held.
func (r *request) traceQueued() {
	f := r.c.trace.Queued
	if r.announced || !r.c.traced {
		return
	}
	r.announced = true
	if ctx, e := r.ctx, r.event(); f != nil {
		r.c.after.call(func() { f(ctx, e) })
	}
}

func (r *request) event() Event {
	return Event{Name: r.name, Slots: r.slots, Reason: r.reason, Election: r.seat}
}

// traceAnswer emits the outcome of a request. Acquired is the first event of a lock: a loss or
// release that came in the meantime is emitted after it.
func (r *request) traceAnswer(l *Lock, err error) {
	c, e := r.c, r.event()
	e.Waited, e.Queued, e.Err = c.now().Sub(r.start), r.announced, err
	switch {
	case l != nil:
		e.Token, e.Detached = l.token, c.detaches
		emit(r.ctx, c.trace.Acquired, e)
		c.mu.Lock()
		defer c.unlock()
		if l.announced = true; l.err != nil {
			l.traceEnd(l.err)
		}
	case r.announced:
		emit(r.ctx, c.trace.GaveUp, e)
	default:
		emit(r.ctx, c.trace.Refused, e)
	}
}

// traceEnd emits Released or Lost; c.mu is held.
func (l *Lock) traceEnd(cause error) {
	t, ctx := l.c.trace, l.values
	e := Event{Name: l.Name(), Token: l.token, Slots: l.slots, Held: l.c.now().Sub(l.since), Detached: l.c.detaches, Election: l.seat}
	f := t.Released
	var lost *LostError
	switch {
	case errors.As(cause, &lost):
		f, e.Err, e.Reason, e.Broken = t.Lost, cause, lost.Reason, l.broken
	case !errors.Is(cause, ErrReleased):
		e.Err = cause
	}
	if f != nil {
		l.c.after.call(func() { f(ctx, e) })
	}
}

// FenceFailed emits FenceRefused if err is ErrLost, and returns err. Fences of stores call it.
func (l *Lock) FenceFailed(ctx context.Context, err error) error {
	if errors.Is(err, ErrLost) {
		emit(ctx, l.c.trace.FenceRefused, Event{Name: l.Name(), Token: l.token, Slots: l.slots, Err: err})
	}
	return err
}

// A tracedStore emits StoreCall after each call.
type tracedStore struct {
	driver.Store
	call func(context.Context, Event)
}

// Unwrap is what driver.Find looks through.
func (s *tracedStore) Unwrap() driver.Store { return s.Store }

// bare is the store that was passed to New.
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

// Await implements driver.Awaiter, where the store does.
func (s *tracedStore) Await(ctx context.Context, key driver.Key, version int64, every, limit time.Duration) (driver.Record, error) {
	began := time.Now()
	rec, err := s.Store.(driver.Awaiter).Await(ctx, key, version, every, limit)
	s.call(ctx, Event{Operation: "await", Rows: 1, Took: time.Since(began), Err: err})
	return rec, err
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
