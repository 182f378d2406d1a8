package holds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A holdCall is one call on behalf of a hold: what it knows of the records of the hold, and which
// of them it wrote itself.
type holdCall struct {
	c      *Keeper
	id     string
	client string
	create *record.Session // the first record of the hold, if the call may write it
	extend bool            // a beat makes the hold end detach from now
	detach time.Duration   // once all is held, the hold is detached for this long; 0: it stays as it is
	wait   bool            // keep a place in line

	session record.Session
	version int64         // of session; 0: not known
	absent  bool          // the session is known to have no record
	age     time.Duration // of session when it was read; negative: not known
	asked   lease.Instant // before the call that has read it
	names   []record.HoldName
	wrote   []bool // for each of names: this call wrote its record,
	since   []bool // and did so since it sent the beat that stands
	looked  bool   // records of names were read since that beat

	nonces map[string]lease.Instant // of the beats that the call sent, and when
	first  string                   // the nonce of all attempts at the first record
	sent   lease.Instant            // when the beat that stands was sent, if the call sent it; else Never
	alone  bool                     // this client made the record, and nobody else has written it since
	last   string                   // leave only if this beat stands; "": leave
	unsure bool                     // a write of the call was not answered
	locked bool                     // the last write took a while and lost to the record that it was to follow
	all    bool                     // all names are known to be held
	lost   int                      // rounds in a row that lost a write
	failed error

	removals []removal // by writes that were not answered
}

func (c *Keeper) newHoldCall(id, client string) *holdCall {
	return &holdCall{c: c, id: id, client: client, age: -1, sent: lease.Never, nonces: make(map[string]lease.Instant)}
}

// holdPatience bounds one call to the store for a hold, so that a call that hangs is tried again.
const holdPatience = 2 * time.Second

// lives says why the call cannot go on: the hold is over, or is not the one asked for. nil: it
// lives, as far as is known.
func (x *holdCall) lives() error {
	if x.absent && x.create != nil && x.c.KnownDead(x.id) { // and its tombstone has been swept
		return &OverError{ID: x.id, Why: endDied, Reason: "it has ended"}
	}
	if x.absent && x.create != nil || x.version == 0 && !x.absent {
		return nil
	}
	if err := over(x.id, &x.session, x.absent); err != nil {
		return err
	}
	if x.client != "" && x.client != x.session.Client {
		return &OtherError{x.id, "client"}
	}
	if x.create == nil {
		return nil
	}
	if x.session.Client != x.create.Client {
		return &OtherError{x.id, "client"}
	}
	if !slices.Equal(x.session.Names, x.create.Names) {
		return &OtherError{x.id, "names"}
	}
	return x.sameMode()
}

// sameMode returns an error if a claim that stands is not in the mode of those to be entered.
func (x *holdCall) sameMode() error {
	for i := range x.names {
		n := &x.names[i]
		if cl, _, ok := n.Record.Find(x.id, n.Claim.Nr); ok && cl.Slots != n.Claim.Slots {
			return &OtherError{x.id, "mode"}
		}
	}
	return nil
}

// fresh says whether this call sent the beat that stands, recently enough to be believed in for a
// good while.
func (x *holdCall) fresh() bool {
	if x.sent == lease.Never {
		return false
	}
	late := x.session.Duration() / 2
	if x.session.Detached {
		late = min(x.session.Duration()/12, time.Second)
	}
	return x.c.Now().Sub(x.sent) <= late
}

// beat returns the next record of the session, and its write.
func (x *holdCall) beat(detach, whole bool) (record.Session, driver.Write) {
	nonce := x.c.NewNonce()
	w := driver.Write{Key: driver.Sessions.Key(x.id), Old: x.version}
	var next record.Session
	if x.create != nil && (x.version == 0 || x.absent) {
		if x.first == "" {
			x.first = nonce
		}
		nonce, w.Old = x.first, driver.IfEmpty // which of these attempts won does not matter
		next = x.create.Renewed(nonce, x.c.Clocks())
	} else {
		next = x.session.Renewed(nonce, x.c.Clocks())
	}
	if detach {
		next = next.DetachedFor(x.detach, x.c.Clocks())
	}
	next.Whole = next.Whole || whole
	if _, again := x.nonces[nonce]; !again {
		x.nonces[nonce] = x.c.Now()
	}
	w.Value = next.Encode()
	return next, w
}

