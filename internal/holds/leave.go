package holds

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Leave releases the locks of a hold, or leaves the line, for good; with sole only if no other call
// than those of this client and its last Follow has ever renewed it.
func (c *Keeper) Leave(ctx context.Context, client, id string, sole bool) error {
	ctx, cancel, err := c.WhileOpen(ctx, true)
	if err != nil {
		return err
	}
	defer cancel()
	x := c.resume(id, client)
	if sole {
		if !x.alone {
			return nil
		}
		x.last = x.session.Nonce
	}
	if !x.all || slices.ContainsFunc(x.names, func(n record.HoldName) bool { return n.Version == 0 }) {
		x.names = nil // to be read
	}
	age := time.Duration(0)
	if x.version != 0 {
		age = c.Now().Sub(c.holdSeen(id))
	}
	c.forgetHold(id)
	for try := 0; ; try++ {
		err := x.leaveOnce(ctx, &age)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrOther):
			return err
		case err != errAgain:
			x.failed = err
		}
		if ctx.Err() != nil || try > 10 {
			return x.unknown(ctx)
		}
		if err != errAgain || try > 2 {
			c.Pause(c.Jitter(10 * time.Millisecond << min(try, 5)))
		}
	}
}

// errAgain: a write lost to a record that is known now.
var errAgain = errors.New("again")

// holdSeen is when a remembered hold was last written or read.
func (c *Keeper) holdSeen(id string) lease.Instant {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.kept.known[id].at
}

// leaveOnce makes the writes that a release still needs, in one call. age is that of the session's
// record.
func (x *holdCall) leaveOnce(ctx context.Context, age *time.Duration) error {
	c := x.c
	ctx, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	asked := c.Now()
	if err := x.readToLeave(ctx, asked, age); err != nil {
		return err
	}
	if x.last != "" && x.session.Nonce != x.last {
		return nil
	}
	left := x.leaving(*age)
	if len(left.writes) == 0 {
		return nil
	}
	first := x.last != "" && left.ends // the claims stay unless the tombstone wins
	if first {
		left.writes, left.at, left.next = left.writes[:1], nil, nil
	}
	outs, err := c.Store.CompareAndSwap(ctx, left.writes)
	for i := range outs {
		err = errors.Join(err, outs[i].Err)
	}
	if err != nil {
		for i, k := range left.at {
			x.removals = append(x.removals, x.removes(&x.names[k], &left.next[i], left.tomb))
		}
		x.version, x.absent, x.session, x.names = 0, false, record.Session{}, nil // all is read again
		return err
	}
	if err := x.leftBy(left, outs, asked, age); err != nil || !first {
		return err
	}
	return x.leaveOnce(ctx, age)
}

// readToLeave reads what is not known of the hold, and refuses one that is not the caller's.
func (x *holdCall) readToLeave(ctx context.Context, asked lease.Instant, age *time.Duration) error {
	if x.version == 0 && !x.absent {
		recs, err := x.c.Store.Load(ctx, []driver.Key{driver.Sessions.Key(x.id)}, driver.Fresh)
		if err != nil {
			return err
		}
		if *age, err = recs[0].Age, x.sawSession(recs[0], asked); err != nil {
			return err
		}
	}
	if x.session.Hold(x.absent) == record.HoldForeign {
		return &OtherError{x.id, "id"}
	}
	if x.client != "" && !x.absent && x.session.Client != x.client {
		return &OtherError{x.id, "client"}
	}
	if len(x.names) != len(x.session.Names) {
		return x.c.readNames(ctx, []*holdCall{x})
	}
	return nil
}

// A leaving is the writes that a release still needs.
type leaving struct {
	writes []driver.Write
	tomb   record.Session
	ends   bool          // the first write is the tombstone
	at     []int         // for each other write, the index of its name in the call,
	next   []record.Lock // and what it writes
}

// leaving decides what to write; age is that of the session's record.
func (x *holdCall) leaving(age time.Duration) leaving {
	c := x.c
	tomb := x.session
	if x.absent {
		tomb.Client = x.client
	}
	ends := tomb.ReleaseHold(age, c.Owner.String(), c.Clocks())
	left := leaving{tomb: tomb, ends: ends}
	if ends {
		w := driver.Write{Key: driver.Sessions.Key(x.id), Old: x.version, Value: tomb.Encode(), Lazy: true}
		if x.absent {
			w.Old = driver.IfEmpty
		}
		if len(tomb.Revoked) > 0 || tomb.Grace > 0 {
			w.Notify, w.Lazy = driver.Everyone, false // someone waits for it
		}
		left.writes = append(left.writes, w)
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for i := range x.names {
		n := &x.names[i]
		if w, ok := n.Left(tomb, c.DeadNow(), time.Now().UnixMicro()); ok && tomb.Grace == 0 { // else the claims are void after the grace
			left.writes, left.at, left.next = append(left.writes, holdWrite(n, w)), append(left.at, i), append(left.next, w.Next)
		}
	}
	return left
}

// leftBy notes what became of the writes. It returns errAgain if one lost.
func (x *holdCall) leftBy(left leaving, outs []driver.Outcome, asked lease.Instant, age *time.Duration) (err error) {
	again := false
	if left.ends {
		if out := outs[0]; out.Won {
			x.session, x.version, x.absent = left.tomb, out.Record.Version, false
		} else {
			again = true
			if *age, err = out.Record.Age, x.sawSession(out.Record, asked); err != nil {
				return err
			}
		}
		outs = outs[1:]
	}
	for i, k := range left.at {
		if !outs[i].Won {
			again = true
			if err := x.sawName(k, outs[i].Record); err != nil {
				return err
			}
			continue
		}
		x.removed(x.removes(&x.names[k], &left.next[i], left.tomb))
		x.names[k].Record = record.Lock{}
	}
	if again {
		return errAgain
	}
	return nil
}

// LeaveQueue takes a hold out of its line if it waits, and has not been renewed since the beat with
// that nonce.
func (c *Keeper) LeaveQueue(ctx context.Context, id, nonce string) error {
	if c.Opts.ReadOnly {
		return base.ErrReadOnly
	}
	for try := 0; ; try++ {
		x, err := c.lookAtHold(ctx, "", id)
		if err != nil {
			return err
		}
		if x.session.Nonce != nonce || x.hold().Held {
			return nil
		}
		var writes []driver.Write
		c.Mu.Lock()
		for i := range x.names {
			n := &x.names[i]
			if w, ok := n.Left(record.Session{}, c.DeadNow(), time.Now().UnixMicro()); ok && n.Waits() {
				writes = append(writes, holdWrite(n, w))
			}
		}
		c.Mu.Unlock()
		if len(writes) == 0 {
			return nil
		}
		one, cancel := context.WithTimeout(ctx, holdPatience)
		outs, err := c.Store.CompareAndSwap(one, writes)
		cancel()
		if err != nil {
			return base.NoAnswer(err)
		}
		if !slices.ContainsFunc(outs, func(o driver.Outcome) bool { return !o.Won }) || try > 10 {
			return nil
		}
		c.Pause(c.Jitter(time.Millisecond << min(try, 6)))
	}
}
