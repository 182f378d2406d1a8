package holdfast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// Judging: a session may be buried by whoever waits behind one of its claims,
// when any one of these holds:
//
//   - watch: the same beat has stood for a whole TTL on the judge's own clock,
//     from after a first look had returned to before a last one was sent. Of a
//     detached hold the first look may be that of another process of this host;
//   - proof: this host's kernel knows that all processes with its file are gone;
//   - age: the store's clock says that the beat is older than the TTL, and a mark
//     that asks for a beat has stood unanswered for half of it, in which a
//     heartbeat comes that nobody has told of the mark. This one rests on the
//     store's clock not having leapt by more than the margin.
//
// Burying is a swap of the very record that was judged, so either the next beat
// or the burial wins, and leaves a tombstone: death is permanent, and may be
// remembered for ever. Life never is.

// A sighting is one look at a session's record.
type sighting struct {
	rec      Record
	asked    core.Instant // before the call was sent
	got      core.Instant // after it had been answered
	glimpsed bool         // it may be out of date: nothing is done on it
}

// judge remembers since when it has seen the same beat.
type judge struct {
	c  *Client
	mu sync.Mutex
	// watched has no session that is dead, or no longer ahead of us.
	watched map[string]*watched
	hurried bool
}

type watched struct {
	beat   core.SessionRecord
	since  core.Instant // when this beat was first seen
	born   core.Instant // when it was written, as far as the store's clock tells; never
	looked core.Instant // when it was last looked at
	marked core.Instant // when its mark was first seen; never
	ttl    time.Duration
	absent bool
	// version is the newest seen of its record: a glimpse of an older one is no news.
	version int64
}

func (j *judge) init(c *Client) { j.c, j.watched = c, make(map[string]*watched) }

func (j *judge) forget(keep func(session string) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for s := range j.watched {
		if keep == nil || !keep(s) {
			delete(j.watched, s)
		}
	}
}

// hurry has the wait loop look at the sessions soon.
func (j *judge) hurry() { j.mu.Lock(); j.hurried = true; j.mu.Unlock() }

// due says whether a judgement of one of the sessions is due at t, or a hint
// has come.
func (j *judge) due(sessions []string, t core.Instant) bool {
	at := j.next(sessions)
	return at != core.Never && at <= t
}

// next is when one of the sessions is to be looked at, because its beat will be
// late, or have stood for a TTL, or a mark for half of it; never: no such
// time is known.
func (j *judge) next(sessions []string) core.Instant {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.hurried {
		return j.c.now()
	}
	at := core.Never
	for _, s := range sessions {
		w := j.watched[s]
		if w == nil {
			continue
		}
		moments := []core.Instant{w.since.Add(w.ttl / 2), w.since.Add(w.ttl)}
		if w.born != core.Never {
			moments = append(moments, w.born.Add(w.ttl/2), w.born.Add(w.ttl))
		}
		if w.absent {
			moments = append(moments, w.since.Add(firstPoll))
		}
		if w.marked != core.Never {
			moments = append(moments, w.marked.Add(w.ttl/2))
		}
		for _, due := range moments {
			if due > w.looked && (at == core.Never || due < at) {
				at = due
			}
		}
	}
	return at
}

// A verdict is what a judge does about a session.
type verdict int8

const (
	letLive verdict = iota
	isDead
	markIt   // ask it for a heartbeat
	recordIt // it has a claim but no record: give it one that can be judged
	buryIt
)

// consider judges one sighting.
func (j *judge) consider(session string, s sighting) (v verdict, rec core.SessionRecord, why string) {
	patient, defaultTTL := j.c.isWaiting(), j.c.ttlGuess()
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.watched[session]
	absent := len(s.rec.Value) == 0
	var err error
	if w != nil && s.rec.Version == w.version {
		rec = w.beat
	} else if rec, err = core.DecodeSession(s.rec.Value); err != nil {
		return letLive, rec, ""
	}
	if rec.Dead != 0 {
		return isDead, rec, ""
	}
	old := s.glimpsed && w != nil && s.rec.Version < w.version
	if old { // no news: what is known may stand still
		rec, absent, s.rec.Age, s.rec.Version = w.beat, w.absent, -1, w.version
	}
	ttl := time.Duration(rec.TTL) * time.Millisecond
	if absent || ttl <= 0 {
		ttl = defaultTTL
	}
	if w == nil || w.absent != absent || !w.beat.SameBeat(rec) {
		w = &watched{beat: rec, since: s.got, born: core.Never, marked: core.Never, ttl: ttl, absent: absent}
		if rec.Detached {
			ago := j.c.proof.recall(session, rec)
			w.since = min(w.since, j.c.now().Add(-ago)) // the clock is read later: that is on the safe side
		}
		j.watched[session] = w
	}
	w.beat, w.ttl, w.looked, w.version = rec, ttl, s.asked, s.rec.Version // a mark may have come
	if rec.Suspected != nil && w.marked == core.Never {
		w.marked = s.got
	}
	stood := s.asked.Sub(w.since)
	if absent {
		// A first claim may outrun its session, or a crash have lost it.
		if stood >= firstPoll/2 {
			return recordIt, rec, ""
		}
		return letLive, rec, ""
	}
	if stood >= ttl {
		return buryIt, rec, fmt.Sprintf("silent for %s", shortDuration(stood))
	}
	age := rec.Age(s.rec.Age)
	if !old {
		w.born = core.Never
	}
	if age >= 0 {
		w.born = s.asked.Add(-age + time.Millisecond) // a look then is not too early
	}
	switch {
	case rec.EndedAlone(age, 0, clocks()):
		return buryIt, rec, "its time is over"
	case age >= ttl && rec.Suspected != nil && s.rec.Age >= ttl/2 && (!patient || s.asked.Sub(w.marked) >= ttl/2):
		// Who goes on waiting has seen the mark stand on its own clock as well.
		// Who only asks once cannot, and relies on the store's clock not having
		// leapt by a TTL since the mark.
		return buryIt, rec, fmt.Sprintf("silent for %s by the store's clock, asked %s ago", shortDuration(age), shortDuration(s.rec.Age))
	case rec.Suspected == nil && !rec.Detached && (stood >= ttl/2 || age >= ttl/2):
		return markIt, rec, ""
	}
	return letLive, rec, ""
}

