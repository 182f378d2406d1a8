package base

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Sweeping: the clients that use the store remove what dead and short-lived clients leave
// behind. A long-lived client sweeps in turn with the others; a short-lived one does so now
// and then as it closes. So a job that is run each minute leaves a bounded number of
// records, and the claims of the dead go even if nobody wants their names.

// sweepEvery is how often somebody sweeps; idleRow is how long a row may hold nothing
// before it is removed: 5 and 10 minutes with the default TTL.
func sweepEvery(ttl time.Duration) time.Duration { return min(20*ttl, 10*time.Minute) }
func idleRow(ttl time.Duration) time.Duration    { return 2 * sweepEvery(ttl) }

// Sweeping is what a client knows of sweeps.
type sweeping struct {
	at       lease.Instant // when it is this client's turn; Never: not known yet
	runs     bool          // a sweep is under way
	Done     bool          // its turn has come: it swept, or somebody else had
	detector Detector      // what sweeps have seen, of all sessions
}

// SweepInTurn sweeps in the background if it is time to, and nobody else has; c.Mu is
// held.
func (c *Base) SweepInTurn() {
	t, every := c.Now(), sweepEvery(c.TTL())
	switch {
	case c.Ctx.Err() != nil || c.Sweeping.runs:
		return
	case c.Sweeping.at == lease.Never:
		c.Sweeping.at = t.Add(c.Jitter(every)) // a new client leaves it to the others
		return
	case t < c.Sweeping.at:
		return
	}
	c.Sweeping.at, c.Sweeping.runs, c.Sweeping.Done = t.Add(c.Jitter(every)), true, true
	c.Spawn(func() {
		ctx, cancel := context.WithTimeout(c.Ctx, 2*every) // then it is another's turn
		defer cancel()
		turn, due := c.turnToSweep(ctx, every)
		if turn {
			c.SweepAll(ctx)
		}
		c.Mu.Lock()
		c.Sweeping.runs = false
		if !turn {
			c.Sweeping.at = c.Now().Add(due + c.UpTo(every/4))
		}
		c.Mu.Unlock()
	})
}

// SweepsToo sweeps in turn for a client that writes locks that no process keeps. The client
// may have no session of its own, and so no heartbeat after which it would sweep.
func (c *Base) SweepsToo() {
	c.Mu.Lock()
	defer c.Unlock()
	c.Wrote = c.TTL()
	c.SweepInTurn()
}

// Clients that were too short-lived to sweep do so as they close: one in sweepOneIn, and
// for sweepPatience at most.
const (
	sweepOneIn    = 8
	sweepPatience = time.Second
)

// SweepAtClose sweeps now and then as a short-lived client closes.
func (c *Base) SweepAtClose(ttl time.Duration) {
	if c.Machine.Int64N(sweepOneIn) != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.Ctx, sweepPatience)
	defer cancel()
	if turn, _ := c.turnToSweep(ctx, sweepEvery(ttl)); turn {
		c.SweepAll(ctx)
	}
}

var sweepKey = driver.Settings.Key("sweep")

// sweepRecord is the value of sweepKey: who swept last, and when by its clock.
type sweepRecord struct {
	By string `json:"by"`
	At int64  `json:"at"` // microseconds since 1970
}

// turnToSweep says whether no sweep has begun for as long as every, and if so takes the
// turn; otherwise it says in what time the next sweep is due. Where the store has no clock,
// wall clocks decide; if they are wrong, sweeps are more or less frequent.
func (c *Base) turnToSweep(ctx context.Context, every time.Duration) (turn bool, due time.Duration) {
	recs, err := c.Store.Load(ctx, []driver.Key{sweepKey}, driver.Fresh)
	if err != nil {
		return false, every
	}
	rec, old := recs[0], recs[0].Version
	if old == 0 {
		old = driver.IfEmpty
	}
	since := rec.Age
	if since < 0 {
		var last sweepRecord
		json.Unmarshal(rec.Value, &last)
		since = time.Since(time.UnixMicro(last.At)).Abs()
	}
	if len(rec.Value) > 0 && since < every {
		return false, every - since
	}
	value, err := json.Marshal(sweepRecord{c.Owner.String(), time.Now().UnixMicro()})
	if err != nil {
		return false, every
	}
	outs, err := c.Store.CompareAndSwap(ctx, []driver.Write{{Key: sweepKey, Old: old, Value: value, Lazy: true}})
	return err == nil && outs[0].Won, every
}

