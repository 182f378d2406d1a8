package holdfast

import (
	"context"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// Looks where the store has a cheap one that may be out of date (Glancer). What
// it shows was true once, so a queue may be followed by it, a beat watched, and a
// grant believed: nobody takes that back but by way of our session, and no look,
// however fresh, is newer than the window by which it is believed. What else
// follows from a record follows from one that was loaded: that a claim we want is
// not there any more, that somebody is to be marked or buried.

// glance looks at keys as cheaply as the store can.
func (c *Client) glance(ctx context.Context, keys []Key) ([]Record, error) {
	if g, ok := c.store.(Glancer); ok {
		return g.Glance(ctx, keys)
	}
	return c.store.Load(ctx, keys)
}

// lookOver looks at places and then at other keys in one query, and loads the
// records of the places that matter. A record that was not loaded and says
// nothing new has sure unset.
func (c *Client) lookOver(ctx context.Context, places []*place, others []Key) (recs []Record, sure []bool, asked core.Instant, err error) {
	keys := make([]Key, 0, len(places)+len(others))
	for _, p := range places {
		keys = append(keys, Key{Names, p.name})
	}
	keys = append(keys, others...)
	asked = c.now()
	sure = make([]bool, len(places))
	g, ok := c.store.(Glancer)
	if !ok {
		for i := range sure {
			sure[i] = true
		}
		recs, err = c.store.Load(ctx, keys)
		return recs, sure, asked, err
	}
	if recs, err = g.Glance(ctx, keys); err != nil {
		return nil, nil, asked, err
	}
	var load []Key
	c.mu.Lock()
	for i, p := range places {
		if c.places[p.name] == p && c.matters(p, recs[i]) {
			sure[i] = true
			load = append(load, keys[i])
		}
	}
	c.unlock()
	if len(load) == 0 {
		return recs, sure, asked, nil
	}
	loading := c.now()
	loaded, err := c.store.Load(ctx, load)
	if err != nil {
		return nil, nil, asked, err
	}
	for i := range places {
		if sure[i] {
			recs[i], loaded = loaded[0], loaded[1:]
		}
	}
	return recs, sure, loading, nil
}

// matters says whether a record that was glanced at calls for the record as it
// stands; else it is taken in. c.mu is held.
func (c *Client) matters(p *place, r Record) bool {
	return p.pace.Loads(p.n, c.env()) || c.surprises(p, r)
}

// surprises says whether a record that was glanced at is not what others can
// have made of the one last seen; else it is taken in, if it is newer. c.mu is
// held.
func (c *Client) surprises(p *place, r Record) bool {
	if _, version := p.n.Record(); core.Version(r.Version) > version {
		rec, err := lockOf(r)
		if err != nil || !p.n.GoesOn(&rec, c.env()) {
			return true
		}
		c.answers = true
		c.perform(p, p.n.Saw(rec, core.Version(r.Version), p.n.Asked(), c.env())) // not as fresh as a look
	}
	p.n.Answers()
	c.answers = true
	return false
}

// peek glances at a place that a write is about to change, which would lose if
// somebody has changed it meanwhile. If that fails, the write tells.
func (c *Client) peek(p *place) {
	c.mu.Lock()
	timeout := c.callTimeout()
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	recs, err := c.glance(ctx, []Key{{Names, p.name}})
	c.mu.Lock()
	defer c.unlock()
	p.n.Peeked(err == nil && c.surprises(p, recs[0]), c.env())
}

// loadUnsure loads the sessions of which a glance says that something is to be
// done about them.
func (c *Client) loadUnsure(ctx context.Context, ids []string) map[string]sighting {
	slices.Sort(ids)
	looks, err := c.loadSessions(ctx, ids)
	if err != nil {
		return nil // at the next look
	}
	return looks
}