func (c *Client) isWaiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// loadSessions looks at session records.
func (c *Client) loadSessions(ctx context.Context, ids []string) (map[string]sighting, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	keys := make([]Key, 0, len(ids))
	for _, id := range ids {
		if (Key{Sessions, id}).Check() == nil {
			keys = append(keys, Key{Sessions, id})
		}
	}
	looks := make(map[string]sighting, len(keys))
	if len(keys) == 0 {
		return looks, nil
	}
	asked := c.now()
	recs, err := c.store.Load(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i, k := range keys {
		looks[k.Name] = sighting{rec: recs[i], asked: asked, got: c.now()}
	}
	return looks, nil
}

// judgeAll judges sessions and does what follows from it. It reports whether
// any is newly known to be dead. names are those where they were seen to have claims,
// besides where this client waits.
func (c *Client) judgeAll(ctx context.Context, looks map[string]sighting, names ...string) (died bool) {
	c.judge.mu.Lock()
	c.judge.hurried = false
	c.judge.mu.Unlock()
	return c.judgeBy(&c.judge, ctx, looks, names...)
}

// judgeBy is judgeAll by what another judge than that of waits has seen.
func (c *Client) judgeBy(j *judge, ctx context.Context, looks map[string]sighting, names ...string) (died bool) {
	var unsure []string
	for _, id := range slices.Sorted(maps.Keys(looks)) {
		s := looks[id]
		c.mu.Lock()
		skip := c.isOurs(id) || c.isDead(id)
		c.mu.Unlock()
		if skip {
			continue
		}
		v, rec, why := j.consider(id, s)
		if v == letLive && !rec.Detached && len(s.rec.Value) > 0 && c.proof.near(id) && c.proof.dead(id) {
			v, why = buryIt, provenDead
		}
		if s.glimpsed && v != letLive {
			unsure = append(unsure, id)
			continue
		}
		if c.carryOut(ctx, id, s.rec, rec, v, why, names) {
			died = true
		}
	}
	if died {
		c.buried()
	}
	if len(unsure) > 0 {
		died = c.judgeBy(j, ctx, c.loadUnsure(ctx, unsure), names...) || died
	}
	return died
}

const provenDead = "its processes are gone, by the kernel's proof"

// ttlGuess is the TTL by which a session without a record is judged.
func (c *Client) ttlGuess() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sess != nil && c.sess.ttl > 0 {
		return max(c.sess.ttl, DefaultTTL)
	}
	return DefaultTTL
}

// claimStands looks again at the records where a session was seen to have a
// claim, and returns the longest TTL of those that still stand; 0: none does.
func (c *Client) claimStands(ctx context.Context, session string, names []string) (ttl time.Duration) {
	its := func(cl core.Claim) bool { return cl.Session == session }
	has := func(r core.LockRecord) bool {
		return slices.ContainsFunc(r.Holders, its) || slices.ContainsFunc(r.Waiters, its)
	}
	names = slices.Clone(names)
	c.mu.Lock()
	for _, p := range c.places {
		if has(p.rec) && !slices.Contains(names, p.name) {
			names = append(names, p.name)
		}
	}
	c.mu.Unlock()
	if len(names) == 0 {
		return 0 // it has left since
	}
	keys := make([]Key, len(names))
	for i, name := range names {
		keys[i] = Key{Names, name}
	}
	asked := c.now()
	recs, err := c.store.Load(ctx, keys)
	if err != nil {
		return 0 // the next look tells
	}
	c.mu.Lock()
	defer c.unlock()
	for i, name := range names {
		if p := c.places[name]; p != nil && p.known {
			c.seeRecord(p, recs[i], asked)
		}
		rec, err := lockOf(recs[i])
		if err != nil {
			continue
		}
		for _, cl := range slices.Concat(rec.Holders, rec.Waiters) {
			if its(cl) {
				ttl = max(ttl, time.Duration(cl.TTL)*time.Millisecond, MinTTL)
			}
		}
	}
	return ttl
}

