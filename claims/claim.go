package claims

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A claim is one transaction's attempt to get one lock, with all columns that were ever
// written for it: a failed write may still take effect, and has to be removed too.
type claim struct {
	l           *Locker
	key, column []byte // what is locked
	row         []byte // where the claims to it are

	mu  sync.Mutex
	own map[string]written // every column written, until it is removed for good

	// Used only by what drives the claim: Write, Check or Acquire, then the renewals.
	guarded map[string]bool // claims of others that one of ours was put in front of
	began   time.Duration   // before the timestamp of the latest column that counts was taken
	ready   time.Duration   // when it may be checked
	until   time.Duration   // the end of trust in the columns that count
	first   string          // whose claim was in front of ours at the last look
	moved   time.Duration   // when that last changed
}

// written is a column of a claim.
type written struct {
	name   string
	stamp  int64         // its latest write timestamp
	began  time.Duration // when it was written
	counts bool          // it was there in time
}

func (l *Locker) claim(key, column []byte) *claim {
	return &claim{l: l, key: bytes.Clone(key), column: bytes.Clone(column), row: rowKey(key, column),
		own: make(map[string]written), guarded: make(map[string]bool)}
}

func (c *claim) String() string { return fmt.Sprintf("key %q, column %q", c.key, c.column) }

// write adds a column, and removes others that were written before. Whatever
// the result, the column is one of ours from now on.
func (c *claim) write(ctx context.Context, name []byte, remove []written) error {
	names, after := namesOf(remove)
	w := written{string(name), c.l.stamp(after), c.l.steady(), false}
	c.mu.Lock()
	c.own[w.name] = w
	c.mu.Unlock()
	err := c.l.call(ctx, func(ctx context.Context) error {
		return c.l.columns.Add(ctx, c.row, Column{name, claimValue()}, names, w.stamp)
	})
	if err == nil {
		c.forget(remove)
	}
	return err
}

func namesOf(columns []written) (names [][]byte, latest int64) {
	for _, w := range columns {
		names = append(names, []byte(w.name))
		latest = max(latest, w.stamp)
	}
	return names, latest
}

// all returns the columns written for which keep is true.
func (c *claim) all(keep func(written) bool) (columns []written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.own {
		if keep(w) {
			columns = append(columns, w)
		}
	}
	return columns
}

// count marks a column as one that counts.
func (c *claim) count(name []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.own[string(name)]
	w.counts = true
	c.own[string(name)] = w
}

// annul makes all columns stop counting.
func (c *claim) annul() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, w := range c.own {
		w.counts = false
		c.own[name] = w
	}
}

// forget drops columns that are removed for good: a write that arrives later is
// older than the deletion.
func (c *claim) forget(removed []written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range removed {
		delete(c.own, w.name)
	}
}

func every(written) bool { return true }

// stake writes a claim in place of all earlier ones. It counts only if the write took
// no longer than Wait: otherwise another process may have looked before it was visible.
func (c *claim) stake(ctx context.Context) error {
	l := c.l
	var failed error
	slow := &SlowError{Wait: l.opts.Wait, Tries: l.opts.Retries}
	for try := range l.opts.Retries {
		if try > 0 && failed != nil {
			if err := sleep(ctx, jitter(l.opts.Wait/4)); err != nil {
				return err
			}
		}
		c.annul()
		before := c.all(every)
		began := l.steady()
		name := claimName(l.now(), l.rid())
		read := l.steady() // the clock was read by now
		failed = c.write(ctx, name, before)
		took := l.steady() - began
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case permanent(failed):
			return fmt.Errorf("writing a claim: %w", failed)
		case failed == nil && took <= l.opts.Wait:
			c.count(name)
			c.began, c.ready, c.until = began, read+l.wait(), began+l.trust()
			return nil
		case failed == nil && (slow.Took == 0 || took < slow.Took):
			slow.Took = took
		}
	}
	if failed != nil {
		return fmt.Errorf("writing a claim, tried %d times: %w", l.opts.Retries, failed)
	}
	return slow
}

// settle waits until the claim may be checked, by a clock that does not step.
func (c *claim) settle(ctx context.Context, ready time.Duration) error {
	for left := ready - c.l.steady(); left >= 0; left = ready - c.l.steady() {
		if err := sleep(ctx, left+1); err != nil {
			return err
		}
	}
	return nil
}

// A sight is what a row says about a claim.
type sight struct {
	others    [][]byte // live claims of others, in order
	ahead     int      // how many of them come before the first of ours that counts
	missing   bool     // none of ours is there
	strangers bool     // some of the others are not Lockers
	near      []byte   // the first stranger so little behind ours that it may have read before ours was there
	skew      *SkewError
}

// judge looks at the columns of a row. It skips those of this transaction that came
// too late to count. Those of any other process or transaction belong to others,
// whatever their names.
func (c *claim) judge(columns []Column, expired, now int64) (s sight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.l.opts
	s.missing = true
	near := int64(0) // up to which timestamp
	for _, col := range columns {
		t := timestampOf(col.Name)
		own, ours := c.own[string(col.Name)]
		switch {
		case t < expired:
		case ours && own.counts:
			if s.missing {
				near = t + o.Unit.count(o.Skew+c.l.tick())
			}
			s.missing = false
		case ours:
		default:
			s.others = append(s.others, col.Name)
			if s.missing {
				s.ahead++
			}
			rid := ridOf(col.Name)
			if !isHoldfast(rid) {
				s.strangers = true
				if !s.missing && t <= near && s.near == nil {
					s.near = col.Name
				}
			}
			if ahead := time.Duration(t-now) * o.Unit.span(); t-now > o.Unit.count(o.Skew+c.l.tick()) && s.skew == nil {
				s.skew = &SkewError{Rid: rid, By: ahead, Skew: o.Skew}
			}
		}
	}
	return s
}

