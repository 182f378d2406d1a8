package holdfast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"

	"github.com/holdfast-lock/holdfast/driver"
)

// A History is what the store remembers of the holds of a name. It is for people: it may
// lack what ended in the last seconds before a crash.
type History struct {
	Name    string
	Holds   []PastHold // the latest, newest first
	Others  HoldSums   // all that are not listed
	Success *Success   // the latest work that succeeded; nil: none was recorded
}

// A PastHold is a hold that has ended. Times are by the clock of whoever told of it.
type PastHold struct {
	Token  int64
	Owner  Owner     // Name, Host, PID, User and Program, each cut to what fits in a line
	From   time.Time // when it was granted; zero: not known
	To     time.Time
	Waited time.Duration // for its grant
	// End is "released", "lost" (its client stopped believing in it), "taken over" (its
	// session was declared dead, and its claim removed), "broken" or "expired" (of
	// AcquireFor: its time was over).
	End    string
	By     Owner  // the one that broke it, or took it over
	Reason string // why the lock was wanted
	Why    string // why it was lost, taken over or broken
}

// HoldSums are sums of holds.
type HoldSums struct {
	Count        int64
	Held, Waited time.Duration
}

// A Success is work under a lock that succeeded, as Lock.Succeeded has recorded it.
type Success struct {
	Token int64
	By    Owner
	At    time.Time     // by the store's clock where it has one, else by the holder's
	Ago   time.Duration // by the store's clock where it has one, else by ours
}

// History gives the latest holds of a name, and sums of the others. A hold that ended well is
// listed if it lasted, or was waited for, for a second or longer. A client writes what has
// ended behind its next heartbeat, or as it closes. How many are listed is the store's setting,
// see SetStoreHistory. Nothing is remembered of a name that was idle for 30 days, 400 if it has
// a Success.
func (c *Client) History(ctx context.Context, name string) (History, error) {
	k := driver.Histories.Key(name)
	if err := k.Check(); err != nil {
		return History{}, fmt.Errorf("history: %w", err)
	}
	recs, err := c.store.Load(ctx, []driver.Key{k}, driver.Fresh)
	if err != nil {
		return History{}, fmt.Errorf("history of %q: %w", name, err)
	}
	return publicHistory(name, recs[0])
}

// Histories gives the histories of all names that begin with prefix, in the order of their
// bytes, a page at a time. While a page is given the next one is loaded.
func (c *Client) Histories(ctx context.Context, prefix string) iter.Seq2[History, error] {
	return func(yield func(History, error) bool) {
		for page, err := range ahead(ctx, c, c.pages(driver.Histories, prefix)) {
			if err != nil {
				yield(History{}, fmt.Errorf("histories: %w", err))
				return
			}
			for i, r := range page.recs {
				if len(r.Value) == 0 {
					continue
				}
				if h, err := publicHistory(page.names[i], r); !yield(h, err) {
					return
				}
			}
		}
	}
}

