package holdfast

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// A callContext bounds one call to the store: it ends with its parent, after its timeout, and
// a moment after the caller's context. The context behind it, with its timer, costs as much
// as a call to a store in memory, and is made when somebody waits for its end.
type callContext struct {
	parent  context.Context
	caller  context.Context // nil: there is none
	now     func() core.Instant
	sent    core.Instant
	timeout time.Duration

	mu     sync.Mutex
	ctx    context.Context // nil until it is needed
	cancel context.CancelFunc
	stop   func() bool
}

func (x *callContext) left() time.Duration { return x.timeout - x.now().Sub(x.sent) }

func (x *callContext) behind() context.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ctx != nil {
		return x.ctx
	}
	ctx, cancel := context.WithTimeout(x.parent, x.left())
	x.ctx, x.cancel = ctx, cancel
	if x.caller != nil && x.caller.Done() != nil {
		x.stop = context.AfterFunc(x.caller, func() { time.AfterFunc(quickCall, cancel) })
	}
	return ctx
}

// end is to be called when the call has returned.
func (x *callContext) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ctx == nil {
		x.ctx = ended
		return
	}
	x.cancel()
	if x.stop != nil {
		x.stop()
	}
}

// ended is the context of a call that has returned.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (x *callContext) Deadline() (deadline time.Time, ok bool) { return time.Now().Add(x.left()), true }

func (x *callContext) Done() <-chan struct{} { return x.behind().Done() }

func (x *callContext) Value(key any) any { return x.behind().Value(key) }

func (x *callContext) Err() error {
	x.mu.Lock()
	ctx := x.ctx
	x.mu.Unlock()
	switch {
	case ctx != nil:
		return ctx.Err()
	case x.parent.Err() != nil:
		return x.parent.Err()
	case x.left() <= 0:
		return context.DeadlineExceeded
	}
	return nil
}
