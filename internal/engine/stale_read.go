package engine

import (
	"context"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Stale reads are used where fresh ones are expensive (driver.Traits). What a stale
// read shows was true once. That is enough to follow a queue, to watch a heartbeat and
// to believe a grant: others can take a grant back only by way of our session, and no
// read, however fresh, is newer than the window by which a grant is believed. Other
// conclusions need a record that was loaded: that a claim we want is not there any
// more, that a session is to be suspected or declared dead.

// read reads the records of queues and then other keys in one query, and loads the
// records for which a stale read is not enough. fresh is unset for a record that was
// not loaded; it has been used if it was news. If await has a limit, the store waits
// for a write of the only key.
func (c *Engine) read(ctx context.Context, queues []*LocalQueue, others []driver.Key, await core.Await) (recs []driver.Record, fresh []bool, asked lease.Instant, err error) {
	keys := make([]driver.Key, 0, len(queues)+len(others))
	for _, p := range queues {
		keys = append(keys, driver.Names.Key(p.Name))
	}
	keys = append(keys, others...)
	asked = c.Now()
	fresh = make([]bool, len(queues))
	if await.Limit > 0 {
		c.Mu.Lock()
		_, version := queues[0].n.Record()
		c.Mu.Unlock()
		rec, err := c.Store.(driver.Awaiter).Await(ctx, keys[0], int64(version), await.Every, await.Limit)
		return []driver.Record{rec}, []bool{true}, asked, err
	}
	if !c.Traits.StaleReads {
		for i := range fresh {
			fresh[i] = true
		}
		recs, err = c.Store.Load(ctx, keys, driver.Fresh)
		return recs, fresh, asked, err
	}
	if recs, err = c.Store.Load(ctx, keys, driver.Stale); err != nil {
		return nil, nil, asked, err
	}
	var load []driver.Key
	c.Mu.Lock()
	for i, p := range queues {
		if !p.idle && (p.pace.Loads(p.n, c.env()) || c.sawStale(p, recs[i])) {
			fresh[i] = true
			load = append(load, keys[i])
		}
	}
	c.Unlock()
	if len(load) == 0 {
		return recs, fresh, asked, nil
	}
	loading := c.Now()
	loaded, err := c.Store.Load(ctx, load, driver.Fresh)
	if err != nil {
		return nil, nil, asked, err
	}
	for i := range queues {
		if fresh[i] {
			recs[i], loaded = loaded[0], loaded[1:]
		}
	}
	return recs, fresh, loading, nil
}

// sawStale handles a record from a stale read, or reports that it must be loaded; c.Mu
// is held.
func (c *Engine) sawStale(p *LocalQueue, r driver.Record) (load bool) {
	var rec record.Lock
	var bad error
	if _, version := p.n.Record(); record.Version(r.Version) > version {
		rec, bad = base.LockOf(r)
	}
	load, eff := p.n.SawStale(rec, record.Version(r.Version), bad, c.env())
	c.Answers = c.Answers || !load
	c.perform(p, eff)
	return load
}

// readStale makes a stale read of a name before a write, which would lose if another
// client has changed the record. If the read fails, the write shows that. c.Mu is held,
// but not during the call.
func (c *Engine) readStale(p *LocalQueue) {
	ctx, cancel := context.WithTimeout(c.Ctx, c.callTimeout())
	defer cancel()
	c.Unlock()
	recs, err := c.Store.Load(ctx, []driver.Key{driver.Names.Key(p.Name)}, driver.Stale)
	c.Mu.Lock()
	p.n.StaleLoaded(err == nil && c.sawStale(p, recs[0]), c.env())
}
