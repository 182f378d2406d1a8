package holds

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/engine"
)

// A follower is one Follow of a hold. Its beats are sent with those of all others. Where the hold
// waits, it is a guest of the name's local queue, and shares the reads of that queue.
type follower struct {
	id   string
	wake chan struct{} // a beat was answered, or the queue has news

	using  chan struct{} // of one: full while the next four fields are in use
	x      *holdCall
	beaten bool  // since the state was last yielded
	failed error // why the hold is over
	tries  int   // beats in a row that were not answered

	// Guarded by c.Mu.
	ttl   time.Duration
	due   lease.Instant      // when its next beat is sent
	index int                // in the heap; -1: it is not there
	queue *engine.LocalQueue // where it is a guest
	guest *core.Guest
}

// Follow renews a hold until ctx ends, yields its state whenever that changes, and returns the error
// with which the hold is over, if it is.
func (c *Keeper) Follow(ctx context.Context, client, id string, yield func(State) bool) error {
	if c.Opts.ReadOnly {
		return base.ErrReadOnly
	}
	f := &follower{id: id, wake: make(chan struct{}, 1), using: make(chan struct{}, 1), x: c.resume(id, client), index: -1}
	if !c.startFollower(f) {
		return base.ErrClosed
	}
	defer c.rememberLast(f)
	defer c.stopFollower(f)
	var last State
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil
		case <-c.Open.Done():
			return base.ErrClosed
		}
		h, beaten, err := c.take(ctx, f)
		switch {
		case err == nil && (h.Detached || !h.Beat.IsZero()) && (beaten || h.Held != last.Held || h.Position != last.Position):
			if last = h; !yield(h) {
				return nil
			}
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, record.ErrLost), errors.Is(err, ErrOther), errors.Is(err, base.ErrClosed), errors.Is(err, base.ErrReadOnly):
			return err
		default:
			c.beatAt(f, c.Now().Add(c.Jitter(base.FirstPoll)))
		}
	}
}

// take returns the state of a followed hold, and whether it was renewed since the last take.
func (c *Keeper) take(ctx context.Context, f *follower) (h State, beaten bool, err error) {
	ctx, cancel, err := c.WhileOpen(ctx, true)
	if err != nil {
		return h, false, err
	}
	defer cancel()
	select {
	case f.using <- struct{}{}:
		defer func() { <-f.using }()
	case <-ctx.Done():
		return h, false, context.Cause(ctx)
	}
	x := f.x
	if f.failed != nil {
		if slices.Contains(x.wrote, true) && c.readNames(ctx, []*holdCall{x}) == nil {
			x.takeBack(ctx)
		}
		return h, false, f.failed
	}
	if x.sent == lease.Never && !x.session.Detached || x.version == 0 {
		return h, false, nil
	}
	c.Mu.Lock()
	var guest core.Guest
	if f.guest != nil {
		guest = *f.guest
	}
	c.Mu.Unlock()
	one := len(x.session.Names) == 1
	switch {
	case x.all && (x.detach == 0 || x.session.Detached):
	case one && guest.State == core.GuestHolds && x.detach == 0:
		held := guest.Claim
		held.Token = guest.Token
		x.names[0].Record, x.names[0].Version, x.all = record.Lock{Holders: []record.Claim{held}}, 0, true
	case one && (guest.State == core.GuestWaits || guest.State == core.GuestUnseen && (f.guest != nil || x.known() && x.names[0].Waits())):
	default:
		errs := make(map[string]error)
		c.goOn(ctx, []*holdCall{x}, errs)
		if err := errs[x.id]; err != nil {
			return h, false, err
		}
	}
	h = x.hold()
	if !h.Held && guest.State == core.GuestWaits && one {
		h.Position = guest.Place
	}
	c.host(f, guest.State)
	x.keep(h)
	x.trim()
	beaten, f.beaten = f.beaten, false
	return h, beaten, nil
}

// host makes a waiting hold a guest of the name that it waits for, and of no other.
func (c *Keeper) host(f *follower, state core.GuestState) {
	at := -1
	for i := range f.x.names {
		if !f.x.all && f.x.names[i].Waits() {
			at = i
		}
	}
	c.Mu.Lock()
	defer c.Unlock()
	if f.guest != nil && at >= 0 && f.queue.Name == f.x.names[at].Name && state != core.GuestGone {
		return
	}
	c.dismiss(f)
	if at >= 0 && !c.Closing {
		f.queue, f.guest = c.Invite(f.x.names[at].Name, f.x.names[at].Claim, false, f.wake)
	}
}

// dismiss ends what Invite began; c.Mu is held.
func (c *Keeper) dismiss(f *follower) {
	if f.guest != nil {
		c.Dismiss(f.queue, f.guest)
		f.queue, f.guest = nil, nil
	}
}

// renewals are the holds that are followed, and the goroutine that renews them.
type renewals struct {
	of      map[string]map[*follower]bool
	due     dueHeap
	running bool
	wake    chan struct{}
}

// startFollower begins to renew a hold. It reports false if the client is closed.
func (c *Keeper) startFollower(f *follower) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Closing {
		return false
	}
	r := &c.renewals
	if r.of == nil {
		r.of, r.wake = make(map[string]map[*follower]bool), make(chan struct{}, 1)
	}
	if r.of[f.id] == nil {
		r.of[f.id] = make(map[*follower]bool)
	}
	r.of[f.id][f] = true
	r.at(f, c.Now())
	if !r.running {
		r.running = true
		c.Spawn(c.renewLoop)
	}
	c.Follows(1)
	return true
}

