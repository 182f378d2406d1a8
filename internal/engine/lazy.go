package engine

import (
	"context"
	"slices"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// AfterBeat runs after a heartbeat that is on disk. It looks once at each name that had
// been given back, without waiting for the disk, before the heartbeat was sent. If the
// database crashed in between, the claim is there again: a claim of a living session
// that nobody wants. If not, the heartbeat has taken the end of the claim to disk, too.
// AfterBeat also looks at ambiguous writes.
func (c *Engine) AfterBeat(sent lease.Instant) {
	c.Mu.Lock()
	defer c.Unlock()
	for p := range c.active {
		c.perform(p, p.n.Beaten(c.env()))
		p.rest()
	}
	var keys []driver.Key
	for name, answered := range c.lazy {
		if answered < sent {
			keys = append(keys, driver.Names.Key(name))
			delete(c.lazy, name)
		}
	}
	if len(keys) > 0 && c.Ctx.Err() == nil {
		c.Spawn(func() { c.recheck(keys) })
	}
	c.WriteBehind()
	c.FollowHistory()
	c.SweepInTurn()
}

// recheck finds claims of ours that nobody wants. Its reads are fresh, since a stale read
// may show the record from before the crash.
func (c *Engine) recheck(keys []driver.Key) {
	ctx, cancel := context.WithTimeout(c.Ctx, record.DefaultTTL)
	defer cancel()
	for part := range slices.Chunk(keys, 500) {
		asked := c.Now()
		recs, err := c.Store.Load(ctx, part, driver.Fresh)
		c.Mu.Lock()
		for i, k := range part {
			if err != nil {
				c.lazy[k.Name] = asked // look again after the next heartbeat
				continue
			}
			rec, err := base.LockOf(recs[i])
			ours := func(cl record.Claim) bool { return c.IsOurs(cl.Session) }
			if err != nil || !slices.ContainsFunc(rec.Holders, ours) && !slices.ContainsFunc(rec.Waiters, ours) {
				continue
			}
			p := c.queue(k.Name)
			if p.n.Idle() {
				c.Answers = true
				c.perform(p, p.n.Saw(rec, record.Version(recs[i].Version), asked, c.env()))
				c.reconcile(p)
			}
		}
		c.Unlock()
	}
}