// carryOut does what a verdict says and reports whether the session is dead.
func (c *Client) carryOut(ctx context.Context, id string, r Record, rec core.SessionRecord, v verdict, why string, names []string) bool {
	key := Key{Sessions, id}
	old := r.Version
	if old == 0 || len(r.Value) == 0 {
		old = IfEmpty
	}
	switch v {
	case isDead:
		c.knowDead(id, rec, r.Age)
		return true
	case recordIt:
		ttl := c.claimStands(ctx, id, names)
		if ttl == 0 {
			return false // it has left in order since we saw its claim
		}
		zero := core.SessionRecord{TTL: ttl.Milliseconds(), Suspected: &core.Suspicion{By: c.owner.String()}}
		c.store.CompareAndSwap(ctx, []Write{{Key: key, Old: IfEmpty, Value: zero.Encode()}})
	case markIt:
		rec.Suspected = &core.Suspicion{By: c.owner.String(), Age: max(r.Age, 0).Microseconds()}
		c.store.CompareAndSwap(ctx, []Write{{Key: key, Old: old, Value: rec.Encode(), Wake: id}})
		c.log.Info("suspected", "session", id, "owner", rec.Owner)
	case buryIt:
		tomb := core.SessionRecord{Owner: rec.Owner, TTL: rec.TTL, Grace: rec.Grace, Beat: rec.Beat, Nonce: rec.Nonce,
			Dead: time.Now().UnixMicro(), By: c.owner.String(), Why: why}
		outs, err := c.store.CompareAndSwap(ctx, []Write{{Key: key, Old: old, Value: tomb.Encode(), Wake: Everyone}})
		if err != nil {
			return false // perhaps: the next look tells
		}
		if !outs[0].Won {
			now, err := core.DecodeSession(outs[0].Record.Value)
			if err != nil || now.Dead == 0 {
				return false // it lives
			}
			tomb = now
		} else {
			c.log.Info("buried", "session", id, "owner", rec.Owner, "why", why)
		}
		c.knowDead(id, tomb, outs[0].Record.Age)
		return true
	}
	return false
}

// knowDead remembers a death. The claims of the dead are void once the grace in its
// tombstone is over: counted from now, or from when the tombstone was written, as far
// as its age by the store's clock and the wall clocks agree on that. (Else processes
// that only ask once would each count from the start.)
func (c *Client) knowDead(id string, tomb core.SessionRecord, age time.Duration) {
	grace := time.Duration(tomb.Grace) * time.Millisecond
	grace -= min(grace, max(min(age, time.Since(time.UnixMicro(tomb.Dead))), 0))
	c.mu.Lock()
	if _, ok := c.dead[id]; !ok {
		if len(c.dead) > 10000 {
			clear(c.dead) // every death can be read again
		}
		c.dead[id] = c.now().Add(grace)
		if grace > 0 {
			c.machine.AfterFunc(grace, c.buried)
		}
	}
	c.mu.Unlock()
	c.judge.mu.Lock()
	delete(c.judge.watched, id)
	c.judge.mu.Unlock()
	c.proof.bury(id)
}

// buryProven buries sessions whose death the kernel has proved.
func (c *Client) buryProven(ids []string) {
	ctx, cancel := context.WithTimeout(c.ctx, DefaultTTL)
	defer cancel()
	looks, err := c.loadSessions(ctx, ids)
	if err != nil {
		c.pause(c.jitter(firstPoll))
		return
	}
	c.judgeAll(ctx, looks)
	for _, id := range ids {
		if len(looks[id].rec.Value) == 0 {
			// It ended, or never began: its claims are judged as without a record.
			c.proof.bury(id)
		}
	}
}

// buryOwn writes the tombstone of our own session, which has ended in order: its claims
// are void once grace is over.
func (c *Client) buryOwn(ctx context.Context, s *session, grace time.Duration) error {
	errDead := errors.New("dead")
	_, err := c.update(ctx, Key{Sessions, s.id}, Everyone, func(r Record) ([]byte, error) {
		rec, err := core.DecodeSession(r.Value)
		if err == nil && rec.Dead != 0 {
			return nil, errDead
		}
		return core.SessionRecord{Owner: &c.owner, TTL: s.ttl.Milliseconds(), Grace: grace.Milliseconds() + int64(min(grace, 1)),
			Beat: rec.Beat, Nonce: rec.Nonce, Dead: time.Now().UnixMicro(), By: c.owner.String(), Why: "closed"}.Encode(), nil
	})
	if errors.Is(err, errDead) {
		return nil
	}
	return err
}
