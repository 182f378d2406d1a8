package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
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

func both(f, g func(context.Context, Event)) func(context.Context, Event) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(ctx context.Context, e Event) { f(ctx, e); g(ctx, e) }
}

// hooks returns the functions of a trace as the parts of a client call them.
func (t *Trace) hooks() *base.Hooks {
	if t == nil {
		return &base.Hooks{}
	}
	return &base.Hooks{
		Queued:       hookOf(t.Queued),
		Acquired:     hookOf(t.Acquired),
		Refused:      hookOf(t.Refused),
		GaveUp:       hookOf(t.GaveUp),
		Released:     hookOf(t.Released),
		Lost:         hookOf(t.Lost),
		FenceRefused: hookOf(t.FenceRefused),
		Returned:     hookOf(t.Returned),
		Broken:       hookOf(t.Broken),
		Suspected:    hookOf(t.Suspected),
		DeclaredDead: hookOf(t.DeclaredDead),
		TakenOver:    hookOf(t.TakenOver),
		Heartbeat:    hookOf(t.Heartbeat),
		SessionEnded: hookOf(t.SessionEnded),
		Shortened:    hookOf(t.Shortened),
		StoreCall:    hookOf(t.StoreCall),
	}
}

func hookOf(f func(context.Context, Event)) base.Hook {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, e base.Event) {
		e.Err = public(e.Err)
		f(ctx, Event(e))
	}
}
