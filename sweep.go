package holdfast

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// afterBeat looks, after a heartbeat that is on disk, once at the names that
// had been given back without waiting for the disk when it was sent: if the
// database crashed in between, the claim is there again, and it is a claim of a
// living session that nobody wants; if not, the heartbeat has carried its end
// along. Debts are looked at, too. Now and then it sweeps.
func (c *Client) afterBeat(sent instant) {
	c.mu.Lock()
	defer c.unlock()
	for _, p := range c.places {
		for _, g := range p.groups {
			if g.doubt && g.sess == c.sess {
				g.nr, g.doubt = 0, false // the session lives, and nobody has broken it
				c.kick(p)
			}
		}
		if p.blind {
			p.look = true
			c.kick(p)
		}
	}
	var keys []Key
	for name, answered := range c.lazy {
		if answered < sent {
			keys = append(keys, Key{Names, name})
			delete(c.lazy, name)
		}
	}
	if len(keys) > 0 && c.ctx.Err() == nil {
		c.spawn(func() { c.recheck(keys) })
	}
	if c.machine.Int64N(60) == 0 && c.ctx.Err() == nil {
		every := 20 * c.ttl()
		c.spawn(func() {
			ctx, cancel := context.WithTimeout(c.ctx, every) // then it is another's turn
			defer cancel()
			if c.turnToSweep(ctx, every) {
				c.Sweep(ctx)
			}
		})
	}
}

var sweepKey = Key{Settings, "sweep"}

// turnToSweep says whether nobody has begun to sweep for so long, and if so
// takes the turn: the more clients there are, the more seldom each one sweeps.
// Where the store has no clock, it is who has itself seen nobody begin for so long.
func (c *Client) turnToSweep(ctx context.Context, every time.Duration) bool {
	recs, err := c.store.Load(ctx, []Key{sweepKey})
	if err != nil {
		return false
	}
	last := recs[0]
	if last.Version == 0 {
		last.Version = IfEmpty
	} else if last.Age < 0 {
		c.mu.Lock()
		seen := c.swept
		if seen.version != last.Version {
			c.swept = recent{version: last.Version, at: c.now()}
		}
		c.mu.Unlock()
		if seen.version != last.Version || c.now().sub(seen.at) < every {
			return false
		}
	} else if last.Age < every {
		return false
	}
	value, err := json.Marshal(struct {
		By string `json:"by"`
	}{c.owner.String()})
	if err != nil {
		return false
	}
	outs, err := c.store.CompareAndSwap(ctx, []Write{{Key: sweepKey, Old: last.Version, Value: value, Lazy: true}})
	return err == nil && outs[0].Won
}

// recheck finds claims of ours that nobody wants. It loads, for a glance may show
// what was before the crash.
func (c *Client) recheck(keys []Key) {
	ctx, cancel := context.WithTimeout(c.ctx, DefaultTTL)
	defer cancel()
	for part := range slices.Chunk(keys, 500) {
		asked := c.now()
		recs, err := c.store.Load(ctx, part)
		c.mu.Lock()
		for i, k := range part {
			if err != nil {
				c.lazy[k.Name] = asked // at the next beat
				continue
			}
			rec, err := decodeLock(recs[i].Value, recs[i].Version)
			ours := func(cl claimRecord) bool { return c.isOurs(cl.Session) }
			if err != nil || !slices.ContainsFunc(rec.Holders, ours) && !slices.ContainsFunc(rec.Waiters, ours) {
				continue
			}
			p := c.place(k.Name)
			if len(p.groups)+len(p.leaving) == 0 {
				c.see(p, rec, recs[i].Version, asked)
				c.kick(p)
			}
		}
		c.unlock()
	}
}

// idleRow is how long a row of a name may hold nothing before it is removed.
const idleRow = 10 * time.Minute

