package holdfast

import (
	"context"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// afterBeat looks, after a heartbeat that is on disk, once at the names that
// had been given back without waiting for the disk when it was sent: if the
// database crashed in between, the claim is there again, and it is a claim of a
// living session that nobody wants; if not, the heartbeat has carried its end
// along. Ambiguous writes are looked at, too.
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

// recheck finds claims of ours that nobody wants. It loads, for a stale read may show
// what was before the crash.
func (c *Client) recheck(keys []driver.Key) {
	ctx, cancel := context.WithTimeout(c.ctx, DefaultTTL)
	defer cancel()
	for part := range slices.Chunk(keys, 500) {
		asked := c.now()
		recs, err := c.store.Load(ctx, part, driver.Fresh)
		c.mu.Lock()
		for i, k := range part {
			if err != nil {
				c.lazy[k.Name] = asked // at the next beat
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
