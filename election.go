package holdfast

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/holdfast-lock/holdfast/internal/engine"
)

// An Election is an exclusive lock whose queue is the candidates and whose
// token is the term. It is built on the lock and on nothing else. Its methods
// are named as in spindle: Run, HasLock, Leader.
type Election struct {
	c    *Client
	name string
	opts []Option

	mu   sync.Mutex
	runs bool
	term *Lock
	over chan struct{}           // closed when the term's lead has returned and the seat is given back
	stop context.CancelCauseFunc // ends the term's lead
}

var errOneSeat = errors.New("an election has one seat: Shared and Slots are not for it")

// Election makes an election on a name. It does no I/O. Run refuses the options Shared, MinHold,
// and Slots(n) with n above 1.
func (c *Client) Election(name string, opts ...Option) *Election {
	seat := func(r *request) {
		if r.Seat = true; r.Slots != 1 {
			r.Fail(errOneSeat)
		}
	}
	return &Election{c: c, name: name, opts: append(slices.Clip(opts), seat)}
}

var errResigned = errors.New("resigned")

// Run stands for election, leads, and stands again after a loss or Resign. When ctx ends,
// Run returns its cause, and when the client closes, ErrClosed. If lead returns while it
// still leads, Run returns what lead returned.
// lead's context ends when the seat is lost, with Resign, and with ctx; the seat is
// given up only after lead has returned. A nil lead just holds the seat: ask HasLock.
// A second Run at the same time is refused.
func (e *Election) Run(ctx context.Context, lead func(context.Context, *Lock) error) error {
	if lead == nil {
		lead = func(ctx context.Context, _ *Lock) error { <-ctx.Done(); return nil }
	}
	if e.c.request(ctx, e.name, e.opts).Least > 0 {
		return fmt.Errorf("election %q: %w", e.name, engine.ErrNoMinHold)
	}
	e.mu.Lock()
	again := e.runs
	e.runs = true
	e.mu.Unlock()
	if again {
		return fmt.Errorf("election %q: Run runs already", e.name)
	}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.runs = false
	}()
	for {
		l, err := e.c.Acquire(ctx, e.name, e.opts...)
		if err != nil {
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, ErrLost):
				continue
			}
			return err
		}
		over := make(chan struct{})
		term, stop := context.WithCancelCause(ctx)
		closing := context.AfterFunc(e.c.e.Open, func() { stop(ErrClosed) })
		e.mu.Lock()
		e.term, e.over, e.stop = l, over, stop
		e.mu.Unlock()
		err = e.c.e.With(term, l.e(), func(ctx context.Context) error { return lead(ctx, l) })
		closing()
		resigned := errors.Is(context.Cause(term), errResigned)
		e.mu.Lock()
		e.term = nil
		e.mu.Unlock()
		stop(nil)
		close(over)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(context.Cause(term), ErrClosed) || errors.Is(l.Err(), ErrClosed) || errors.Is(err, ErrClosed):
			return ErrClosed
		case errors.Is(l.Err(), ErrLost), resigned:
			// stand again
		default:
			return err
		}
	}
}

// HasLock says, without I/O, whether this process leads at this moment, and returns
// the lock, for its token and the fence.
func (e *Election) HasLock() (*Lock, bool) {
	e.mu.Lock()
	l := e.term
	e.mu.Unlock()
	if l == nil || l.Err() != nil {
		return nil, false
	}
	return l, true
}

// Leader says who leads. Token 0: nobody.
func (e *Election) Leader(ctx context.Context) (Claim, error) {
	info, err := e.c.Show(ctx, e.name)
	if err != nil {
		return Claim{}, fmt.Errorf("leader of %q: %w", e.name, err)
	}
	return info.leader(), nil
}

func (i Info) leader() Claim {
	for _, h := range i.Holders {
		if !h.Dead {
			return h
		}
	}
	return Claim{Name: i.Name}
}

// Observe yields the present leader, and then each new one once, as Watch shows it, until ctx ends.
// Token 0: the seat is empty.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Claim, error] {
	return func(yield func(Claim, error) bool) {
		first, last := true, Claim{}
		for info, err := range e.c.Watch(ctx, e.name) {
			if err != nil {
				if !yield(Claim{}, fmt.Errorf("observe %q: %w", e.name, err)) {
					return
				}
				continue
			}
			leader := info.leader()
			if !first && leader.Token == last.Token && leader.ID == last.ID {
				continue
			}
			first, last = false, leader
			if !yield(leader, nil) {
				return
			}
		}
	}
}

// Resign ends this process's term: lead's context ends, and when lead has
// returned the seat is given up. Run stands again, at the end of the queue.
func (e *Election) Resign(ctx context.Context) error {
	e.mu.Lock()
	l, over, stop := e.term, e.over, e.stop
	e.mu.Unlock()
	if l == nil {
		return nil
	}
	stop(errResigned)
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("resign %q: lead has not returned yet: %w", e.name, ctx.Err())
	}
}