func (c *Keeper) stopFollower(f *follower) {
	c.Mu.Lock()
	defer c.Unlock()
	r := &c.renewals
	if delete(r.of[f.id], f); len(r.of[f.id]) == 0 {
		delete(r.of, f.id)
	}
	if f.index >= 0 {
		heap.Remove(&r.due, f.index)
	}
	c.Follows(-1)
	c.dismiss(f)
	base.Signal(r.wake)
}

// rememberLast keeps what the last beat of a follower that has stopped has found, for LeaveSole. If
// the store does not answer that beat soon, nobody knows who has renewed the hold.
func (c *Keeper) rememberLast(f *follower) {
	t := c.Machine.NewTimer(holdPatience / 4)
	defer t.Stop()
	select {
	case f.using <- struct{}{}:
		if f.failed == nil && f.x.version != 0 {
			f.x.keep(f.x.hold())
		}
	case <-t.C:
		c.forgetHold(f.id)
	}
}

// at sets when the next beat of a follower is sent; c.Mu is held.
func (r *renewals) at(f *follower, t lease.Instant) {
	switch f.due = t; {
	case !r.of[f.id][f]: // it has ended
	case f.index < 0:
		heap.Push(&r.due, f)
	default:
		heap.Fix(&r.due, f.index)
	}
	base.Signal(r.wake)
}

func (c *Keeper) beatAt(f *follower, t lease.Instant) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.renewals.at(f, t)
}

// beatNow makes all followers of a hold renew it at once, and reports whether there are any; c.Mu
// is held.
func (c *Keeper) beatNow(id string) (followed bool) {
	for f := range c.renewals.of[id] {
		if f.index >= 0 { // else it is being renewed
			c.renewals.at(f, c.Now())
		}
	}
	return c.renewals.of[id] != nil
}

// renewLoop sends the beats of all holds that are followed, until none is.
func (c *Keeper) renewLoop() {
	timer := c.Machine.NewTimer(0)
	defer timer.Stop()
	for {
		c.Mu.Lock()
		r := &c.renewals
		if len(r.of) == 0 || c.Ctx.Err() != nil || c.Closing {
			r.running = false
			c.Mu.Unlock()
			return
		}
		due, pause := r.next(c.Now())
		c.Mu.Unlock()
		if len(due) > 0 {
			c.renewAll(due)
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-c.Open.Done():
		}
	}
}

// next returns the followers whose beat is due, each id once, or how long to pause. If one is due,
// those that are nearly due come along.
func (r *renewals) next(now lease.Instant) (due []*follower, pause time.Duration) {
	if len(r.due) == 0 {
		return nil, base.LastPoll
	}
	if first := r.due[0].due; first > now {
		return nil, min(first.Sub(now), base.LastPoll) // a timer does not run while the machine sleeps
	}
	ids := make(map[string]bool)
	var again []*follower
	for len(r.due) > 0 && len(due) < batch.Most {
		f := r.due[0]
		if f.due > now.Add(f.early()) {
			break
		}
		heap.Pop(&r.due)
		if ids[f.id] {
			again = append(again, f)
			continue
		}
		ids[f.id] = true
		due = append(due, f)
	}
	for _, f := range again {
		heap.Push(&r.due, f)
	}
	return due, 0
}

// early is how long before its time a beat may come along with others.
func (f *follower) early() time.Duration { return f.ttl / 12 }

// renewAll sends the beats that are due, in one call.
func (c *Keeper) renewAll(due []*follower) {
	var calls []*holdCall
	var locked []*follower
	for _, f := range due {
		select {
		case f.using <- struct{}{}:
		default: // take is using it
			c.beatAt(f, c.Now().Add(c.Jitter(base.FirstPoll)))
			continue
		}
		x := f.x
		if x.session.Detached {
			x.version, x.absent = 0, false // read: nothing is written for it
		}
		if f.tries == 0 {
			clear(x.nonces)
		}
		x.sent = lease.Never
		locked, calls = append(locked, f), append(calls, x)
	}
	errs := make(map[string]error)
	ctx, cancel := context.WithTimeout(c.Ctx, 2*holdPatience)
	defer cancel()
	c.beatPart(ctx, calls, errs)
	for _, f := range locked {
		x, err := f.x, errs[f.id]
		var wait time.Duration
		switch {
		case err == nil:
			f.beaten, f.tries = true, 0
			wait = x.session.Duration() / 3
			if x.session.Detached {
				wait = record.DefaultTTL / 3
			}
		case errors.Is(err, record.ErrLost), errors.Is(err, ErrOther):
			f.failed = err
			c.forgetHold(f.id)
		default:
			f.tries++
			wait = min(max(x.session.Duration()/30, base.FirstPoll), base.LastPoll)
		}
		sent := x.sent
		if sent == lease.Never {
			sent = c.Now()
		}
		ttl, over := x.session.Duration(), f.failed != nil
		<-f.using
		c.Mu.Lock()
		f.ttl = ttl
		if !over {
			c.renewals.at(f, sent.Add(wait))
		}
		c.Mu.Unlock()
		if err == nil || over {
			base.Signal(f.wake)
		}
	}
}

// A dueHeap orders followers by when their beats are due.
type dueHeap []*follower

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *dueHeap) Push(f any) {
	f.(*follower).index = len(*h)
	*h = append(*h, f.(*follower))
}
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	f.index = -1
	return f
}