func publicHistory(name string, r driver.Record) (History, error) {
	rec, err := core.DecodeHistory(r.Value)
	if err != nil {
		return History{Name: name}, fmt.Errorf("history of %q: %w", name, err)
	}
	h := History{Name: name, Others: HoldSums{rec.Others.Count, micros(rec.Others.Held), micros(rec.Others.Waited)}}
	for _, e := range rec.Holds {
		p := PastHold{Token: int64(e.Token), Owner: Owner(e.Owner), To: time.UnixMicro(e.To), Waited: micros(e.Waited),
			End: string(e.End), Reason: e.Reason, Why: e.Why}
		if e.From > 0 {
			p.From = time.UnixMicro(e.From)
		}
		if e.By != nil {
			p.By = Owner(*e.By)
		}
		h.Holds = append(h.Holds, p)
	}
	if s := rec.Success; s != nil {
		now, ok := storeTime(r)
		if !ok {
			now = time.Now().UnixMicro()
		}
		h.Success = &Success{Token: int64(s.Token), By: Owner(s.By), At: time.UnixMicro(s.At), Ago: max(micros(now-s.At), 0)}
	}
	return h, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// storeTime is the time by the store's clock, in microseconds since 1970, as the version and
// the age of a record tell. It reports false where there is no such clock.
func storeTime(r driver.Record) (now int64, ok bool) {
	return r.Version + r.Age.Microseconds(), core.Version(r.Version).IsTime() && r.Age >= 0
}

var historyKey = driver.Settings.Key("history")

// historySetting is the value of the setting "history".
type historySetting struct {
	History int `json:"history"`
}

// listedHolds is how many holds a history lists unless the store's setting says otherwise.
const listedHolds = 32

// StoreHistory is the store's setting of how many holds the history of a name lists: 0, 32
// or 128.
func (c *Client) StoreHistory(ctx context.Context) (int, error) {
	recs, err := c.store.Load(ctx, []driver.Key{historyKey}, driver.Fresh)
	if err != nil {
		return 0, fmt.Errorf("read the setting history: %w", err)
	}
	return c.historyOf(recs[0])
}

func (c *Client) historyOf(rec driver.Record) (int, error) {
	if len(rec.Value) == 0 {
		if c.traits.CostlyWrites {
			return 0, nil
		}
		return listedHolds, nil
	}
	var s historySetting
	if err := json.Unmarshal(rec.Value, &s); err != nil {
		return 0, fmt.Errorf("the setting history is %q: %w", rec.Value, err)
	}
	if err := checkHistory(s.History); err != nil {
		return 0, fmt.Errorf("the setting history is wrong: %w", err)
	}
	return s.History, nil
}

func checkHistory(holds int) error {
	if holds != 0 && holds != listedHolds && holds != core.MaxHistory {
		return fmt.Errorf("%d is neither 0 (off) nor %d nor %d", holds, listedHolds, core.MaxHistory)
	}
	return nil
}

// SetStoreHistory changes how many holds the history of a name lists: 0 (no more are written),
// 32 or 128. Running clients follow at a heartbeat, those with a TTL of their own within two
// minutes. It is 32 unless set, but 0 where each write is a round of consensus (etcd,
// Cassandra, Spanner).
func (c *Client) SetStoreHistory(ctx context.Context, holds int) error {
	if err := checkHistory(holds); err != nil {
		return fmt.Errorf("set history: %w", err)
	}
	value, err := json.Marshal(historySetting{holds})
	if err != nil {
		return err
	}
	if _, err := c.update(ctx, historyKey, driver.Everyone, func(driver.Record) ([]byte, error) { return value, nil }); err != nil {
		return fmt.Errorf("set history: %w", err)
	}
	return nil
}

// Succeeded records that the work under the lock has succeeded: History.Success tells when
// that was last, and of which hold. It is to be called before the lock is released, so that the
// next holder sees it, and returns when it is on the store's disk. It is recorded also where the
// store keeps no history.
func (l *Lock) Succeeded(ctx context.Context) error {
	c := l.c
	a := &account{name: l.Name()}
	a.Success = &core.Success{Token: core.Token(l.token), By: c.owner}
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	left, err := c.tell(ctx, []*account{a}, false)
	if err == nil && len(left) > 0 {
		err = errors.New("others write it all the time")
	}
	if err != nil {
		return fmt.Errorf("record the success of %q: %w", l.Name(), err)
	}
	return nil
}

// What has ended is kept here until it is written, which is behind the next heartbeat: in
// acquiring and releasing there is no write for it. So what ended in the last seconds before a
// crash is not told, but for what is held then: whoever removes the claims of the dead tells
// that, at once.

// An account is what is to be written of a name.
type account struct {
	core.Account
	name    string
	evicted []core.Eviction // to be written once their sessions were read
}

// Bounds of what is kept and told.
const (
	maxUntold     = 1024 // names; what ends under others is forgotten
	maxListed     = 256  // holds of them; others are counted
	toldAtOnce    = 64   // names
	settingIsGood = time.Minute
)

// untold is what is still to be written; the client's mu guards it.
type untold struct {
	most     int // holds that a history lists; 0: it is off
	read     core.Instant
	accounts []*account
	open     map[string]*account // those that may be added to
	listed   int                 // holds in all of them
	telling  chan struct{}       // closed when what is being written in the background has been; nil: nothing is
	timed    bool                // a timer runs: there is no session, and so no heartbeat
}

// account is the account of a name, or nil if there are too many; c.mu is held.
func (c *Client) account(name string) *account {
	u := &c.untold
	if a := u.open[name]; a != nil {
		return a
	}
	if len(u.accounts) >= maxUntold {
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
			c.tellSoon()
		})
	}
	return a
}