// load reads the records of the hold.
func (x *holdCall) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	keys := []driver.Key{driver.Sessions.Key(x.id)}
	for i := range x.names {
		keys = append(keys, driver.Names.Key(x.names[i].Name))
	}
	asked := x.c.Now()
	recs, err := x.c.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return err
	}
	if err := x.sawSession(recs[0], asked); err != nil {
		return err
	}
	for i := range x.names {
		if err := x.sawName(i, recs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// sawSession notes the session's record.
func (x *holdCall) sawSession(r driver.Record, asked lease.Instant) (err error) {
	x.absent, x.version, x.age, x.asked = len(r.Value) == 0, r.Version, r.Age, asked
	x.since, x.alone = make([]bool, len(x.names)), false
	if x.session, err = record.DecodeSession(r.Value); err != nil {
		return err
	}
	x.sent = lease.Never
	if sent, ok := x.nonces[x.session.Nonce]; ok && !x.absent {
		x.sent = sent
	}
	return nil
}

// sawName notes the lock record of a name.
func (x *holdCall) sawName(i int, r driver.Record) (err error) {
	n := &x.names[i]
	x.looked = true
	n.Version = record.Version(r.Version)
	n.Record, err = base.LockOf(r)
	x.removedLate(n)
	return err
}

// write writes records of the hold, all in one call, and notes what became of them.
func (x *holdCall) write(ctx context.Context, beat *record.Session, w driver.Write, plan record.HoldPlan) error {
	var writes []driver.Write
	if beat != nil {
		writes = append(writes, w)
	}
	for _, h := range plan.Writes {
		writes = append(writes, driver.Write{Key: driver.Names.Key(x.names[h.Index].Name), Old: int64(h.Write.Old),
			Value: h.Write.Next.Encode(max(h.Write.Old, 0)), Notify: h.Write.Notify, Lazy: h.Write.Lazy})
	}
	began := x.c.Now()
	x.locked = false
	outs, err := x.c.Batch.All(ctx, writes, holdPatience)
	for i := range outs {
		err = errors.Join(err, outs[i].Err)
	}
	if err != nil {
		x.unsure = true
		for _, h := range plan.Writes {
			x.removals = append(x.removals, x.removes(&x.names[h.Index], &h.Write.Next, record.Session{}))
		}
		return err
	}
	lost := false
	if beat != nil {
		out := outs[0]
		outs = outs[1:]
		if out.Won {
			x.won(*beat, out.Record.Version)
		} else if err := x.sawSession(out.Record, began); err != nil {
			return err
		} else {
			lost = true
		}
	}
	for i, h := range plan.Writes {
		n := &x.names[h.Index]
		if outs[i].Won {
			x.removed(x.removes(n, &h.Write.Next, record.Session{}))
			n.Record, n.Version = h.Write.Next, record.Version(outs[i].Record.Version)
			n.Record.Written(n.Version)
			x.wrote[h.Index] = true
			x.since[h.Index] = beat == nil || x.session.Beat == 1
			continue
		}
		lost = true
		same := outs[i].Record.Version == int64(n.Version) || n.Version == record.IfEmpty && len(outs[i].Record.Value) == 0
		if same && x.c.Now().Sub(began) > core.LockedCall {
			x.locked = true
		}
		if err := x.sawName(h.Index, outs[i].Record); err != nil {
			return err
		}
	}
	if x.lost++; !lost {
		x.lost = 0
	}
	return nil
}

// won notes that a beat of the call stands.
func (x *holdCall) won(next record.Session, version int64) {
	x.alone = x.alone || next.Beat == 1
	x.session, x.version, x.absent, x.age = next, version, false, -1
	x.sent = x.nonces[next.Nonce]
	x.since, x.looked = make([]bool, len(x.names)), false
}

// collect writes the records of the hold until the hold has all its names, or a place in line, or
// is refused. Unless it is refused, this call has then renewed its session.
func (x *holdCall) collect(ctx context.Context) (record.HoldPlan, error) {
	whole := int64(0) // the version of the session's record that the names were read after
	for try := 0; ; try++ {
		if err := x.lives(); err != nil {
			x.takeBack(ctx)
			return record.HoldPlan{Missing: -1}, err
		}
		x.c.Mu.Lock()
		plan := record.PlanHold(x.names, x.wait, x.c.DeadNow(), time.Now().UnixMicro())
		x.c.Mu.Unlock()
		if plan.Missing >= 0 && x.session.Whole {
			// Another call may have made the hold whole since this one has read the names.
			if x.version == whole {
				return plan, &OverError{ID: x.id, Why: endDied, Reason: "its claims have vanished from the store"}
			}
			whole = x.version
			if err := x.read(ctx); err != nil {
				return plan, err
			}
			continue
		}
		refused := plan.Missing >= 0 && (!x.wait || plan.Full)
		step, done := x.next(plan, refused)
		if done {
			return plan, nil
		}
		var beat *record.Session
		var w driver.Write
		if step.beat {
			var next record.Session
			next, w = x.beat(step.detach, step.whole)
			beat = &next
		}
		var err error
		if step.line {
			err = x.enterLine(ctx)
		} else {
			err = x.write(ctx, beat, w, step.plan)
		}
		switch {
		case err == nil && x.locked && !x.wait:
			return plan, nil
		case err == nil && x.lost > 2:
			x.c.Pause(x.c.Jitter(time.Millisecond << min(x.lost, 6)))
		case err != nil:
			x.failed = err
			if err := x.recover(ctx, try); err != nil {
				return plan, err
			}
		}
		if ctx.Err() != nil {
			return plan, x.unknown(ctx)
		}
	}
}

// enterLine puts the claim in line as a guest of the local queue of its name, in one write with
// everything else that this client wants of the name.
func (x *holdCall) enterLine(ctx context.Context) error {
	c, n := x.c, &x.names[0]
	news := make(chan struct{}, 1)
	c.Mu.Lock()
	p, g := c.Invite(n.Name, n.Claim, true, news)
	c.Unlock()
	defer func() {
		c.Mu.Lock()
		defer c.Unlock()
		c.Dismiss(p, g)
	}()
	x.wrote[0], x.looked = true, true
	for {
		select {
		case <-news:
		case <-ctx.Done():
			x.unsure = true
			return context.Cause(ctx)
		}
		c.Mu.Lock()
		rec, version := p.Record()
		state := g.State
		if state != core.GuestUnseen {
			n.Record, n.Version = *rec, version
		}
		c.Mu.Unlock()
		if state != core.GuestUnseen {
			return nil
		}
	}
}

// A holdStep is one call to the store.
type holdStep struct {
	plan                record.HoldPlan
	beat, detach, whole bool
	line                bool // the claim goes in line, along with whatever else is wanted of the name
}

// next is the next call to the store; done: there is none.
func (x *holdCall) next(plan record.HoldPlan, refused bool) (s holdStep, done bool) {
	ours := x.sent != lease.Never
	all := plan.Missing < 0 && len(plan.Writes) == 0
	s.plan = plan
	s.detach = x.detach > 0 && !x.session.Detached && (all || !x.wait)
	switch {
	case plan.Back && (!ours || x.looked):
		s.plan, s.beat, s.detach = record.HoldPlan{}, true, false
	case refused:
		return s, len(plan.Writes) == 0
	case plan.Missing == 0 && len(x.names) == 1 && !x.names[0].Waits() && x.fresh():
		s.line = true
	case plan.Missing == 0 && len(x.names) == 1 && !x.names[0].Waits():
		s.plan, s.beat = record.HoldPlan{}, true
	case all && len(x.names) > 1 && !x.session.Whole:
		switch {
		case !ours:
			s.beat = true
		case slices.Contains(x.since, false):
			s.plan = record.Rewrite(x.names)
		default:
			s.beat, s.whole = true, true
		}
	default:
		s.beat = !x.fresh() || s.detach
		return s, len(plan.Writes) == 0 && !s.beat
	}
	return s, false
}

// read reads the records until the store answers.
func (x *holdCall) read(ctx context.Context) error {
	if x.failed = x.load(ctx); x.failed != nil {
		return x.recover(ctx, 0)
	}
	return nil
}

// recover reads the records again after a call that was not answered.
func (x *holdCall) recover(ctx context.Context, try int) error {
	for ; ; try++ {
		if !x.c.Doze(ctx, nil, 20*time.Millisecond<<min(try, 5)) {
			return x.unknown(ctx)
		}
		err := x.load(ctx)
		if err == nil {
			return nil
		}
		x.failed = err
	}
}

// unknown is the error of a call whose outcome is not known.
func (x *holdCall) unknown(ctx context.Context) error {
	err := context.Cause(ctx)
	if err == nil {
		err = base.ErrClosed
	}
	if x.failed != nil {
		return fmt.Errorf("%w: %w", err, base.NoAnswer(x.failed))
	}
	return err
}

// hold is what the call has found.
func (x *holdCall) hold() State {
	h := State{ID: x.id, Sole: x.alone, Nonce: x.session.Nonce, Names: x.session.Names, Client: x.session.Client, TTL: x.session.Duration(), Detached: x.session.Detached, Held: len(x.names) == 1 || len(x.names) > 1 && x.session.Whole}
	if x.session.Owner != nil {
		h.Owner = *x.session.Owner
	}
	h.Owner.Session = x.id
	switch age := x.session.Age(x.age); {
	case x.sent != lease.Never:
		h.Beat = time.Now().Add(-x.c.Now().Sub(x.sent))
		if h.Detached {
			h.Ends = h.Beat.Add(h.TTL - record.Margin(h.TTL))
		}
	case h.Detached && x.age >= 0 && age >= 0:
		h.Ends = time.Now().Add(h.TTL - record.Margin(h.TTL) - age - x.c.Now().Sub(x.asked)) // the answer may have come late
	}
	x.c.Mu.Lock()
	defer x.c.Mu.Unlock()
	dead := x.c.DeadNow()
	for i := range x.names {
		n := &x.names[i]
		rec, holds, ok := n.Record.Find(x.id, n.Claim.Nr)
		if !holds {
			h.Held = false
		}
		if !ok {
			continue
		}
		h.Claims = append(h.Claims, Claim{n.Name, rec})
		if !holds && h.Position == 0 {
			h.Position = n.Before(dead) + 1
		}
	}
	return h
}

// keep stores in the client what the call has found.
func (x *holdCall) keep(h State) {
	x.c.remember(x.id, holdRecord{session: x.session, version: x.version, at: x.c.Now(), held: h.Held, detach: x.detach, alone: x.alone, names: trimmed(x.id, x.names)})
}

// trim forgets what would cost memory for as long as the hold is followed.
func (x *holdCall) trim() { x.names = trimmed(x.id, x.names) }

// trimmed returns names with their lock records. Of a long queue it keeps only the claim of the
// hold; such a record must be read again before it is written.
func trimmed(id string, names []record.HoldName) []record.HoldName {
	names = slices.Clone(names)
	for i := range names {
		n := &names[i]
		if len(n.Record.Holders)+len(n.Record.Waiters) <= shortQueue {
			continue
		}
		cl, holds, ok := n.Record.Find(id, n.Claim.Nr)
		n.Record, n.Version = record.Lock{}, 0
		switch {
		case holds:
			n.Record.Holders = []record.Claim{cl}
		case ok:
			n.Record.Waiters = []record.Claim{cl}
		}
	}
	return names
}

// claimsOf returns the names of a hold with the claims of its session, as far as the record tells.
func claimsOf(id string, s *record.Session, claim record.Claim) (names []record.HoldName) {
	for i, name := range s.Names {
		claim.Session, claim.Nr, claim.TTL = id, int64(i+1), s.TTL
		names = append(names, record.HoldName{Name: name, Version: record.IfEmpty, Claim: claim})
	}
	return names
}
