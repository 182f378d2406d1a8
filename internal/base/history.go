package base

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Ended holds are kept here until they are written, after the next heartbeat: acquiring and
// releasing make no write for them. So a crash loses the holds that ended in the last seconds
// before it, but not those that are still held: the client that removes the claims of the dead
// session writes these at once.

// An Account is what is still to be written to the history of a name.
type Account struct {
	record.Account
	name    string
	evicted []record.Eviction // to be written once their sessions have been read
	taken   bool              // it is no longer added to
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
	accounts []*Account
	open     map[string]*Account // those that may be added to
	listed   int                 // holds in all of them
	writing  chan struct{}       // closed when the background write is done; nil: there is none
	timed    bool                // a timer runs, since without a session there is no heartbeat
	rest     int                 // most heartbeats to skip before the next write; grows while writes lose to others
	beats    int                 // heartbeats still to be skipped
}

// account is the account of a name, or nil if there are too many; c.Mu is held.
func (c *Base) account(name string) *Account {
	u := &c.unwritten
	if a := u.open[name]; a != nil {
		return a
	}
	if len(u.accounts) >= maxUnwritten {
		return nil
	}
	a := &Account{name: name}
	if u.accounts = append(u.accounts, a); u.open == nil {
		u.open = make(map[string]*Account)
	}
	u.open[name] = a
	if c.Sess == nil && !u.timed {
		u.timed = true
		c.Machine.AfterFunc(c.TTL()/3, func() {
			c.Mu.Lock()
			defer c.Mu.Unlock()
			u.timed = false
			c.writeSoon()
		})
	}
	return a
}

// Ended notes that a hold is over; c.Mu is held.
func (c *Base) Ended(name string, h record.Hold) {
	if c.unwritten.most == 0 {
		return
	}
	if a := c.account(name); a != nil && a.Add(h, c.unwritten.listed < maxListed) {
		c.unwritten.listed++
	}
}