// ended notes that a hold is over; c.mu is held.
func (c *Client) ended(name string, h core.Hold) {
	if c.untold.most == 0 {
		return
	}
	if a := c.account(name); a != nil && a.Add(h, c.untold.listed < maxListed) {
		c.untold.listed++
	}
}

// past notes that a lock is over; c.mu is held.
func (l *Lock) past(t core.Instant, end core.End, by *core.Owner, why string) {
	c, p := l.c, l.p
	if c.untold.most == 0 || c.detaches {
		return
	}
	if p.account == nil {
		if p.account = c.account(p.name); p.account == nil {
			return
		}
	}
	held := t.Sub(l.since)
	if end == core.EndReleased && held < core.MinListed && l.waited < core.MinListed || c.untold.listed >= maxListed {
		p.account.Others.Add(held, l.waited)
		return
	}
	now := time.Now()
	c.ended(p.name, core.Hold{Token: core.Token(l.token), Owner: c.owner, From: now.Add(-held).UnixMicro(), To: now.UnixMicro(),
		Waited: l.waited.Microseconds(), End: end, By: by, Reason: l.reason, Why: why})
}

// evicted notes that claims of others were removed by a write of ours; c.mu is held.
func (c *Client) evicted(name string, gone []core.Eviction) {
	gone = slices.DeleteFunc(gone, func(e core.Eviction) bool { return c.isOurs(e.Claim.Session) })
	if f := c.trace.TakenOver; f != nil {
		for _, e := range gone {
			if e.Broken == nil && c.deaths.Died(e.Claim.Session) {
				c.after.call(func() {
					f(c.ctx, Event{Name: name, Token: int64(e.Claim.Token), Slots: e.Claim.Slots, Session: e.Claim.Session})
				})
			}
		}
	}
	if len(gone) == 0 || c.untold.most == 0 {
		return
	}
	if a := c.account(name); a != nil && len(a.evicted) < maxListed {
		a.evicted = append(a.evicted, gone...)
		c.tellSoon()
	}
}

// settled notes what a write has removed that had next follow was.
func (c *Client) settled(name string, was, next *core.LockRecord) {
	c.mu.Lock()
	defer c.unlock()
	c.evicted(name, was.Evicted(next, c.buried))
}

// left is settled of the write that releases the locks of a hold.
func (c *Client) left(name, hold string, tomb core.SessionRecord, was, next *core.LockRecord) {
	c.mu.Lock()
	defer c.unlock()
	var others []core.Eviction
	for _, e := range was.Evicted(next, func(session string) bool { return session == hold || c.buried(session) }) {
		if e.Claim.Session == hold {
			c.ended(name, e.Claim.Ended(tomb, e.Broken, c.owner, time.Now().UnixMicro()))
		} else {
			others = append(others, e)
		}
	}
	c.evicted(name, others)
}

// buried says whether a tombstone of the session was read or written; c.mu is held.
func (c *Client) buried(session string) bool {
	_, ok := c.deaths.Tombstone(session)
	return ok
}

// tellSoon tells in the background what has gathered; c.mu is held.
func (c *Client) tellSoon() {
	if c.untold.telling != nil || len(c.untold.accounts) == 0 || c.ctx.Err() != nil {
		return
	}
	done := make(chan struct{})
	c.untold.telling = done
	c.spawn(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(c.ctx, tryPatience)
		defer cancel()
		err := c.tellOnce(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.untold.telling = nil
		if err == nil && slices.ContainsFunc(c.untold.accounts, func(a *account) bool { return len(a.evicted) > 0 }) {
			c.tellSoon()
		}
	})
}

