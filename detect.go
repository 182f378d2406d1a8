package holdfast

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"

	"github.com/holdfast-lock/holdfast/driver"
)

// A sessionRead is one read of a session's record.
type sessionRead struct {
	rec   driver.Record
	asked lease.Instant // before the call was sent
	got   lease.Instant // after it had been answered
	stale bool          // it may be out of date: nothing is decided on it
}

// A detector is a failure detector with what it needs of its client.
type detector struct {
	c       *Client
	patient bool // even where nobody waits
	mu      sync.Mutex
	seen    lease.Detector // without sessions that are dead or no longer ahead of us
	hurried bool
	since   lease.Instant
}

func (d *detector) forget(keep func(session string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.Forget(keep)
}

// forgetOld drops sessions, except those to keep, that have not been looked at for their TTL.
func (d *detector) forgetOld(keep func(session string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.ForgetOld(keep, d.c.now())
}

// forgetIdle drops sessions that nobody has looked at for a TTL and a while, so that callers who
// look only now and then, as a break does, go on with what they have seen.
func (d *detector) forgetIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.ForgetOld(nil, d.c.now().Add(-DefaultTTL))
}

// hurry makes the poll loop read the sessions at once.
func (d *detector) hurry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hurried, d.since = true, d.c.now()
}

// next is when one of the sessions has to be read; Never: no such time is known.
func (d *detector) next(sessions []string) lease.Instant {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hurried {
		return d.since
	}
	return d.seen.Next(sessions)
}

// observe passes one read of a session to the failure detector.
func (d *detector) observe(session string, s sessionRead) (lease.Observation, lease.Observer) {
	c := d.c
	o := lease.Observer{By: c.owner.String(), Patient: d.patient || c.isWaiting(), TTL: c.ttlGuess(), Clocks: clocks()}
	d.mu.Lock()
	defer d.mu.Unlock()
	version := record.Version(s.rec.Version)
	rec, ok := d.seen.Known(session, version)
	if !ok {
		var err error
		if rec, err = record.DecodeSession(s.rec.Value); err != nil {
			return lease.Observation{Session: session, Record: rec}, o
		}
	}
	if rec.Detached && !d.seen.Watches(session, rec) {
		o.Ago = c.proof.Recall(session, rec)
	}
	o.Now = c.now() // read after Recall, which errs on the safe side
	return d.seen.Observe(session, lease.Sighting{Record: rec, Absent: len(s.rec.Value) == 0, Version: version,
		Age: s.rec.Age, Asked: s.asked, Got: s.got, Stale: s.stale}, o), o
}

func (c *Client) isWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// loadSessions reads session records.
func (c *Client) loadSessions(ctx context.Context, ids []string) (map[string]sessionRead, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	keys := make([]driver.Key, 0, len(ids))
	for _, id := range ids {
		if (driver.Sessions.Key(id)).Check() == nil {
			keys = append(keys, driver.Sessions.Key(id))
		}
	}
	looks := make(map[string]sessionRead, len(keys))
	if len(keys) == 0 {
		return looks, nil
	}
	asked := c.now()
	recs, err := c.store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return nil, err
	}
	for i, k := range keys {
		looks[k.Name] = sessionRead{rec: recs[i], asked: asked, got: c.now()}
	}
	return looks, nil
}

// detect observes sessions and acts on what it finds. It reports whether any is newly
// known to be dead. names are names where the sessions were seen to have claims, in
// addition to those where this client waits.
func (c *Client) detect(ctx context.Context, looks map[string]sessionRead, names ...string) (died bool) {
	c.detector.mu.Lock()
	c.detector.hurried = false
	c.detector.mu.Unlock()
	return c.detectBy(&c.detector, ctx, looks, names...)
}

// detectBy is detect with a detector of the caller's choice.
func (c *Client) detectBy(d *detector, ctx context.Context, looks map[string]sessionRead, names ...string) (died bool) {
	var unsure []string
	for _, id := range slices.Sorted(maps.Keys(looks)) {
		s := looks[id]
		c.mu.Lock()
		skip := c.isOurs(id) || c.isDead(id)
		c.mu.Unlock()
		if skip {
			continue
		}
		v, o := d.observe(id, s)
		if v.Verdict == lease.Alive && !v.Record.Detached && len(s.rec.Value) > 0 && c.proof.Gone(id) {
			v = v.DeclareDead(provenDead, o)
		}
		if s.stale && v.Verdict != lease.Alive {
			unsure = append(unsure, id)
			continue
		}
		if c.carryOut(ctx, v, s.rec.Age, names) {
			died = true
		}
	}
	if died {
		c.afterDeath()
	}
	if len(unsure) > 0 {
		died = c.detectBy(d, ctx, c.loadUnsure(ctx, unsure), names...) || died
	}
	return died
}

const provenDead = "its processes are gone, by the kernel's proof"

// ttlGuess is the TTL after which a session without a record is declared dead.
func (c *Client) ttlGuess() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sess != nil && c.sess.life.TTL() > 0 {
		return max(c.sess.life.TTL(), DefaultTTL)
	}
	return DefaultTTL
}

