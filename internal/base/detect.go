package base

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A SessionRead is one read of a session's record.
type SessionRead struct {
	Rec   driver.Record
	Asked lease.Instant // before the call was sent
	Got   lease.Instant // after it had been answered
	Stale bool          // it may be out of date: nothing is decided on it
}

// A Detector is a failure detector with what it needs of its client.
type Detector struct {
	C       *Base
	Patient bool // even where nobody waits
	mu      sync.Mutex
	seen    lease.Detector // without sessions that are dead or no longer ahead of us
	hurried bool
	since   lease.Instant
}

func (d *Detector) forget(keep func(session string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.Forget(keep)
}

// ForgetOld drops sessions, except those to keep, that have not been looked at for their TTL.
func (d *Detector) ForgetOld(keep func(session string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.ForgetOld(keep, d.C.Now())
}

// ForgetIdle drops sessions that nobody has looked at for a TTL and a while, so that callers who
// look only now and then, as a break does, go on with what they have seen.
func (d *Detector) ForgetIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.ForgetOld(nil, d.C.Now().Add(-record.DefaultTTL))
}

// Hurry makes the poll loop read the sessions at once.
func (d *Detector) Hurry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hurried, d.since = true, d.C.Now()
}

// Next is when one of the sessions has to be read; Never: no such time is known.
func (d *Detector) Next(sessions []string) lease.Instant {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hurried {
		return d.since
	}
	return d.seen.Next(sessions)
}

// Observe passes one read of a session to the failure detector.
func (d *Detector) Observe(session string, s SessionRead) (lease.Observation, lease.Observer) {
	c := d.C
	o := lease.Observer{By: c.Owner.String(), Patient: d.Patient || c.isWaiting(), TTL: c.ttlGuess(), Clocks: Clocks()}
	d.mu.Lock()
	defer d.mu.Unlock()
	version := record.Version(s.Rec.Version)
	rec, ok := d.seen.Known(session, version)
	if !ok {
		var err error
		if rec, err = record.DecodeSession(s.Rec.Value); err != nil {
			return lease.Observation{Session: session, Record: rec}, o
		}
	}
	if rec.Detached && !d.seen.Watches(session, rec) {
		o.Ago = c.Proof.Recall(session, rec)
	}
	o.Now = c.Now() // read after Recall, which errs on the safe side
	return d.seen.Observe(session, lease.Sighting{Record: rec, Absent: len(s.Rec.Value) == 0, Version: version,
		Age: s.Rec.Age, Asked: s.Asked, Got: s.Got, Stale: s.Stale}, o), o
}

func (c *Base) isWaiting() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.above.Waits()
}

// LoadSessions reads session records.
func (c *Base) LoadSessions(ctx context.Context, ids []string) (map[string]SessionRead, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	keys := make([]driver.Key, 0, len(ids))
	for _, id := range ids {
		if (driver.Sessions.Key(id)).Check() == nil {
			keys = append(keys, driver.Sessions.Key(id))
		}
	}
	looks := make(map[string]SessionRead, len(keys))
	if len(keys) == 0 {
		return looks, nil
	}
	asked := c.Now()
	recs, err := c.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return nil, err
	}
	for i, k := range keys {
		looks[k.Name] = SessionRead{Rec: recs[i], Asked: asked, Got: c.Now()}
	}
	return looks, nil
}

// Detect observes sessions and acts on what it finds. It reports whether any is newly
// known to be dead. names are names where the sessions were seen to have claims, in
// addition to those where this client waits.
func (c *Base) Detect(ctx context.Context, looks map[string]SessionRead, names ...string) (died bool) {
	c.Detector.mu.Lock()
	c.Detector.hurried = false
	c.Detector.mu.Unlock()
	return c.detectBy(&c.Detector, ctx, looks, names...)
}

// detectBy is detect with a detector of the caller's choice.
func (c *Base) detectBy(d *Detector, ctx context.Context, looks map[string]SessionRead, names ...string) (died bool) {
	var unsure []string
	for _, id := range slices.Sorted(maps.Keys(looks)) {
		s := looks[id]
		c.Mu.Lock()
		skip := c.IsOurs(id) || c.IsDead(id)
		c.Mu.Unlock()
		if skip {
			continue
		}
		v, o := d.Observe(id, s)
		if v.Verdict == lease.Alive && !v.Record.Detached && len(s.Rec.Value) > 0 && c.Proof.Gone(id) {
			v = v.DeclareDead(provenDead, o)
		}
		if s.Stale && v.Verdict != lease.Alive {
			unsure = append(unsure, id)
			continue
		}
		if c.CarryOut(ctx, v, s.Rec.Age, names) {
			died = true
		}
	}
	if died {
		c.above.AfterDeath()
	}
	if len(unsure) > 0 {
		died = c.detectBy(d, ctx, c.loadUnsure(ctx, unsure), names...) || died
	}
	return died
}

const provenDead = "its processes are gone, by the kernel's proof"

// ttlGuess is the TTL after which a session without a record is declared dead.
func (c *Base) ttlGuess() time.Duration {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return max(c.TTL(), record.DefaultTTL)
}