func (c *Base) sweep(ctx context.Context, done *swept) error {
	if c.Opts.ReadOnly {
		return ErrReadOnly
	}
	c.Mu.Lock()
	idle := idleRow(c.TTL())
	c.Mu.Unlock()
	n, err := c.Store.Sweep(ctx, idle)
	if done.Rows += n; err != nil {
		return err
	}
	// Sessions first: a tombstone may only go after a full pass over the names
	// that began when it was there.
	looks := make(map[string]SessionRead)
	err = c.EachPage(ctx, driver.Sessions, "", func(ids []string) error {
		page, err := c.LoadSessions(ctx, ids)
		maps.DeleteFunc(page, func(_ string, s SessionRead) bool { return len(s.Rec.Value) == 0 })
		maps.Copy(looks, page)
		return err
	})
	if err != nil {
		return err
	}
	c.sweepSessions(ctx, looks)
	for id, s := range looks {
		if rec, err := record.DecodeSession(s.Rec.Value); err == nil && rec.Dead == 0 && c.KnownDead(id) {
			done.Dead++
		}
	}
	claimed := make(map[string][]string)
	err = c.EachPage(ctx, driver.Names, "", func(names []string) error { return c.sweepNames(ctx, names, claimed, done) })
	if err != nil {
		return err
	}
	c.detectOrphans(ctx, claimed, looks)
	if err := c.sweepHistories(ctx); err != nil {
		return err
	}
	var over []driver.Write
	for _, id := range slices.Sorted(maps.Keys(looks)) {
		s := looks[id]
		rec, err := record.DecodeSession(s.Rec.Value)
		if err == nil && rec.MayEmpty(len(claimed[id]), s.Rec.Age, c.knownFor(id), Clocks()) {
			over = append(over, driver.Write{Key: driver.Sessions.Key(id), Old: s.Rec.Version, Lazy: true})
		}
	}
	for part := range slices.Chunk(over, sessionsAtOnce) {
		outs, err := c.Store.CompareAndSwap(ctx, part)
		if err != nil {
			return err
		}
		for i, out := range outs {
			if out.Err == nil && out.Won {
				done.Sessions++
				c.Proof.DeclareDead(part[i].Key.Name)
			}
		}
	}
	return ctx.Err()
}

// sessionsAtOnce is how many records of sessions are emptied in one call: each lock over
// HTTP leaves one, but heartbeats wait for the call.
const sessionsAtOnce = 50

// EachPage calls do with all keys of a space that come after a name, a page at a time.
func (c *Base) EachPage(ctx context.Context, space driver.Space, after string, do func(names []string) error) error {
	for {
		names, err := c.Store.Keys(ctx, space, after, 200)
		if err != nil || len(names) == 0 {
			return err
		}
		if err := do(names); err != nil {
			return err
		}
		after = names[len(names)-1]
	}
}

// sweepSessions finds out which sessions are dead. It keeps looking at those that seem dead
// until it knows, two TTLs at most; what a sweep has seen is remembered for the next.
func (c *Base) sweepSessions(ctx context.Context, looks map[string]SessionRead) {
	c.Sweeping.detector.forget(func(session string) bool { _, ok := looks[session]; return ok })
	began := c.Now()
	for watched := looks; ; {
		c.detectBy(&c.Sweeping.detector, ctx, watched)
		var silent []string
		longest := time.Duration(0)
		for id, s := range watched {
			rec, err := record.DecodeSession(s.Rec.Value)
			if err == nil && !c.KnownDead(id) && rec.SeemsDead(s.Rec.Age, Clocks()) && rec.Duration() <= sweepEvery(record.DefaultTTL) {
				silent = append(silent, id)
				longest = max(longest, rec.Duration())
			}
		}
		if len(silent) == 0 || c.Now().Sub(began) > 2*longest {
			return
		}
		rest := longest / 8
		if at := c.Sweeping.detector.Next(silent); at != lease.Never {
			rest = min(rest, max(at.Sub(c.Now()), time.Millisecond))
		}
		if !c.Doze(ctx, nil, rest) {
			return
		}
		var err error
		if watched, err = c.LoadSessions(ctx, silent); err != nil {
			return
		}
	}
}

// KnownDead says whether this client has read or written a session's tombstone.
func (c *Base) KnownDead(session string) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	_, ok := c.Deaths.Tombstone(session)
	return ok
}

// knownFor is how long ago a session that this client knows to be dead became void; negative:
// not known.
func (c *Base) knownFor(session string) time.Duration {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if from, ok := c.Deaths.Tombstone(session); ok {
		return c.Now().Sub(from)
	}
	return -1
}