// claimTTL looks again at the records where a session was seen to have a
// claim, and returns the longest TTL of the claims that still stand; 0: none does.
func (c *Client) claimTTL(ctx context.Context, session string, names []string) (ttl time.Duration) {
	if names = c.withQueues(session, names); len(names) == 0 {
		return 0 // it has left since
	}
	keys := make([]driver.Key, len(names))
	for i, name := range names {
		keys[i] = driver.Names.Key(name)
	}
	asked := c.now()
	recs, err := c.store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return 0 // the next look tells
	}
	c.mu.Lock()
	defer c.unlock()
	for i, name := range names {
		if p := c.activeQueue(name); p != nil && p.n.Known() {
			c.seeRecord(p, recs[i], asked)
		}
		rec, err := lockOf(recs[i])
		if err != nil {
			continue
		}
		for _, cl := range slices.Concat(rec.Holders, rec.Waiters) {
			if cl.Session == session {
				ttl = max(ttl, time.Duration(cl.TTL)*time.Millisecond, MinTTL)
			}
		}
	}
	return ttl
}

// carryOut acts on an observation of a record of that age, and reports whether the session
// is dead.
func (c *Client) carryOut(ctx context.Context, j lease.Observation, age time.Duration, names []string) bool {
	id := j.Session
	w := driver.Write{Key: driver.Sessions.Key(id), Old: int64(j.Old), Notify: driver.Everyone}
	switch j.Verdict {
	case lease.Dead:
		c.knowDead(id, j.Record, age)
		return true
	case lease.Adopt:
		ttl := c.claimTTL(ctx, id, names)
		if ttl == 0 {
			return false // it has left in order since we saw its claim
		}
		j.Next.TTL = ttl.Milliseconds()
		w.Value, w.Notify = j.Next.Encode(), ""
		c.store.CompareAndSwap(ctx, []driver.Write{w})
	case lease.Suspect:
		w.Value, w.Notify = j.Next.Encode(), id
		if outs, err := c.store.CompareAndSwap(ctx, []driver.Write{w}); err == nil && outs[0].Won {
			c.emitOf(ctx, c.trace.Suspected, names, Event{Session: id})
		}
		c.log.Info("suspected", "session", id, "owner", j.Record.Owner)
	case lease.DeclareDead:
		w.Value = j.Next.Encode()
		outs, err := c.store.CompareAndSwap(ctx, []driver.Write{w})
		if err != nil {
			return false // ambiguous: the next look tells
		}
		now := record.Session{}
		if !outs[0].Won {
			if now, err = record.DecodeSession(outs[0].Record.Value); err != nil {
				return false
			}
		}
		tomb, dead := j.Answered(outs[0].Won, now)
		if !dead {
			return false // it lives
		}
		if outs[0].Won {
			c.log.Info("declared dead", "session", id, "owner", j.Record.Owner, "why", j.Why)
			c.emitOf(ctx, c.trace.DeclaredDead, names, Event{Session: id, Reason: j.Why})
		}
		c.knowDead(id, tomb, outs[0].Record.Age)
		return true
	}
	return false
}

// emitOf emits an event about the session of another client. Its Name is the first name, in byte
// order, where the session has a claim.
func (c *Client) emitOf(ctx context.Context, f func(context.Context, Event), names []string, e Event) {
	if f == nil {
		return
	}
	if names = c.withQueues(e.Session, names); len(names) > 0 {
		e.Name = slices.Min(names)
	}
	f(ctx, e)
}

// withQueues adds the names of local queues in whose records a session has a claim.
func (c *Client) withQueues(session string, names []string) []string {
	its := func(cl record.Claim) bool { return cl.Session == session }
	names = slices.Clone(names)
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.active {
		rec, _ := p.n.Record()
		if has := slices.ContainsFunc(rec.Holders, its) || slices.ContainsFunc(rec.Waiters, its); has && !slices.Contains(names, p.name) {
			names = append(names, p.name)
		}
	}
	return names
}

// knowDead remembers a death.
func (c *Client) knowDead(id string, tomb record.Session, age time.Duration) {
	c.mu.Lock()
	grace, news := c.deaths.Know(id, tomb, age, c.now(), clocks())
	if news && grace > 0 {
		c.machine.AfterFunc(grace, c.afterDeath)
	}
	c.mu.Unlock()
	c.detector.forget(func(session string) bool { return session != id })
	c.proof.DeclareDead(id)
}

// declareDead declares dead the sessions whose death the kernel has proved.
func (c *Client) declareDead(ids []string) {
	ctx, cancel := context.WithTimeout(c.ctx, DefaultTTL)
	defer cancel()
	looks, err := c.loadSessions(ctx, ids)
	if err != nil {
		c.pause(c.jitter(firstPoll))
		return
	}
	c.detect(ctx, looks)
	for _, id := range ids {
		if len(looks[id].rec.Value) == 0 {
			// It ended, or never began: its claims are those of a session without a record.
			c.proof.DeclareDead(id)
		}
	}
}

// writeTombstone writes the tombstone of our own session, which has ended in order: its claims
// are void once grace is over.
func (c *Client) writeTombstone(ctx context.Context, s *session, grace time.Duration) error {
	_, err := c.update(ctx, driver.Sessions.Key(s.id), driver.Everyone, func(r driver.Record) ([]byte, error) {
		rec, _ := record.DecodeSession(r.Value) // a record that cannot be read is overwritten
		tomb, ok := rec.Closed(&c.owner, s.life.TTL(), grace, clocks())
		if !ok {
			return nil, errUnchanged
		}
		return tomb.Encode(), nil
	})
	return err
}