// claimTTL looks again at the records where a session was seen to have a
// claim, and returns the longest TTL of the claims that still stand; 0: none does.
func (c *Base) claimTTL(ctx context.Context, session string, names []string) (ttl time.Duration) {
	if names = c.above.Claimants(session, names); len(names) == 0 {
		return 0 // it has left since
	}
	keys := make([]driver.Key, len(names))
	for i, name := range names {
		keys[i] = driver.Names.Key(name)
	}
	asked := c.Now()
	recs, err := c.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return 0 // the next look tells
	}
	c.Mu.Lock()
	defer c.Unlock()
	for i, name := range names {
		c.above.Seen(name, recs[i], asked)
		rec, err := LockOf(recs[i])
		if err != nil {
			continue
		}
		for _, cl := range slices.Concat(rec.Holders, rec.Waiters) {
			if cl.Session == session {
				ttl = max(ttl, time.Duration(cl.TTL)*time.Millisecond, record.MinTTL)
			}
		}
	}
	return ttl
}

// CarryOut acts on an observation of a record of that age, and reports whether the session
// is dead.
func (c *Base) CarryOut(ctx context.Context, j lease.Observation, age time.Duration, names []string) bool {
	id := j.Session
	w := driver.Write{Key: driver.Sessions.Key(id), Old: int64(j.Old), Notify: driver.Everyone}
	switch j.Verdict {
	case lease.Dead:
		c.KnowDead(id, j.Record, age)
		return true
	case lease.Adopt:
		ttl := c.claimTTL(ctx, id, names)
		if ttl == 0 {
			return false // it has left in order since we saw its claim
		}
		j.Next.TTL = ttl.Milliseconds()
		w.Value, w.Notify = j.Next.Encode(), ""
		c.Store.CompareAndSwap(ctx, []driver.Write{w})
	case lease.Suspect:
		w.Value, w.Notify = j.Next.Encode(), id
		if outs, err := c.Store.CompareAndSwap(ctx, []driver.Write{w}); err == nil && outs[0].Won {
			c.emitOf(ctx, c.Trace.Suspected, names, Event{Session: id})
		}
		c.Log.Info("suspected", "session", id, "owner", j.Record.Owner)
	case lease.DeclareDead:
		w.Value = j.Next.Encode()
		outs, err := c.Store.CompareAndSwap(ctx, []driver.Write{w})
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
			c.Log.Info("declared dead", "session", id, "owner", j.Record.Owner, "why", j.Why)
			c.emitOf(ctx, c.Trace.DeclaredDead, names, Event{Session: id, Reason: j.Why})
		}
		c.KnowDead(id, tomb, outs[0].Record.Age)
		return true
	}
	return false
}

// emitOf emits an event about the session of another client. Its Name is the first name, in byte
// order, where the session has a claim.
func (c *Base) emitOf(ctx context.Context, f Hook, names []string, e Event) {
	if f == nil {
		return
	}
	if names = c.above.Claimants(e.Session, names); len(names) > 0 {
		e.Name = slices.Min(names)
	}
	f(ctx, e)
}

// KnowDead remembers a death.
func (c *Base) KnowDead(id string, tomb record.Session, age time.Duration) {
	c.Mu.Lock()
	grace, news := c.Deaths.Know(id, tomb, age, c.Now(), Clocks())
	if news && grace > 0 {
		c.Machine.AfterFunc(grace, c.above.AfterDeath)
	}
	c.Mu.Unlock()
	c.Detector.forget(func(session string) bool { return session != id })
	c.Proof.DeclareDead(id)
}

// DeclareDead declares dead the sessions whose death the kernel has proved.
func (c *Base) DeclareDead(ids []string) {
	ctx, cancel := context.WithTimeout(c.Ctx, record.DefaultTTL)
	defer cancel()
	looks, err := c.LoadSessions(ctx, ids)
	if err != nil {
		c.Pause(c.Jitter(FirstPoll))
		return
	}
	c.Detect(ctx, looks)
	for _, id := range ids {
		if len(looks[id].Rec.Value) == 0 {
			// It ended, or never began: its claims are those of a session without a record.
			c.Proof.DeclareDead(id)
		}
	}
}

// writeTombstone writes the tombstone of our own session, which has ended in order: its claims
// are void once grace is over.
func (c *Base) writeTombstone(ctx context.Context, session string, ttl, grace time.Duration) error {
	_, err := c.Update(ctx, driver.Sessions.Key(session), driver.Everyone, func(r driver.Record) ([]byte, error) {
		rec, _ := record.DecodeSession(r.Value) // a record that cannot be read is overwritten
		tomb, ok := rec.Closed(&c.Owner, ttl, grace, Clocks())
		if !ok {
			return nil, ErrUnchanged
		}
		return tomb.Encode(), nil
	})
	return err
}

// loadUnsure loads the sessions that need action according to a stale read.
func (c *Base) loadUnsure(ctx context.Context, ids []string) map[string]SessionRead {
	slices.Sort(ids)
	looks, err := c.LoadSessions(ctx, ids)
	if err != nil {
		return nil // at the next look
	}
	return looks
}