// look reads and judges the row. Only a claim that is ready may rely on it.
func (c *claim) look(ctx context.Context) (s sight, err error) {
	l := c.l
	expired := l.expired()
	columns, err := l.slice(ctx, c.row, claimName(expired, ""))
	if err != nil {
		return sight{}, err
	}
	s = c.judge(columns, expired, l.now())
	if s.strangers {
		l.met.Store(int64(l.steady()))
	}
	l.clean(c.row)
	return s, nil
}

// follow looks, and notes when the claim in front of ours changes.
func (c *claim) follow(ctx context.Context) (s sight, err error) {
	if s, err = c.look(ctx); err != nil {
		return s, err
	}
	first := ""
	if s.ahead > 0 {
		first = string(s.others[0])
	} else if s.near != nil {
		first = string(s.near)
	}
	if first != c.first || c.moved == 0 {
		c.first, c.moved = first, c.l.steady()
	}
	return s, nil
}

// verdict is nil if the claim is first and still trusted.
func (c *claim) verdict(s sight) error {
	switch {
	case s.skew != nil:
		return s.skew
	case c.l.steady() >= c.until:
		return ErrExpired
	case s.ahead > 0:
		return c.heldBy(s.others[0])
	case s.missing:
		return errMissing
	}
	return nil
}

// grant is the verdict on a claim that does not hold yet. JanusGraph waits for
// Wait alone, not for Skew. If its claim sorts right behind ours, JanusGraph may
// have begun earlier, and have read the row before ours was visible.
func (c *claim) grant(s sight) error {
	err := c.verdict(s)
	if err == nil && s.near != nil {
		return c.heldBy(s.near)
	}
	return err
}

func (c *claim) heldBy(name []byte) error {
	return &HeldError{Rid: ridOf(name), Age: max(0, time.Duration(c.l.now()-timestampOf(name))*c.l.opts.Unit.span())}
}

var errMissing = errors.New("the claim is gone: somebody has removed it")

// renew prolongs trust in a claim that holds, before the first of its columns
// expires. It writes a second claim. If others have claimed in between, the first of
// them would be first once our first claim expires, so renew puts a guard in front of
// each, which expires together with it. Only a holder may do that.
func (c *claim) renew(ctx context.Context) error {
	l := c.l
	lapsed := c.all(l.lapsed) // of no use any more
	began := l.steady()
	name := claimName(l.now(), l.rid())
	ready := l.steady() + l.wait()
	if err := c.write(ctx, name, lapsed); err != nil {
		return fmt.Errorf("writing a claim: %w", err)
	}
	c.count(name)
	if err := c.settle(ctx, ready); err != nil {
		return err
	}
	s, err := c.look(ctx)
	if err != nil {
		return err
	}
	if err := c.verdict(s); err != nil {
		return err
	}
	guarded := c.guarded
	c.guarded = make(map[string]bool)
	for _, other := range s.others {
		if guarded[string(other)] {
			c.guarded[string(other)] = true
			continue
		}
		if bytes.Compare(other, name) > 0 {
			continue
		}
		guard := guardName(other, l.rid())
		if err := c.write(ctx, guard, nil); err != nil {
			return fmt.Errorf("writing a claim: %w", err)
		}
		c.count(guard)
		c.guarded[string(other)] = true
	}
	if l.steady() >= c.until {
		return ErrExpired
	}
	c.began, c.until = began, began+l.trust()
	return nil
}

// withdraw tries once to remove every column ever written. After a failure they
// remain to be removed.
func (c *claim) withdraw(ctx context.Context) error {
	c.annul()
	all := c.all(every)
	if len(all) == 0 {
		return nil
	}
	names, after := namesOf(all)
	err := c.l.call(ctx, func(ctx context.Context) error {
		return c.l.columns.Delete(ctx, c.row, names, c.l.stamp(after))
	})
	if err != nil {
		return fmt.Errorf("removing the claim to %v: %w", c, err)
	}
	c.forget(all)
	return nil
}

// lapsed says whether a column has expired by everybody's clock.
func (l *Locker) lapsed(w written) bool {
	o := &l.opts
	return l.steady()-w.began > o.Expire+o.Expire/20+2*(o.Skew+l.tick())
}

// leave withdraws until that succeeds, or the columns have expired for everybody, or
// the Locker is closed.
func (c *claim) leave(ctx context.Context) (err error) {
	l := c.l
	pause := l.opts.Wait / 4
	for {
		if err = c.withdraw(ctx); err == nil || permanent(err) {
			return err
		}
		if len(c.all(l.lapsed)) == len(c.all(every)) || sleep(ctx, jitter(pause)) != nil {
			return err
		}
		pause = min(2*pause, 5*time.Second)
	}
}
