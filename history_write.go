package holdfast

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Ended holds are kept here until they are written, after the next heartbeat: acquiring and
// releasing make no write for them. So a crash loses the holds that ended in the last seconds
// before it, but not those that are still held: the client that removes the claims of the dead
// session writes these at once.

// An account is what is still to be written to the history of a name.
type account struct {
	record.Account
	name    string
	evicted []record.Eviction // to be written once their sessions have been read
	removed bool              // some evicted claims were added to it
}

// Bounds of what is kept and written.
const (
	maxUnwritten  = 1024 // names; holds of other names are forgotten
	maxListed     = 256  // holds listed for them; others are counted
	writtenAtOnce = 64   // names
	settingIsGood = time.Minute
	mostRest      = 6 // heartbeats
)

// unwritten is what is still to be written; the client's mu guards it.
type unwritten struct {
	most     int // holds that a history lists; 0: it is off
	read     lease.Instant
	accounts []*account
	open     map[string]*account // those that may be added to
	listed   int                 // holds in all of them
	writing  chan struct{}       // closed when the background write is done; nil: there is none
	timed    bool                // a timer runs, since without a session there is no heartbeat
	rest     int                 // most heartbeats to skip before the next write; grows while writes lose to others
	beats    int                 // heartbeats still to be skipped
}

// account is the account of a name, or nil if there are too many; c.mu is held.
func (c *Client) account(name string) *account {
	u := &c.unwritten
	if a := u.open[name]; a != nil {
		return a
	}
	if len(u.accounts) >= maxUnwritten {
		return nil
	}
	a := &account{name: name}
	if u.accounts = append(u.accounts, a); u.open == nil {
		u.open = make(map[string]*account)
	}
	u.open[name] = a
	if c.sess == nil && !u.timed {
		u.timed = true
		c.machine.AfterFunc(c.ttl()/3, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			u.timed = false
			c.writeSoon()
		})
	}
	return a
}

// ended notes that a hold is over; c.mu is held.
func (c *Client) ended(name string, h record.Hold) {
	if c.unwritten.most == 0 {
		return
	}
	if a := c.account(name); a != nil && a.Add(h, c.unwritten.listed < maxListed) {
		c.unwritten.listed++
	}
}

// past notes that a lock is over; c.mu is held.
func (l *Lock) past(t lease.Instant, end record.End, by *record.Owner, why string) {
	c, p := l.c, l.p
	if c.unwritten.most == 0 || c.detaches {
		return
	}
	if p.account == nil {
		if p.account = c.account(p.name); p.account == nil {
			return
		}
	}
	held := t.Sub(l.since)
	if end == record.EndReleased && held < record.MinListed && l.waited < record.MinListed || c.unwritten.listed >= maxListed {
		p.account.Others.Add(held, l.waited)
		return
	}
	now := time.Now()
	c.ended(p.name, record.Hold{Token: record.Token(l.token), Owner: c.owner, From: now.Add(-held).UnixMicro(), To: now.UnixMicro(),
		Waited: l.waited.Microseconds(), End: end, By: by, Reason: l.reason, Why: why})
}

// evicted notes that claims of others were removed by a write of ours; c.mu is held.
func (c *Client) evicted(name string, gone []record.Eviction) {
	gone = slices.DeleteFunc(gone, func(e record.Eviction) bool { return c.isOurs(e.Claim.Session) })
	if f := c.trace.TakenOver; f != nil {
		for _, e := range gone {
			if e.Broken == nil && c.deaths.Died(e.Claim.Session) {
				c.after.call(func() {
					f(c.ctx, Event{Name: name, Token: int64(e.Claim.Token), Slots: e.Claim.Slots, Session: e.Claim.Session})
				})
			}
		}
	}
	if len(gone) == 0 || c.unwritten.most == 0 {
		return
	}
	if a := c.account(name); a != nil && len(a.evicted) < maxListed {
		a.evicted = append(a.evicted, gone...)
		c.writeSoon()
	}
}

// settled notes the claims that a write removed when it replaced was with next.
func (c *Client) settled(name string, was, next *record.Lock) {
	c.mu.Lock()
	defer c.unlock()
	c.evicted(name, was.Evicted(next, c.hasTombstone))
}

// A removal is what a write for a hold removes from a record.
type removal struct {
	name    string
	version record.Version // that the write follows
	gone    []record.Eviction
	tomb    record.Session // of the hold, if the write releases its locks
}

// removes is what a write removes from the record of a name; tomb is empty unless it releases the
// locks of the hold.
func (x *holdCall) removes(n *record.HoldName, next *record.Lock, tomb record.Session) removal {
	c := x.c
	c.mu.Lock()
	defer c.unlock()
	ends := func(session string) bool { return session == x.id && tomb.Dead != 0 || c.hasTombstone(session) }
	return removal{n.Name, n.Version, n.Record.Evicted(next, ends), tomb}
}

