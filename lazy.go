package holdfast

import (
	"context"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// afterBeat runs after a heartbeat that is on disk. It looks once at each name that had
// been given back, without waiting for the disk, before the heartbeat was sent. If the
// database crashed in between, the claim is there again: a claim of a living session
// that nobody wants. If not, the heartbeat has taken the end of the claim to disk, too.
// afterBeat also looks at ambiguous writes.
func (c *Client) afterBeat(sent lease.Instant) {
	c.mu.Lock()
	defer c.unlock()
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
	if len(keys) > 0 && c.ctx.Err() == nil {
		c.spawn(func() { c.recheck(keys) })
	}
	c.writeBehind()
	c.followHistory()
	c.sweepInTurn()
}

// recheck finds claims of ours that nobody wants. Its reads are fresh, since a stale read
// may show the record from before the crash.
func (c *Client) recheck(keys []driver.Key) {
	ctx, cancel := context.WithTimeout(c.ctx, DefaultTTL)
	defer cancel()
	for part := range slices.Chunk(keys, 500) {
		asked := c.now()
		recs, err := c.store.Load(ctx, part, driver.Fresh)
		c.mu.Lock()
		for i, k := range part {
			if err != nil {
				c.lazy[k.Name] = asked // look again after the next heartbeat
				continue
			}
			rec, err := lockOf(recs[i])
			ours := func(cl record.Claim) bool { return c.isOurs(cl.Session) }
			if err != nil || !slices.ContainsFunc(rec.Holders, ours) && !slices.ContainsFunc(rec.Waiters, ours) {
				continue
			}
			p := c.queue(k.Name)
			if p.n.Idle() {
				c.answers = true
				c.perform(p, p.n.Saw(rec, record.Version(recs[i].Version), asked, c.env()))
				c.reconcile(p)
			}
		}
		c.unlock()
	}
}
