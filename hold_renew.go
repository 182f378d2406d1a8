package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// Beat renews holds, up to 512 in one call to the store if this client has served them before. The
// results are in the order of ids, with errors as from Enter, except ErrHeld. A hold whose id the
// store does not know is over: a beat never makes a record. A waiting hold is advanced, too; a
// detached hold is not written. An error of Beat itself means that the store was not asked.
func (c *Client) Beat(ctx context.Context, client string, ids ...string) ([]HoldResult, error) {
	ctx, cancel, err := c.whileOpen(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("beat: %w", err)
	}
	defer cancel()
	calls := make(map[string]*holdCall, len(ids))
	for _, id := range ids {
		if !record.IsSession(id) {
			return nil, fmt.Errorf("beat: %w", errBadID())
		}
		if calls[id] == nil {
			calls[id] = c.resume(id, client)
		}
	}
	errs := c.beat(ctx, calls)
	results := make([]HoldResult, len(ids))
	for i, id := range ids {
		results[i] = HoldResult{ID: id, Err: errs[id]}
		if errs[id] == nil {
			results[i].Hold = calls[id].hold()
		}
	}
	return results, nil
}

// resume begins a call for a hold with what the client remembers of it.
func (c *Client) resume(id, client string) *holdCall {
	x := c.newHoldCall(id, client)
	if r, ok := c.knownHold(id); ok {
		x.session, x.version, x.names, x.detach, x.all, x.alone = r.session, r.version, slices.Clone(r.names), r.detach, r.held, r.alone
	}
	x.wrote, x.since = make([]bool, len(x.names)), make([]bool, len(x.names))
	x.wait = true
	return x
}

// beat renews holds, and advances those that wait.
func (c *Client) beat(ctx context.Context, calls map[string]*holdCall) (errs map[string]error) {
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
		case errors.Is(err, ErrLost):
			c.forgetHold(id)
		}
	}
	return errs
}

// beatPart renews as many holds as fit in one call, each until its beat has won.
func (c *Client) beatPart(ctx context.Context, left []*holdCall, errs map[string]error) {
	for round := 0; len(left) > 0; round++ {
		if err := c.readSessions(ctx, left); err != nil {
			for _, x := range left {
				errs[x.id] = noAnswer(err)
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
			c.pause(c.jitter(time.Millisecond << min(round, 6)))
		}
		nexts := make([]record.Session, len(left))
		writes := make([]driver.Write, len(left))
		for i, x := range left {
			nexts[i], writes[i] = x.beat(x.extend, false)
		}
		asked := c.now()
		one, cancel := context.WithTimeout(ctx, holdPatience)
		outs, err := c.store.CompareAndSwap(one, writes)
		cancel()
		for i, x := range left {
			switch {
			case err != nil:
				errs[x.id] = noAnswer(err)
			case outs[i].Err != nil:
				errs[x.id] = noAnswer(outs[i].Err)
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
func (c *Client) readSessions(ctx context.Context, calls []*holdCall) error {
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
	asked := c.now()
	recs, err := c.store.Load(ctx, keys, driver.Fresh)
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
func (c *Client) goOn(ctx context.Context, calls []*holdCall, errs map[string]error) {
	if err := c.readNames(ctx, calls); err != nil {
		for _, x := range calls {
			errs[x.id] = noAnswer(err)
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
func (c *Client) readNames(ctx context.Context, calls []*holdCall) error {
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
	recs, err := c.store.Load(ctx, keys, driver.Fresh)
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
func (c *Client) Extend(ctx context.Context, client, id string, d time.Duration) (Hold, error) {
	fail := func(err error) (Hold, error) { return Hold{}, fmt.Errorf("extend hold: %w", err) }
	if d < MinTTL || d > MaxTTL {
		return fail(&RequestError{"for", fmt.Errorf("%v is not between %v and %v", d, MinTTL, MaxTTL)})
	}
	x, err := c.oneHold(ctx, client, id, func(x *holdCall) { x.detach, x.extend = d, true })
	if err == nil && !x.session.Detached {
		err = &RequestError{"for", errors.New("the hold lives by its beats")}
	}
	if err != nil {
		return fail(err)
	}
	return x.hold(), nil
}

// oneHold renews one hold.
func (c *Client) oneHold(ctx context.Context, client, id string, set func(*holdCall)) (*holdCall, error) {
	if !record.IsSession(id) {
		return nil, errBadID()
	}
	ctx, cancel, err := c.whileOpen(ctx, true)
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

// Hold looks at a hold and writes nothing. Beat is zero in the result.
func (c *Client) Hold(ctx context.Context, client, id string) (Hold, error) {
	x, err := c.lookAtHold(ctx, client, id)
	if err != nil {
		return Hold{}, fmt.Errorf("hold: %w", err)
	}
	return x.hold(), nil
}

// lookAtHold reads the records of a hold.
func (c *Client) lookAtHold(ctx context.Context, client, id string) (*holdCall, error) {
	if !record.IsSession(id) {
		return nil, errBadID()
	}
	ctx, cancel, err := c.whileOpen(ctx, false)
	if err != nil {
		return nil, err
	}
	defer cancel()
	x := c.newHoldCall(id, client)
	if err := c.readSessions(ctx, []*holdCall{x}); err != nil {
		return nil, noAnswer(err)
	}
	if err := x.lives(); err != nil {
		return nil, err
	}
	if err := c.readNames(ctx, []*holdCall{x}); err != nil {
		return nil, noAnswer(err)
	}
	return x, nil
}
