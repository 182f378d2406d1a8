package base

import (
	"context"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// Hooks are the functions of the client's Trace. Each may be nil.
type Hooks struct {
	Queued, Acquired, Refused, GaveUp                    Hook
	Released, Lost, FenceRefused                         Hook
	Returned, Broken, Suspected, DeclaredDead, TakenOver Hook
	Heartbeat, SessionEnded, Shortened, StoreCall        Hook
}

// A Hook is called with an event.
type Hook func(context.Context, Event)

// An Event has the fields of holdfast.Event, which describes them.
type Event struct {
	Name      string
	Token     int64
	Slots     int
	Detached  bool
	Queued    bool
	Broken    bool
	Election  bool
	Session   string
	Reason    string
	Waited    time.Duration
	Held      time.Duration
	Took      time.Duration
	Until     time.Time
	TTL       time.Duration
	Operation string
	Rows      int
	Won       int
	Err       error
}

// OfLocks reports whether a function for requests or locks is set.
func (t *Hooks) OfLocks() bool {
	return t.Queued != nil || t.Acquired != nil || t.Refused != nil || t.GaveUp != nil || t.Released != nil || t.Lost != nil
}

// Emit calls a function if it is set.
func Emit(ctx context.Context, f Hook, e Event) {
	if f != nil {
		f(ctx, e)
	}
}

// A tracedStore emits StoreCall after each call.
type tracedStore struct {
	driver.Store
	call Hook
}

// Unwrap is what driver.Find looks through.
func (s *tracedStore) Unwrap() driver.Store { return s.Store }

// Bare is the store that was passed to New.
func (c *Base) Bare() driver.Store {
	if t, ok := c.Store.(*tracedStore); ok {
		return t.Store
	}
	return c.Store
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