// Sweep removes what is left over, and says how many records and rows: sessions
// of the dead once all their claims are void, free records that only kept
// tokens growing, rows of names long unused. It is safe at any time and from
// any number of processes. Clients do it in the background now and then.
func (c *Client) Sweep(ctx context.Context) (removed int, err error) {
	// Sessions first: a tombstone may only go after a full pass over the names
	// that began when it was there.
	looks := make(map[string]sighting)
	for after := ""; ; {
		ids, err := c.store.Keys(ctx, Sessions, after, 200)
		if err != nil {
			return 0, fmt.Errorf("sweep: %w", err)
		}
		if len(ids) == 0 {
			break
		}
		page, err := c.loadSessions(ctx, ids)
		if err != nil {
			return 0, fmt.Errorf("sweep: %w", err)
		}
		for id, s := range page {
			if len(s.rec.Value) > 0 {
				looks[id] = s
			}
		}
		after = ids[len(ids)-1]
	}
	c.judgeAll(ctx, looks)
	c.judge.forget(func(session string) bool { _, ok := looks[session]; return ok })
	claimed := make(map[string][]string)
	for after := ""; ; {
		names, err := c.store.Keys(ctx, Names, after, 200)
		if err != nil {
			return removed, fmt.Errorf("sweep: %w", err)
		}
		if len(names) == 0 {
			break
		}
		after = names[len(names)-1]
		n, err := c.sweepNames(ctx, names, claimed)
		if removed += n; err != nil {
			return removed, fmt.Errorf("sweep: %w", err)
		}
	}
	c.judgeOrphans(ctx, claimed, looks)
	for _, id := range slices.Sorted(maps.Keys(looks)) {
		s := looks[id]
		rec, err := decodeSession(s.rec.Value)
		old := s.rec.Age >= 2*time.Duration(rec.TTL)*time.Millisecond || s.rec.Age < 0 && c.deadFor(id) >= 2*time.Duration(rec.TTL)*time.Millisecond
		if err != nil || rec.Dead == 0 || !old || len(claimed[id]) > 0 {
			continue
		}
		outs, err := c.store.CompareAndSwap(ctx, []Write{{Key: Key{Sessions, id}, Old: s.rec.Version, Lazy: true}})
		if err == nil && outs[0].Won {
			removed++
			c.proof.bury(id)
		}
	}
	if w, ok := c.store.(Sweeper); ok {
		n, err := w.Sweep(ctx, idleRow)
		if removed += n; err != nil {
			return removed, fmt.Errorf("sweep: %w", err)
		}
	}
	return removed, nil
}

// judgeOrphans sees to claims whose session has no record, which a crash of the
// database may leave: it took back the end of a claim, and the session, which knew
// of nothing more, ended in order. They are given a record, by which the next
// sweeps judge them as all others.
func (c *Client) judgeOrphans(ctx context.Context, claimed map[string][]string, looks map[string]sighting) {
	names := make(map[string]bool)
	var ids []string
	for id, at := range claimed {
		if _, ok := looks[id]; !ok {
			ids = append(ids, id)
			for _, name := range at {
				names[name] = true
			}
		}
	}
	for range 2 { // a claim may be seen before its session, or after it
		if len(ids) == 0 || ctx.Err() != nil {
			return
		}
		seen, err := c.loadSessions(ctx, ids)
		if err != nil {
			return // the next sweep comes
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { return len(seen[id].rec.Value) > 0 })
		maps.DeleteFunc(seen, func(_ string, s sighting) bool { return len(s.rec.Value) > 0 })
		c.judgeAll(ctx, seen, slices.Sorted(maps.Keys(names))...)
		c.pause(firstPoll)
	}
}

// deadFor is how long this client has known of a death.
func (c *Client) deadFor(session string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, ok := c.dead[session]
	if !ok {
		return -1
	}
	return c.now().sub(from)
}

// sweepNames voids the claims of the dead, copies audit entries out, and
// empties free records. claimed gathers the sessions that still have claims, and
// where.
func (c *Client) sweepNames(ctx context.Context, names []string, claimed map[string][]string) (removed int, err error) {
	var keys []Key
	for _, n := range names {
		keys = append(keys, Key{Names, n})
	}
	recs, err := c.store.Load(ctx, keys)
	if err != nil {
		return 0, err
	}
	for i, r := range recs {
		rec, err := decodeLock(r.Value, r.Version)
		if err != nil || len(r.Value) == 0 {
			continue
		}
		c.mu.Lock()
		changed := rec.settle(c.isDead)
		c.mu.Unlock()
		free := len(rec.Holders)+len(rec.Waiters)+len(rec.Breaks) == 0
		if changed || free {
			w := Write{Key: keys[i], Old: r.Version, Value: rec.encode(r.Version), Lazy: !rec.gives()}
			if rec.gives() {
				w.Wake = Everyone
			}
			outs, err := c.store.CompareAndSwap(ctx, []Write{w})
			switch {
			case err != nil || !outs[0].Won:
				for _, cl := range slices.Concat(rec.Holders, rec.Waiters) {
					claimed[cl.Session] = append(claimed[cl.Session], names[i])
				}
				// Who else there may be is not known: no tombstone goes in this pass
				// for those that had claims here.
				if old, err := decodeLock(r.Value, r.Version); err == nil {
					for _, cl := range slices.Concat(old.Holders, old.Waiters) {
						claimed[cl.Session] = append(claimed[cl.Session], names[i])
					}
				}
			case len(w.Value) == 0:
				removed++
			}
		}
		for _, cl := range slices.Concat(rec.Holders, rec.Waiters) {
			claimed[cl.Session] = append(claimed[cl.Session], names[i])
		}
		if len(rec.Breaks) > 0 {
			c.copyAudit(ctx, keys[i].Name)
		}
	}
	return removed, nil
}
