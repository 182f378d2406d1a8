package engine

import (
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Guests are claims of holds, which package holds serves: they are looked at, and written, along with
// what this client wants of the same names. c.Mu is held for all of these.

// Invite makes a claim of a hold a guest of its name, entered in line if enter is set. The channel
// tells of news.
func (c *Engine) Invite(name string, claim record.Claim, enter bool, news chan struct{}) (*LocalQueue, *core.Guest) {
	p := c.queue(name)
	g := &core.Guest{Claim: claim, Enter: enter, Tag: news}
	c.notes.guests++
	c.perform(p, p.n.Invite(g, c.env()))
	return p, g
}

// Dismiss ends what Invite began.
func (c *Engine) Dismiss(p *LocalQueue, g *core.Guest) {
	c.notes.guests--
	c.perform(p, p.n.Dismiss(g))
}

// Follows says that so many more holds are followed. It watches the store, where that costs nothing,
// to hear of a break at once.
func (c *Engine) Follows(more int) {
	if c.notes.watch.Costs {
		return
	}
	if c.notes.follows += more; more > 0 {
		c.StartWatching()
	}
}

// Recall is the record of a name as this client knows it; nil: it does not.
func (c *Engine) Recall(name string) (*record.Lock, record.Version) {
	if p := c.activeQueue(name); p != nil && p.n.Known() {
		return p.n.Record()
	}
	return nil, 0
}

// Record is the record of the name, as it was last read or written.
func (p *LocalQueue) Record() (*record.Lock, record.Version) { return p.n.Record() }
