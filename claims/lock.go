package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// A Lock is one lock that is held: a transaction with a single claim.
type Lock struct {
	tx *Tx
}

// Acquire waits for the lock of a column of a key until ctx is done, and takes it: first come,
// first served, always within this process (in one Locker, or with Group), and among Lockers as
// long as a claim lasts. A claim that waits keeps its place for half of the time that it is
// trusted; then it is replaced by a new one. JanusGraph does not wait in line: where Acquire meets
// its claims, it does the same, and tries again and again. A *HeldError says who was in the way
// when ctx was done, a *SlowError that the store is too slow.
func (l *Locker) Acquire(ctx context.Context, key, column []byte) (*Lock, error) {
	t := l.begin(ctx, nil)
	err := t.do(ctx, func(ctx context.Context) error { return t.acquire(ctx, key, column) })
	if err != nil {
		err = fmt.Errorf("acquire key %q, column %q: %w", key, column, err)
		t.end(err)
		t.traceRefused(err)
		return nil, err
	}
	t.traceHeld()
	return &Lock{t}, nil
}

func (t *Tx) acquire(ctx context.Context, key, column []byte) error {
	c, err := t.enter(ctx, key, column)
	if err != nil {
		return err
	}
	var held *HeldError
	for err == nil {
		if c.began == 0 || t.l.steady()-c.began > t.l.trust()/2 {
			if err = t.l.agree(ctx); err == nil {
				err = c.giveWay(ctx)
			}
			if err == nil {
				err = c.stake(ctx)
			}
		}
		if err == nil {
			err = c.settle(ctx, c.ready)
		}
		var s sight
		if err == nil {
			s, err = c.follow(ctx)
		}
		if err != nil {
			break
		}
		switch err = c.grant(s); {
		case err == nil:
			return t.hold()
		case errors.Is(err, errMissing), errors.Is(err, ErrExpired):
			c.began = 0
			err = sleep(ctx, jitter(t.l.opts.Wait/4))
		case errors.As(err, &held):
			if !t.stood {
				t.stood = true
				t.emit(t.l.opts.Trace.Queued, holdfast.Event{})
			}
			err = t.standBy(ctx, c, s)
		}
	}
	if held != nil && ctx.Err() != nil {
		held.Err = ctx.Err()
		return held
	}
	return err
}

const (
	quickPoll = 10 * time.Millisecond
	lastPoll  = time.Second
)

// giveWay lets strangers go first, for a while, if there are any. They do not wait in
// line, and lose whenever an older claim of ours is there.
func (c *claim) giveWay(ctx context.Context) error {
	l := c.l
	if met := time.Duration(l.met.Load()); met == 0 || l.steady()-met > 10*time.Second {
		return nil
	}
	s, err := c.look(ctx)
	if err != nil || !s.strangers {
		return err
	}
	return sleep(ctx, jitter(3*l.wait()))
}

// standBy waits until it is worth while to look again: a seventh of the time
// since the queue last moved. Strangers come and go and do not queue, so among them
// the claim is withdrawn for that time: if it stood, all of theirs would fail.
func (t *Tx) standBy(ctx context.Context, c *claim, s sight) error {
	pause := jitter(min(max(quickPoll, (t.l.steady()-c.moved)/7), lastPoll))
	if s.strangers {
		c.began = 0
		if err := c.withdraw(ctx); permanent(err) {
			return err
		}
		pause = jitter(min(max(t.l.wait()/2, (t.l.steady()-c.moved)/7), lastPoll))
	}
	return sleep(ctx, pause)
}

// Context has the values of the acquiring context, but not its end: it ends when
// the lock is lost or released or the Locker is closed, and context.Cause says
// why (holdfast.ErrLost, ErrReleased, ErrClosed).
func (k *Lock) Context() context.Context { return k.tx.ctx }

// Done is closed when the lock is no longer held.
func (k *Lock) Done() <-chan struct{} { return k.tx.Done() }

// Err is nil while the lock is held, and then says why it is not. See Tx.Err.
func (k *Lock) Err() error { return k.tx.Err() }

// Deadline is the current end of trust; it moves with every renewal.
func (k *Lock) Deadline() time.Time { return k.tx.Deadline() }

// Verify reads the claims, and returns nil if ours is still first. It is a further check
// before an act, for a caller that can afford a read. After an error of the store the lock
// is still held.
func (k *Lock) Verify(ctx context.Context) error { return k.tx.Check(ctx) }

// Release ends belief in the lock at once and then removes its claims, see
// Tx.Delete.
func (k *Lock) Release(ctx context.Context) error {
	err := k.tx.Delete(ctx)
	if err != nil && !errors.Is(err, holdfast.ErrLost) {
		return fmt.Errorf("release %v: %w", k.tx.claims[0], err)
	}
	return err
}
