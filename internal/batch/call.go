package batch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// A callContext bounds one call to the store: it ends with the Batcher's context, after its
// timeout, and a moment after the caller's context. The context behind it, with its timer, costs
// as much as a call to a store in memory, so it is only made when somebody waits for its end.
type callContext struct {
	of      *Batcher
	caller  context.Context // nil: there is none
	sent    lease.Instant
	timeout time.Duration
	asked   atomic.Bool
	made    atomic.Pointer[madeContext] // nil until it is needed
}

// A madeContext is the context behind a callContext.
type madeContext struct {
	context.Context
	end func()
}

// ended is the context of a call that has returned.
var ended = func() *madeContext {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return &madeContext{ctx, cancel}
}()

func (x *callContext) left() time.Duration { return x.timeout - x.of.now().Sub(x.sent) }

func (x *callContext) behind() context.Context {
	if made := x.made.Load(); made != nil {
		return made.Context
	}
	ctx, cancel := context.WithTimeout(x.of.ctx, x.left())
	made := &madeContext{ctx, cancel}
	if x.caller != nil && x.caller.Done() != nil {
		stop := context.AfterFunc(x.caller, func() { time.AfterFunc(quickCall, cancel) })
		made.end = func() { stop(); cancel() }
	}
	if !x.made.CompareAndSwap(nil, made) {
		made.end()
	}
	return x.made.Load().Context
}

// end has to be called when the call has returned.
func (x *callContext) end() {
	if !x.made.CompareAndSwap(nil, ended) {
		x.made.Load().end()
	}
}

func (x *callContext) Deadline() (deadline time.Time, ok bool) { return time.Now().Add(x.left()), true }

func (x *callContext) Done() <-chan struct{} { return x.behind().Done() }

func (x *callContext) Value(key any) any { return x.behind().Value(key) }

// Err reads the clock from its second call on: the first comes when the store has just been called.
func (x *callContext) Err() error {
	if made := x.made.Load(); made != nil {
		return made.Err()
	}
	if err := x.of.ctx.Err(); err != nil {
		return err
	}
	if !x.asked.Load() {
		x.asked.Store(true)
		return nil
	}
	if x.left() <= 0 {
		return context.DeadlineExceeded
	}
	return nil
}