// tellOnce tells, in one call, of the names with the longest holds. What is not confirmed
// is written again.
func (c *Client) tellOnce(ctx context.Context) error {
	c.mu.Lock()
	batch := c.takeUntold()
	c.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	left, err := c.tell(ctx, batch, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range left {
		if c.untold.listed += len(a.Holds); c.untold.listed > maxListed {
			c.untold.listed -= len(a.Holds)
			a.Fold()
		}
	}
	c.untold.accounts = append(left, c.untold.accounts...)
	return err
}

// takeUntold takes out what is written next, one account of each name. Nothing is added to what
// was taken; c.mu is held.
func (c *Client) takeUntold() (batch []*account) {
	all := c.untold.accounts
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
	taken := make(map[string]bool, min(len(all), toldAtOnce))
	var rest []*account
	for _, a := range all {
		if len(batch) == toldAtOnce || taken[a.name] {
			rest = append(rest, a)
			continue
		}
		taken[a.name] = true
		batch = append(batch, a)
		c.untold.listed -= len(a.Holds)
		if c.untold.open[a.name] != a {
			continue
		}
		delete(c.untold.open, a.name)
		for _, queues := range [...]map[string]*localQueue{c.queues, c.idle} {
			if p := queues[a.name]; p != nil {
				p.account = nil
			}
		}
	}
	c.untold.accounts = rest
	return batch
}

// tellLast tells what is left as the client closes, after what is being written, for no longer than
// limit.
func (c *Client) tellLast(limit time.Duration) {
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	for ctx.Err() == nil {
		c.mu.Lock()
		more, telling := len(c.untold.accounts) > 0, c.untold.telling
		c.mu.Unlock()
		if telling != nil {
			select {
			case <-telling:
			case <-ctx.Done():
			}
			continue
		}
		if !more || c.tellOnce(ctx) != nil {
			return
		}
	}
}

// tell writes accounts, of different names, into their histories. It returns those that are
// not confirmed to be there. lazy: they may be lost again in a crash of the store.
func (c *Client) tell(ctx context.Context, accounts []*account, lazy bool) (left []*account, err error) {
	histories, most, err := c.readUntold(ctx, accounts)
	if err != nil {
		return accounts, err
	}
	for try := 0; ; try++ {
		var writes []driver.Write
		var written []*account
		for i, a := range accounts {
			rec, err := core.DecodeHistory(histories[i].Value)
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
		if len(accounts) == 0 || try == 3 {
			return accounts, nil
		}
		c.pause(c.upTo(time.Millisecond << try))
	}
}

// slight says whether an account begins no history: one short hold. Else each name that is
// locked once, for a moment, would leave a record.
func (a *account) slight() bool {
	return len(a.Holds) == 0 && a.Success == nil && a.Others.Count < 2
}

func (c *Client) closes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end.closed
}

// readUntold reads the histories of accounts and, in the same call, what they need to be
// complete: the setting, the sessions of the dead, and the time by the store's clock.
func (c *Client) readUntold(ctx context.Context, accounts []*account) (histories []driver.Record, most int, err error) {
	keys := []driver.Key{historyKey}
	for _, a := range accounts {
		if a.ID == "" {
			a.ID = c.newNonce()
		}
		keys = append(keys, driver.Histories.Key(a.name))
	}
	first := make([]int, len(accounts)) // of what else an account needs
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
	most, _ = c.historyOf(recs[0]) // a wrong one: off
	c.mu.Lock()
	c.untold.most, c.untold.read = most, c.now()
	c.mu.Unlock()
	now := time.Now().UnixMicro()
	for i, a := range accounts {
		for j, e := range a.evicted {
			tomb, _ := core.DecodeSession(recs[first[i]+j].Value) // what cannot be read tells nothing
			a.Add(e.Claim.Ended(tomb, e.Broken, c.owner, now), true)
		}
		a.evicted = nil
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
	if t := c.now(); c.opts.TTL == 0 || t.Sub(c.untold.read) < settingIsGood || c.ctx.Err() != nil {
		return
	}
	c.untold.read = c.now()
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.ctx, tryPatience)
		defer cancel()
		if recs, err := c.store.Load(ctx, []driver.Key{historyKey}, driver.Stale); err == nil {
			c.sawHistorySetting(recs[0])
		}
	})
}

func (c *Client) sawHistorySetting(rec driver.Record) {
	most, _ := c.historyOf(rec) // a wrong one: off
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untold.most, c.untold.read = most, c.now()
}