// Evicted notes that claims of others were removed by a write of ours; c.Mu is held.
func (c *Base) Evicted(name string, gone []record.Eviction) {
	gone = slices.DeleteFunc(gone, func(e record.Eviction) bool { return c.IsOurs(e.Claim.Session) })
	if f := c.Trace.TakenOver; f != nil {
		for _, e := range gone {
			if e.Broken == nil && c.Deaths.Died(e.Claim.Session) {
				c.After.Call(func() {
					f(c.Ctx, Event{Name: name, Token: int64(e.Claim.Token), Slots: e.Claim.Slots, Session: e.Claim.Session})
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
func (c *Base) settled(name string, was, next *record.Lock) {
	c.Mu.Lock()
	defer c.Unlock()
	c.Evicted(name, was.Evicted(next, c.HasTombstone))
}

// HasTombstone says whether a tombstone of the session was read or written; c.Mu is held.
func (c *Base) HasTombstone(session string) bool {
	_, ok := c.Deaths.Tombstone(session)
	return ok
}

// WriteBehind is writeSoon after a heartbeat. Where many clients write the history of one name,
// most writes lose, so each client writes less often, and more at a time. c.Mu is held.
func (c *Base) WriteBehind() {
	if u := &c.unwritten; u.beats > 0 {
		u.beats--
		return
	}
	c.writeSoon()
}

// writeSoon writes in the background what has gathered; c.Mu is held.
func (c *Base) writeSoon() {
	if c.unwritten.writing != nil || len(c.unwritten.accounts) == 0 || c.Ctx.Err() != nil {
		return
	}
	done := make(chan struct{})
	c.unwritten.writing = done
	c.Spawn(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(c.Ctx, core.TryPatience)
		defer cancel()
		err := c.writeOnce(ctx)
		c.Mu.Lock()
		defer c.Mu.Unlock()
		c.unwritten.writing = nil
		if err == nil && slices.ContainsFunc(c.unwritten.accounts, func(a *Account) bool { return len(a.evicted) > 0 }) {
			c.writeSoon()
		}
	})
}

// writeOnce writes, in one call, the histories of the names with the longest holds. What is not
// confirmed is written again.
func (c *Base) writeOnce(ctx context.Context) error {
	c.Mu.Lock()
	batch := c.takeUnwritten()
	c.Mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	left, err := c.writeHistories(ctx, batch, true)
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if u := &c.unwritten; err == nil && len(left) == 0 {
		u.rest, u.beats = 0, 0
	} else if err == nil {
		u.rest = min(2*u.rest+1, mostRest)
		u.beats = int(c.Machine.Int64N(int64(u.rest))) + 1
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
// them after that. c.Mu is held.
func (c *Base) takeUnwritten() (batch []*Account) {
	all := c.unwritten.accounts
	first := func(a *Account) bool { return len(a.evicted) > 0 || a.ID != "" } // was under way before
	slices.SortStableFunc(all, func(a, b *Account) int {
		switch {
		case first(a) != first(b) && first(a):
			return -1
		case first(a) != first(b):
			return 1
		}
		return int(min(max(b.Longest()-a.Longest(), -1), 1))
	})
	taken := make(map[string]bool, min(len(all), writtenAtOnce))
	var rest []*Account
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
		a.taken = true
	}
	c.unwritten.accounts = rest
	return batch
}

// WriteLast writes what is left as the client closes, after any write that is under way, for no
// longer than limit.
func (c *Base) WriteLast(limit time.Duration) {
	ctx, cancel := context.WithTimeout(c.Ctx, limit)
	defer cancel()
	for ctx.Err() == nil {
		c.Mu.Lock()
		more, writing := len(c.unwritten.accounts) > 0, c.unwritten.writing
		c.Mu.Unlock()
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
func (c *Base) writeHistories(ctx context.Context, accounts []*Account, lazy bool) (left []*Account, err error) {
	histories, most, err := c.readHistories(ctx, accounts)
	if err != nil {
		return accounts, err
	}
	for try := 0; ; try++ {
		var writes []driver.Write
		var written []*Account
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
		outs, err := c.Store.CompareAndSwap(ctx, writes)
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
		c.Pause(c.UpTo(time.Millisecond << try))
	}
}

// slight says whether an account is too small to begin a history: one short hold of our own.
// Otherwise each name that is locked once, for a moment, would leave a record.
func (a *Account) slight() bool {
	return len(a.Holds) == 0 && a.Success == nil && a.Others.Count < 2 && !a.removed
}

func (c *Base) closes() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.Closed
}

// readHistories reads the histories of accounts and, in the same call, what they need to be
// complete: the setting, the sessions of the dead, and the time by the store's clock.
func (c *Base) readHistories(ctx context.Context, accounts []*Account) (histories []driver.Record, most int, err error) {
	keys := []driver.Key{HistoryKey}
	for _, a := range accounts {
		if a.ID == "" {
			a.ID = c.NewNonce()
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
	recs, err := c.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return nil, 0, err
	}
	most, _ = c.HistoryOf(recs[0]) // an invalid setting: off
	c.Mu.Lock()
	c.unwritten.most, c.unwritten.read = most, c.Now()
	c.Mu.Unlock()
	now := time.Now().UnixMicro()
	for i, a := range accounts {
		for j, e := range a.evicted {
			tomb, _ := record.DecodeSession(recs[first[i]+j].Value) // what cannot be read tells nothing
			a.Add(e.Claim.Ended(tomb, e.Broken, c.Owner, now), true)
		}
		a.removed, a.evicted = a.removed || len(a.evicted) > 0, nil
		if a.Success != nil && a.Success.At == 0 {
			a.Success.At = now
			if t, ok := StoreTime(recs[first[i]]); ok {
				a.Success.At = t
			}
		}
	}
	return recs[1 : len(accounts)+1], most, nil
}

// StoreTime is the time by the store's clock, in microseconds since 1970, derived from the version
// and the age of a record. It reports false if the store has no such clock.
func StoreTime(r driver.Record) (now int64, ok bool) {
	return r.Version + r.Age.Microseconds(), record.Version(r.Version).IsTime() && r.Age >= 0
}

// Counted notes that a lock of this client is over, and reports whether that was all: otherwise its
// hold is to be listed, by Ended. at is where its name keeps its account. c.Mu is held.
func (c *Base) Counted(at **Account, name string, end record.End, held, waited time.Duration) bool {
	if c.unwritten.most == 0 || c.Detaches {
		return true
	}
	if *at == nil || (*at).taken {
		if *at = c.account(name); *at == nil {
			return true
		}
	}
	if end == record.EndReleased && held < record.MinListed && waited < record.MinListed || c.unwritten.listed >= maxListed {
		(*at).Others.Add(held, waited)
		return true
	}
	return false
}

// RecordSuccess writes into the history of a name that work under a lock has succeeded.
func (c *Base) RecordSuccess(ctx context.Context, name string, token record.Token) error {
	a := &Account{name: name}
	a.Success = &record.Success{Token: token, By: c.Owner}
	ctx, cancel := context.WithTimeout(ctx, core.TryPatience)
	defer cancel()
	stop := context.AfterFunc(c.Ctx, cancel)
	defer stop()
	left, err := c.writeHistories(ctx, []*Account{a}, false)
	if err == nil && len(left) > 0 {
		err = errors.New("others write it all the time")
	}
	if err != nil {
		return fmt.Errorf("record the success of %q: %w", name, err)
	}
	return nil
}
