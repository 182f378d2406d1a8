package holdfast

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// Enter acquires the locks of a hold, or puts it in line, and returns its state. It does not wait:
// see Follow. The same request, sent again through any client of the store, finds the hold and
// renews it. So it may be repeated after any error, and continues where it was. If one name is
// free, Enter makes one call to the store; several names take two. It makes up for lost replies
// until ctx ends.
//
// The error is ErrHeld (a *HeldError) if others are in the way and the request does not wait;
// nothing is left behind then. It is ErrLost (an *OverError) if the hold has ended, which is final;
// ErrOtherHold (an *OtherHoldError) if the id is that of another hold; or a *RequestError. With any
// other error the outcome is unknown: the same request may be sent again.
func (c *Client) Enter(ctx context.Context, r HoldRequest) (Hold, error) {
	h, err := c.enter(ctx, r)
	if err != nil {
		return Hold{}, fmt.Errorf("enter hold: %w", err)
	}
	return h, nil
}

func (c *Client) enter(ctx context.Context, r HoldRequest) (Hold, error) {
	r, err := r.check()
	if err != nil {
		return Hold{}, err
	}
	ctx, cancel, err := c.whileOpen(ctx, true)
	if err != nil {
		return Hold{}, err
	}
	defer cancel()
	x := c.newHoldCall(r.ID, r.Client)
	x.wait, x.detach = r.Wait, r.For
	owner := record.Owner(r.Owner)
	x.create = &record.Session{Owner: &owner, TTL: c.holdTTL(ctx, r.TTL).Milliseconds(), Grace: c.opts.Grace.Milliseconds(), Names: r.Names, Client: r.Client}
	x.names = claimsOf(r.ID, x.create, record.Claim{Slots: r.Slots, Since: time.Now().UnixMicro(), Reason: r.Reason, Labels: r.Labels})
	x.wrote, x.since = make([]bool, len(x.names)), make([]bool, len(x.names))
	if known, ok := c.knownHold(r.ID); ok || c.knownDead(r.ID) {
		x.session, x.version = known.session, known.version
		if err := x.load(ctx); err != nil {
			x.failed = err
			if err := x.recover(ctx, 0); err != nil {
				return Hold{}, err
			}
		}
	}
	if len(x.names) == 1 && x.version == 0 && r.Wait {
		x.recall()
	}
	watched := false
	for try := 0; ; try++ {
		plan, err := x.collect(ctx)
		if err != nil {
			if x.version != 0 && (errors.Is(err, ErrLost) || errors.Is(err, ErrOtherHold)) {
				x.takeBack(ctx)
				c.forgetHold(r.ID)
			}
			return Hold{}, err
		}
		if !x.locked && (plan.Missing < 0 || r.Wait && !plan.Full) {
			h := x.hold()
			x.keep(h)
			return h, nil
		}
		held := x.held(plan)
		if void := !x.locked && try < 3 && c.findDead(ctx, held, r.Slots, &watched); void && ctx.Err() == nil {
			if err := x.load(ctx); err == nil {
				continue
			}
		}
		held.Self = false // the request is not this client's own
		x.undo(ctx)
		c.forgetHold(r.ID)
		return Hold{}, held
	}
}

// recall starts from what the client knows of a name that others have claims on, instead of trying
// the name as if it were free.
func (x *holdCall) recall() {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if p := x.c.activeQueue(x.names[0].Name); p != nil && p.n.Known() {
		if rec, version := p.n.Record(); len(rec.Holders)+len(rec.Waiters) > 0 {
			x.names[0].Record, x.names[0].Version = *rec, version
		}
	}
}

// held is the error of a hold that is refused.
func (x *holdCall) held(plan record.HoldPlan) *HeldError {
	n := &x.names[max(plan.Missing, 0)]
	held := &HeldError{Name: n.Name, Locked: x.locked, Full: plan.Full}
	for _, h := range n.Record.Holders {
		held.Holders = append(held.Holders, publicClaim(h, n.Name))
	}
	for _, w := range n.Record.Waiters {
		held.Waiters = append(held.Waiters, publicClaim(w, n.Name))
	}
	return held
}

// findDead fills in who is in the way and says whether one of them is found dead, like TryAcquire.
func (c *Client) findDead(ctx context.Context, held *HeldError, slots int, watched *bool) (void bool) {
	void, silent := c.explain(held, time.Second)
	if !void && !*watched && opens(held, silent, slots) {
		*watched = true
		void = c.watchSilent(ctx, held, silent)
	}
	return void
}

// undo ends the session of a hold that was refused, if this call has made its record, nobody else
// has written the record since, and no write of this call can still arrive.
func (x *holdCall) undo(ctx context.Context) {
	if x.unsure || !x.alone {
		return
	}
	x.writeAside(ctx, driver.Write{Key: driver.Sessions.Key(x.id), Old: x.version, Lazy: true})
}

// takeBack removes the claims that this call has written for a hold that turned out to be over, or
// to be another one.
func (x *holdCall) takeBack(ctx context.Context) {
	var writes []driver.Write
	x.c.mu.Lock()
	for i := range x.names {
		n := &x.names[i]
		if w, ok := n.Left(record.Session{}, x.c.deadNow(), time.Now().UnixMicro()); ok && x.wrote[i] {
			writes = append(writes, holdWrite(n, w))
		}
	}
	x.c.mu.Unlock()
	x.writeAside(ctx, writes...)
}

// holdWrite is a write of a lock record as the store takes it.
func holdWrite(n *record.HoldName, w record.Write) driver.Write {
	return driver.Write{Key: driver.Names.Key(n.Name), Old: int64(w.Old), Value: w.Next.Encode(max(w.Old, 0)), Notify: w.Notify, Lazy: w.Lazy}
}

// writeAside makes writes that may be lost: what they would remove goes with the session anyway.
func (x *holdCall) writeAside(ctx context.Context, writes ...driver.Write) {
	if len(writes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdPatience)
	defer cancel()
	x.c.store.CompareAndSwap(ctx, writes)
}

// holdTTL is ttl or, if that is 0, the client's or the store's setting, which is read now and then.
func (c *Client) holdTTL(ctx context.Context, ttl time.Duration) time.Duration {
	if ttl == 0 {
		ttl = c.opts.TTL
	}
	if ttl != 0 {
		return ttl.Truncate(time.Millisecond)
	}
	c.mu.Lock()
	ttl, at := c.holds.ttl, c.holds.ttlAt
	c.mu.Unlock()
	if ttl != 0 && c.now().Sub(at) < ttl/3 {
		return ttl
	}
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	asked := c.now()
	ttl, err := c.readTTL(ctx, driver.Stale)
	if err != nil {
		return DefaultTTL
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds.ttl, c.holds.ttlAt = ttl, asked
	return ttl
}
