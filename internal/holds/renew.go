package holds

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Beat renews holds.
func (c *Keeper) Beat(ctx context.Context, client string, ids ...string) ([]Result, error) {
	ctx, cancel, err := c.WhileOpen(ctx, true)
	if err != nil {
		return nil, err
	}
	defer cancel()
	calls := make(map[string]*holdCall, len(ids))
	for _, id := range ids {
		if calls[id] == nil {
			calls[id] = c.resume(id, client)
		}
	}
	errs := c.beat(ctx, calls)
	results := make([]Result, len(ids))
	for i, id := range ids {
		results[i] = Result{ID: id, Err: errs[id]}
		if errs[id] == nil {
			results[i].Hold = calls[id].hold()
		}
	}
	return results, nil
}

// resume begins a call for a hold with what the client remembers of it.
func (c *Keeper) resume(id, client string) *holdCall {
	x := c.newHoldCall(id, client)
	if r, ok := c.knownHold(id); ok {
		x.session, x.version, x.names, x.detach, x.all, x.alone = r.session, r.version, slices.Clone(r.names), r.detach, r.held, r.alone
	}
	x.wrote, x.since = make([]bool, len(x.names)), make([]bool, len(x.names))
	x.wait = true
	return x
}

// beat renews holds, and advances those that wait.
func (c *Keeper) beat(ctx context.Context, calls map[string]*holdCall) (errs map[string]error) {
	errs = make(map[string]error, len(calls))
	var left []*holdCall
	for _, x := range calls {
		left = append(left, x)
	}
	slices.SortFunc(left, func(x, y *holdCall) int { return strings.Compare(x.id, y.id) })
	all := slices.Clone(left)
	for part := range slices.Chunk(left, batch.Most) {
		c.beatPart(ctx, slices.Clone(part), errs)
	}
	all = slices.DeleteFunc(all, func(x *holdCall) bool { return errs[x.id] != nil || x.all })
	c.goOn(ctx, all, errs)
	for id, x := range calls {
		switch err := errs[id]; {
		case err == nil:
			x.keep(x.hold())
		case errors.Is(err, record.ErrLost):
			c.forgetHold(id)
		}
	}
	return errs
}

// beatPart renews as many holds as fit in one call, each until its beat has won.
func (c *Keeper) beatPart(ctx context.Context, left []*holdCall, errs map[string]error) {
	for round := 0; len(left) > 0; round++ {
		if err := c.readSessions(ctx, left); err != nil {
			for _, x := range left {
				errs[x.id] = base.NoAnswer(err)
			}
			return
		}
		left = slices.DeleteFunc(left, func(x *holdCall) bool {
			if err := x.lives(); err != nil {
				errs[x.id] = err
				return true
			}
			return x.sent != lease.Never || x.session.Detached && !x.extend
		})
		if len(left) == 0 {
			return
		}
		if round > 2 {
			c.Pause(c.Jitter(time.Millisecond << min(round, 6)))
		}
		nexts := make([]record.Session, len(left))
		writes := make([]driver.Write, len(left))
		for i, x := range left {
			nexts[i], writes[i] = x.beat(x.extend, false)
		}
		asked := c.Now()
		one, cancel := context.WithTimeout(ctx, holdPatience)
		outs, err := c.Store.CompareAndSwap(one, writes)
		cancel()
		for i, x := range left {
			switch {
			case err != nil:
				errs[x.id] = base.NoAnswer(err)
			case outs[i].Err != nil:
				errs[x.id] = base.NoAnswer(outs[i].Err)
			case outs[i].Won:
				x.won(nexts[i], outs[i].Record.Version)
			default:
				if err := x.sawSession(outs[i].Record, asked); err != nil {
					errs[x.id] = err
				}
			}
		}
		left = slices.DeleteFunc(left, func(x *holdCall) bool { return errs[x.id] != nil })
	}
}

