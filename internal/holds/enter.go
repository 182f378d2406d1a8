package holds

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/engine"
)

// Enter acquires the locks of a hold, or puts it in line, and returns its state.
func (c *Keeper) Enter(ctx context.Context, r Request) (State, error) {
	ctx, cancel, err := c.WhileOpen(ctx, true)
	if err != nil {
		return State{}, err
	}
	defer cancel()
	x := c.newHoldCall(r.ID, r.Client)
	x.wait, x.detach = r.Wait, r.For
	owner := r.Owner
	x.create = &record.Session{Owner: &owner, TTL: c.holdTTL(ctx, r.TTL).Milliseconds(), Grace: c.Opts.Grace.Milliseconds(), Names: r.Names, Client: r.Client}
	x.names = claimsOf(r.ID, x.create, record.Claim{Slots: r.Slots, Since: time.Now().UnixMicro(), Reason: r.Reason, Labels: r.Labels})
	x.wrote, x.since = make([]bool, len(x.names)), make([]bool, len(x.names))
	// Whose the id is has to be read before the claims of a set are written: under the id of another
	// hold, which is in lists, they could pass for the claims of that hold. The claim of a single name
	// cannot, since it has number 1, and the first name of a hold that lives is not free.
	if known, ok := c.knownHold(r.ID); ok || len(x.names) > 1 || c.KnownDead(r.ID) {
		x.session, x.version = known.session, known.version
		if err := x.read(ctx); err != nil {
			return State{}, err
		}
	}
	if len(x.names) == 1 && x.version == 0 && r.Wait {
		x.recall()
	}
	watched := false
	for try := 0; ; try++ {
		plan, err := x.collect(ctx)
		if err != nil {
			if errors.Is(err, record.ErrLost) || errors.Is(err, ErrOther) {
				c.forgetHold(r.ID)
			}
			return State{}, err
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
		return State{}, held
	}
}

// recall starts from what the client knows of a name that others have claims on, instead of trying
// the name as if it were free.
func (x *holdCall) recall() {
	x.c.Mu.Lock()
	defer x.c.Mu.Unlock()
	if rec, version := x.c.Recall(x.names[0].Name); rec != nil && len(rec.Holders)+len(rec.Waiters) > 0 {
		x.names[0].Record, x.names[0].Version = *rec, version
	}
}

// held is the error of a hold that is refused.
func (x *holdCall) held(plan record.HoldPlan) *engine.Held {
	n := &x.names[max(plan.Missing, 0)]
	return &engine.Held{C: x.c.Engine, Name: n.Name, Holders: slices.Clone(n.Record.Holders), Waiters: slices.Clone(n.Record.Waiters), Locked: x.locked, Full: plan.Full}
}

// findDead fills in who is in the way and says whether one of them is found dead, like TryAcquire.
func (c *Keeper) findDead(ctx context.Context, held *engine.Held, slots int, watched *bool) (void bool) {
	void, silent := c.Explain(held, time.Second)
	if !void && !*watched && engine.Opens(held, silent, slots) {
		*watched = true
		void = c.WatchSilent(ctx, held, silent)
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
// to be another one. It leaves those on which the owner of the hold may still count: another call
// may have seen them before the hold was broken, and said that it has its locks.
func (x *holdCall) takeBack(ctx context.Context) {
	var writes []driver.Write
	stands := !x.absent && (x.session.Dead == 0 || x.session.Grace > 0)
	x.c.Mu.Lock()
	for i := range x.names {
		n := &x.names[i]
		its := stands && i < len(x.session.Names) && x.session.Names[i] == n.Name
		if !x.wrote[i] || its {
			continue
		}
		if w, ok := n.Left(record.Session{}, x.c.DeadNow(), time.Now().UnixMicro()); ok {
			writes = append(writes, holdWrite(n, w))
		}
	}
	x.c.Mu.Unlock()
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
	x.c.Store.CompareAndSwap(ctx, writes)
}

// holdTTL is ttl or, if that is 0, the client's or the store's setting, which is read now and then.
func (c *Keeper) holdTTL(ctx context.Context, ttl time.Duration) time.Duration {
	if ttl == 0 {
		ttl = c.Opts.TTL
	}
	if ttl != 0 {
		return ttl.Truncate(time.Millisecond)
	}
	c.Mu.Lock()
	ttl, at := c.kept.ttl, c.kept.ttlAt
	c.Mu.Unlock()
	if ttl != 0 && c.Now().Sub(at) < ttl/3 {
		return ttl
	}
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	asked := c.Now()
	ttl, err := c.ReadTTL(ctx, driver.Stale)
	if err != nil {
		return record.DefaultTTL
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.kept.ttl, c.kept.ttlAt = ttl, asked
	return ttl
}