// detectOrphans takes care of claims whose session has no record. A crash of the database
// may leave them: it took back the end of a claim, and the session, which knew of no claim
// any more, ended in order. The sessions are given a record, by which later sweeps observe
// them like all others.
func (c *Base) detectOrphans(ctx context.Context, claimed map[string][]string, looks map[string]SessionRead) {
	names := make(map[string]bool)
	var ids []string
	for id, at := range claimed {
		if _, ok := looks[id]; !ok {
			ids = append(ids, id)
			for _, name := range at {
				names[name] = true
			}
		}
	}
	for range 2 { // a claim may be seen before its session, or after it
		if len(ids) == 0 || ctx.Err() != nil {
			return
		}
		seen, err := c.LoadSessions(ctx, ids)
		if err != nil {
			return // the next sweep comes
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { return len(seen[id].Rec.Value) > 0 })
		maps.DeleteFunc(seen, func(_ string, s SessionRead) bool { return len(s.Rec.Value) > 0 })
		c.detectBy(&c.Sweeping.detector, ctx, seen, slices.Sorted(maps.Keys(names))...)
		c.Pause(FirstPoll)
	}
}

// sweepNames voids the claims of the dead, copies audit entries out, and
// empties free records. claimed gathers the sessions that still have claims, and
// where.
func (c *Base) sweepNames(ctx context.Context, names []string, claimed map[string][]string, done *swept) error {
	var keys []driver.Key
	for _, n := range names {
		keys = append(keys, driver.Names.Key(n))
	}
	recs, err := c.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return err
	}
	claims := func(name string, rec record.Lock) {
		for _, cl := range slices.Concat(rec.Holders, rec.Waiters) {
			claimed[cl.Session] = append(claimed[cl.Session], name)
		}
	}
	for i, r := range recs {
		rec, err := LockOf(r)
		if err != nil || len(r.Value) == 0 {
			continue
		}
		c.Mu.Lock()
		w, void, ok := rec.Void(record.Version(r.Version), c.IsDead, time.Now().UnixMicro())
		c.Mu.Unlock()
		if ok {
			value := w.Next.Encode(w.Old)
			outs, err := c.Store.CompareAndSwap(ctx, []driver.Write{{Key: keys[i], Old: r.Version, Value: value, Notify: w.Notify, Lazy: w.Lazy}})
			switch {
			case err != nil || !outs[0].Won:
				// What is there now is not known: in this pass no tombstone of a session
				// that had a claim here is removed.
				claims(names[i], rec)
			default:
				c.settled(names[i], &rec, &w.Next)
				done.Claims += void
				if len(value) == 0 {
					done.Names++
				}
			}
		}
		claims(names[i], w.Next)
		if len(rec.Breaks) > 0 {
			c.CopyAudit(ctx, keys[i].Name)
		}
	}
	return nil
}

// A sweep looks at sweptHistories of the histories, from a random one on. If there are more than
// manyHistories, it looks at an eighth of them, and they are kept for less than their time, in
// proportion.
const (
	sweptHistories = 500
	manyHistories  = 10_000
)

// sweepHistories empties histories that nobody has added to for a long time. A sweep looks
// at some of them: they are many, and it does not matter when they go.
func (c *Base) sweepHistories(ctx context.Context) error {
	var names []string
	err := c.EachPage(ctx, driver.Histories, "", func(page []string) error {
		names = append(names, page...)
		return ctx.Err()
	})
	if err != nil || len(names) == 0 {
		return err
	}
	idle, most := record.HistoryIdle, sweptHistories
	if n := len(names); n > manyHistories {
		idle, most = idle/time.Duration(n/100)*(manyHistories/100), max(most, n/8)
	}
	if n := len(names); n > most {
		from := int(c.Machine.Int64N(int64(n)))
		names = slices.Concat(names[from:], names[:from])[:most]
	}
	for part := range slices.Chunk(names, 200) {
		var keys []driver.Key
		for _, n := range part {
			keys = append(keys, driver.Histories.Key(n))
		}
		recs, err := c.Store.Load(ctx, keys, driver.Fresh)
		if err != nil {
			return err
		}
		var writes []driver.Write
		for i, r := range recs {
			if h, err := record.DecodeHistory(r.Value); err == nil && len(r.Value) > 0 && h.MayEmpty(r.Age, idle, Clocks()) {
				writes = append(writes, driver.Write{Key: keys[i], Old: r.Version, Lazy: true})
			}
		}
		if len(writes) == 0 {
			continue
		}
		if _, err := c.Store.CompareAndSwap(ctx, writes); err != nil {
			return err
		}
	}
	return nil
}

// A swept has the fields of holdfast.Swept, which describes them.
type swept struct{ Dead, Claims, Sessions, Names, Rows int }

// SweepAll removes what is left over. It is safe at any time and from any number of processes.
func (c *Base) SweepAll(ctx context.Context) (s swept, err error) {
	if err := c.sweep(ctx, &s); err != nil {
		return s, fmt.Errorf("sweep: %w", err)
	}
	return s, nil
}