// removed notes what a write has removed.
func (x *holdCall) removed(r removal) {
	c := x.c
	c.mu.Lock()
	defer c.unlock()
	var others []record.Eviction
	for _, e := range r.gone {
		if e.Claim.Session == x.id {
			c.ended(r.name, e.Claim.Ended(r.tomb, e.Broken, c.owner, time.Now().UnixMicro()))
		} else {
			others = append(others, e)
		}
	}
	c.evicted(r.name, others)
}

// removedLate notes what unanswered writes have removed, once a later record shows that the claims
// are gone.
func (x *holdCall) removedLate(n *record.HoldName) {
	x.removals = slices.DeleteFunc(x.removals, func(r removal) bool {
		if r.name != n.Name || r.version == n.Version {
			return false
		}
		r.gone = slices.DeleteFunc(r.gone, func(e record.Eviction) bool {
			_, _, ok := n.Record.Find(e.Claim.Session, e.Claim.Nr)
			return ok
		})
		x.removed(r)
		return true
	})
}

// hasTombstone says whether a tombstone of the session was read or written; c.mu is held.
func (c *Client) hasTombstone(session string) bool {
	_, ok := c.deaths.Tombstone(session)
	return ok
}

// writeBehind is writeSoon after a heartbeat. Where many clients write the history of one name,
// most writes lose, so each client writes less often, and more at a time. c.mu is held.
func (c *Client) writeBehind() {
	if u := &c.unwritten; u.beats > 0 {
		u.beats--
		return
	}
	c.writeSoon()
}

// writeSoon writes in the background what has gathered; c.mu is held.
func (c *Client) writeSoon() {
	if c.unwritten.writing != nil || len(c.unwritten.accounts) == 0 || c.ctx.Err() != nil {
		return
	}
	done := make(chan struct{})
	c.unwritten.writing = done
	c.spawn(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(c.ctx, tryPatience)
		defer cancel()
		err := c.writeOnce(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unwritten.writing = nil
		if err == nil && slices.ContainsFunc(c.unwritten.accounts, func(a *account) bool { return len(a.evicted) > 0 }) {
			c.writeSoon()
		}
	})
}

// writeOnce writes, in one call, the histories of the names with the longest holds. What is not
// confirmed is written again.
func (c *Client) writeOnce(ctx context.Context) error {
	c.mu.Lock()
	batch := c.takeUnwritten()
	c.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	left, err := c.writeHistories(ctx, batch, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if u := &c.unwritten; err == nil && len(left) == 0 {
		u.rest, u.beats = 0, 0
	} else if err == nil {
		u.rest = min(2*u.rest+1, mostRest)
		u.beats = int(c.machine.Int64N(int64(u.rest))) + 1
	}
	for _, a := range left {
		if c.unwritten.listed += len(a.Holds); c.unwritten.listed > maxListed {
			c.unwritten.listed -= len(a.Holds)
			a.Fold()
		}
	}
	c.unwritten.accounts = append(left, c.unwritten.accounts...)
	return err
}

// takeUnwritten takes out the accounts to be written next, one for each name. Nothing is added to
// them after that. c.mu is held.
func (c *Client) takeUnwritten() (batch []*account) {
	all := c.unwritten.accounts
	first := func(a *account) bool { return len(a.evicted) > 0 || a.ID != "" } // was under way before
	slices.SortStableFunc(all, func(a, b *account) int {
		switch {
		case first(a) != first(b) && first(a):
			return -1
		case first(a) != first(b):
			return 1
		}
		return int(min(max(b.Longest()-a.Longest(), -1), 1))
	})
	taken := make(map[string]bool, min(len(all), writtenAtOnce))
	var rest []*account
	for _, a := range all {
		if len(batch) == writtenAtOnce || taken[a.name] {
			rest = append(rest, a)
			continue
		}
		taken[a.name] = true
		batch = append(batch, a)
		c.unwritten.listed -= len(a.Holds)
		if c.unwritten.open[a.name] != a {
			continue
		}
		delete(c.unwritten.open, a.name)
		if p := c.queues[a.name]; p != nil {
			p.account = nil
		}
	}
	c.unwritten.accounts = rest
	return batch
}

// writeLast writes what is left as the client closes, after any write that is under way, for no
// longer than limit.
func (c *Client) writeLast(limit time.Duration) {
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	for ctx.Err() == nil {
		c.mu.Lock()
		more, writing := len(c.unwritten.accounts) > 0, c.unwritten.writing
		c.mu.Unlock()
		if writing != nil {
			select {
			case <-writing:
			case <-ctx.Done():
			}
			continue
		}
		if !more || c.writeOnce(ctx) != nil {
			return
		}
	}
}

// writeHistories writes accounts, of different names, into their histories. It returns those that
// are not confirmed to be there. lazy: a crash of the store may lose the writes again.
func (c *Client) writeHistories(ctx context.Context, accounts []*account, lazy bool) (left []*account, err error) {
	histories, most, err := c.readHistories(ctx, accounts)
	if err != nil {
		return accounts, err
	}
	for try := 0; ; try++ {
		var writes []driver.Write
		var written []*account
		for i, a := range accounts {
			rec, err := record.DecodeHistory(histories[i].Value)
			if err != nil {
				continue // not ours: left alone
			}
			next, changed := rec.Merge(a.Account, most, time.Now().UnixMicro())
			if !changed || len(histories[i].Value) == 0 && lazy && try == 0 && a.slight() && !c.closes() {
				continue
			}
			old := histories[i].Version
			if old == 0 {
				old = driver.IfEmpty
			}
			writes = append(writes, driver.Write{Key: driver.Histories.Key(a.name), Old: old, Value: next.Encode(), Lazy: lazy})
			written = append(written, a)
		}
		if len(writes) == 0 {
			return nil, nil
		}
		outs, err := c.store.CompareAndSwap(ctx, writes)
		accounts, histories = accounts[:0:0], histories[:0:0]
		for i, a := range written {
			switch {
			case err != nil:
				return written, err
			case outs[i].Err != nil:
				err = outs[i].Err
				return written, err
			case !outs[i].Won:
				accounts, histories = append(accounts, a), append(histories, outs[i].Record)
			}
		}
		if len(accounts) == 0 || try == 3 || try == 1 && lazy && !c.closes() {
			return accounts, nil
		}
		c.pause(c.upTo(time.Millisecond << try))
	}
}

// slight says whether an account is too small to begin a history: one short hold of our own.
// Otherwise each name that is locked once, for a moment, would leave a record.
func (a *account) slight() bool {
	return len(a.Holds) == 0 && a.Success == nil && a.Others.Count < 2 && !a.removed
}

func (c *Client) closes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end.closed
}