// readSessions reads the records of sessions of which nothing is known.
func (c *Keeper) readSessions(ctx context.Context, calls []*holdCall) error {
	var unknown []*holdCall
	var keys []driver.Key
	for _, x := range calls {
		if x.version == 0 && !x.absent {
			unknown, keys = append(unknown, x), append(keys, driver.Sessions.Key(x.id))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	asked := c.Now()
	recs, err := c.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return err
	}
	for i, x := range unknown {
		if err := x.sawSession(recs[i], asked); err != nil {
			return err
		}
	}
	return nil
}

// goOn looks at the names of holds that are not known to be held, and acquires what each can get.
func (c *Keeper) goOn(ctx context.Context, calls []*holdCall, errs map[string]error) {
	if err := c.readNames(ctx, calls); err != nil {
		for _, x := range calls {
			errs[x.id] = base.NoAnswer(err)
		}
		return
	}
	for _, x := range calls {
		if x.all = x.hold().Held; x.all && (x.detach == 0 || x.session.Detached) || x.session.Detached || !x.known() {
			continue
		}
		if _, err := x.collect(ctx); err != nil {
			errs[x.id] = err
		}
		x.all = x.hold().Held
	}
}

// known says whether the mode of the claims is known: one stands, or this client has entered them.
func (x *holdCall) known() bool { return len(x.names) > 0 && x.names[0].Claim.TTL != 0 }

// readNames reads the lock records of holds, each name once.
func (c *Keeper) readNames(ctx context.Context, calls []*holdCall) error {
	at := make(map[string]int)
	var keys []driver.Key
	for _, x := range calls {
		for _, name := range x.session.Names {
			if _, ok := at[name]; !ok {
				at[name] = len(keys)
				keys = append(keys, driver.Names.Key(name))
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	recs, err := c.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return err
	}
	for _, x := range calls {
		if len(x.names) != len(x.session.Names) {
			x.names = claimsOf(x.id, &x.session, record.Claim{})
			for i := range x.names {
				x.names[i].Claim.TTL = 0
			}
			x.wrote, x.since = make([]bool, len(x.names)), make([]bool, len(x.names))
		}
		for i := range x.names {
			if err := x.sawName(i, recs[at[x.names[i].Name]]); err != nil {
				return err
			}
		}
		x.learnMode()
	}
	return nil
}

// learnMode copies what a claim of the hold says of its mode to those that are still to be entered.
func (x *holdCall) learnMode() {
	if x.known() {
		return
	}
	for i := range x.names {
		n := &x.names[i]
		cl, _, ok := n.Record.Find(x.id, n.Claim.Nr)
		if !ok {
			continue
		}
		for j := range x.names {
			to := &x.names[j].Claim
			to.Slots, to.Reason, to.Labels, to.Since, to.TTL = cl.Slots, cl.Reason, cl.Labels, cl.Since, x.session.TTL
		}
		return
	}
}

// Extend makes a detached hold end d from now.
func (c *Keeper) Extend(ctx context.Context, client, id string, d time.Duration) (State, error) {
	x, err := c.oneHold(ctx, client, id, func(x *holdCall) { x.detach, x.extend = d, true })
	if err == nil && !x.session.Detached {
		err = ErrNotDetached
	}
	if err != nil {
		return State{}, err
	}
	return x.hold(), nil
}

// oneHold renews one hold.
func (c *Keeper) oneHold(ctx context.Context, client, id string, set func(*holdCall)) (*holdCall, error) {
	ctx, cancel, err := c.WhileOpen(ctx, true)
	if err != nil {
		return nil, err
	}
	defer cancel()
	x := c.resume(id, client)
	set(x)
	if err := c.beat(ctx, map[string]*holdCall{id: x})[id]; err != nil {
		return nil, err
	}
	return x, nil
}

// Hold looks at a hold and writes nothing.
func (c *Keeper) Hold(ctx context.Context, client, id string) (State, error) {
	x, err := c.lookAtHold(ctx, client, id)
	if err != nil {
		return State{}, err
	}
	return x.hold(), nil
}

// lookAtHold reads the records of a hold.
func (c *Keeper) lookAtHold(ctx context.Context, client, id string) (*holdCall, error) {
	ctx, cancel, err := c.WhileOpen(ctx, false)
	if err != nil {
		return nil, err
	}
	defer cancel()
	x := c.newHoldCall(id, client)
	if err := c.readSessions(ctx, []*holdCall{x}); err != nil {
		return nil, base.NoAnswer(err)
	}
	if err := x.lives(); err != nil {
		return nil, err
	}
	if err := c.readNames(ctx, []*holdCall{x}); err != nil {
		return nil, base.NoAnswer(err)
	}
	return x, nil
}
