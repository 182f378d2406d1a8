// Package engine acquires and keeps the locks of a client: a queue for each name, in which goroutines
// wait; the calls that make the record of a name follow what they want, by the steps of package core;
// polls and notifications; and the end of all that.
package engine

import (
	"slices"
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// An Engine has the locks of a client.
type Engine struct {
	base.Base
	traced   bool // a function for requests or locks is set
	Batch    *batch.Batcher
	requests sync.Pool

	// Guarded by Mu, like the local queues and sessions.
	queues    map[string]*LocalQueue   // by name, idle ones included
	idle      int                      // how many are idle
	lazy      map[string]lease.Instant // names written without waiting for the disk, and when that was answered
	here      bool                     // the goroutine that holds mu will drive one queue itself
	mine      *LocalQueue              // that queue
	ambiguous bool                     // a write of unknown outcome was left to the end of the session
	end       ending
	scratch   core.Env // what env returns
	walled    walled
	rooms     core.Rooms
	claims    int64         // claim numbers used
	part      *part         // whose client this is; nil: of none
	parts     []*part       // locks with sessions of their own
	waiting   bool          // the poll loop runs
	nudge     chan struct{} // tells the poll loop that there is something to look at
	notes     notifications
	Renew     func(hold string) (followed bool) // beats for a hold at once; nil: none is ever followed
}

// New makes the engine of a client on a store. It does no I/O.
func New(store driver.Store, cfg base.Config) *Engine {
	c := &Engine{
		queues: make(map[string]*LocalQueue),
		lazy:   make(map[string]lease.Instant),
		end:    newEnding(),
		nudge:  make(chan struct{}, 1),
	}
	c.Init(store, cfg, c)
	c.traced = c.Trace.OfLocks()
	c.requests.New = func() any { return &Request{ch: make(chan struct{}, 1)} }
	c.Batch = batch.New(c.Ctx, c.Store, c.Now, c.Spawn, c.Traits.SingleWrites)
	_, awaits := store.(driver.Awaiter)
	c.scratch = core.Env{
		Stale: c.Traits.StaleReads, Tells: c.Traits.TellsRecords, Awaits: awaits && c.Traits.Awaits, Wall: c.wall, Grace: cfg.Grace,
		Dead:     func(session string) bool { return c.Deaths.Dead(session, c.scratch.Now) },
		NewClaim: func() int64 { c.claims++; return c.claims },
	}
	c.notes.watch.Costs = c.Traits.CostlyWatch
	c.notes.subs = make(map[driver.Key]map[chan struct{}]bool)
	return c
}

// Waits says whether a request of this client waits; c.Mu is held.
func (c *Engine) Waits() bool { return c.waiting }

// Seen handles a record of a name that this client may want.
func (c *Engine) Seen(name string, r driver.Record, asked lease.Instant) {
	if p := c.activeQueue(name); p != nil && p.n.Known() {
		c.seeRecord(p, r, asked)
	}
}

// Claimants adds the names of local queues in whose records a session has a claim.
func (c *Engine) Claimants(session string, names []string) []string {
	its := func(cl record.Claim) bool { return cl.Session == session }
	names = slices.Clone(names)
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for p := range c.active {
		rec, _ := p.n.Record()
		if has := slices.ContainsFunc(rec.Holders, its) || slices.ContainsFunc(rec.Waiters, its); has && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// SessionOpened tells all names that the session is open; c.Mu is held.
func (c *Engine) SessionOpened() {
	for p := range c.active {
		c.perform(p, p.n.SessionOpened(c.env()))
		p.rest()
	}
}

// SessionLost tells all names that the session is lost; c.Mu is held.
func (c *Engine) SessionLost(id, why string, err error) {
	for p := range c.active {
		c.perform(p, p.n.SessionLost(id, why, err, c.env()))
	}
}