// readHistories reads the histories of accounts and, in the same call, what they need to be
// complete: the setting, the sessions of the dead, and the time by the store's clock.
func (c *Client) readHistories(ctx context.Context, accounts []*account) (histories []driver.Record, most int, err error) {
	keys := []driver.Key{historyKey}
	for _, a := range accounts {
		if a.ID == "" {
			a.ID = c.newNonce()
		}
		keys = append(keys, driver.Histories.Key(a.name))
	}
	first := make([]int, len(accounts)) // index of the first other key that an account needs
	for i, a := range accounts {
		first[i] = len(keys)
		for _, e := range a.evicted {
			keys = append(keys, driver.Sessions.Key(e.Claim.Session))
		}
		if a.Success != nil {
			keys = append(keys, driver.Names.Key(a.name))
		}
	}
	recs, err := c.store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return nil, 0, err
	}
	most, _ = c.historyOf(recs[0]) // an invalid setting: off
	c.mu.Lock()
	c.unwritten.most, c.unwritten.read = most, c.now()
	c.mu.Unlock()
	now := time.Now().UnixMicro()
	for i, a := range accounts {
		for j, e := range a.evicted {
			tomb, _ := record.DecodeSession(recs[first[i]+j].Value) // what cannot be read tells nothing
			a.Add(e.Claim.Ended(tomb, e.Broken, c.owner, now), true)
		}
		a.removed, a.evicted = a.removed || len(a.evicted) > 0, nil
		if a.Success != nil && a.Success.At == 0 {
			a.Success.At = now
			if t, ok := storeTime(recs[first[i]]); ok {
				a.Success.At = t
			}
		}
	}
	return recs[1 : len(accounts)+1], most, nil
}

// followHistory reads the setting now and then, for a client whose heartbeats do not; c.mu is
// held.
func (c *Client) followHistory() {
	if t := c.now(); c.opts.TTL == 0 || t.Sub(c.unwritten.read) < settingIsGood || c.ctx.Err() != nil {
		return
	}
	c.unwritten.read = c.now()
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.ctx, tryPatience)
		defer cancel()
		if recs, err := c.store.Load(ctx, []driver.Key{historyKey}, driver.Stale); err == nil {
			c.sawHistorySetting(recs[0])
		}
	})
}

func (c *Client) sawHistorySetting(rec driver.Record) {
	most, _ := c.historyOf(rec) // an invalid setting: off
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwritten.most, c.unwritten.read = most, c.now()
}
