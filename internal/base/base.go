// Package base has what the parts of a client have in common: the calls to the store, the clock, the
// goroutines, the session with its heartbeats, what is known of dead sessions, the history that is
// still to be written, and sweeping. Packages engine and holds are built on it.
package base

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/liveness"
	"github.com/holdfast-lock/holdfast/internal/machine"
)

// A Base is a client without its locks.
type Base struct {
	Store    driver.Store
	Traits   driver.Traits
	Opts     Config
	Trace    *Hooks
	Detaches bool // its locks become detached
	Owner    record.Owner
	Log      *slog.Logger
	Proof    liveness.Dir
	Machine  *machine.Machine // nil: the real one
	above    above

	Ctx  context.Context // ends when the client has nothing left to do
	Stop context.CancelFunc
	Open context.Context // ends when Shutdown or Close begins
	Shut context.CancelFunc
	Work sync.WaitGroup // our goroutines

	Mu        sync.Mutex // guards everything below, and what the parts above keep
	Closing   bool       // nothing is acquired any more: Shutdown or Close has begun
	Closed    bool       // Close has begun
	Answers   bool       // the store has answered once
	Sess      *Session   // nil before the first claim and after a loss
	Deaths    lease.Deaths
	Wrote     time.Duration // the TTL of the last session that wrote something; 0: nothing was written
	After     afterwards
	Detector  Detector
	Sweeping  sweeping
	unwritten unwritten
}

// above is what a base asks of the engine on it. c.Mu is held, except for the last three.
type above interface {
	Waits() bool                                            // whether a request waits
	Seen(name string, r driver.Record, asked lease.Instant) // the record of a name was read
	SessionOpened()
	SessionLost(id, why string, err error)
	Revoked(s *Session, r record.Revocation)           // a claim was broken
	StartWatching()                                    // for notifications
	AfterBeat(sent lease.Instant)                      // that was answered
	AfterDeath()                                       // of a session
	Claimants(session string, names []string) []string // with the local names where the session has a claim
}

// A Config is the Options of a client, checked and completed.
type Config struct {
	TTL, Grace time.Duration
	Owner      record.Owner
	RuntimeDir string
	Log        *slog.Logger // may be nil
	Trace      *Hooks
	ReadOnly   bool

	// Public makes an error of the engine or of holds one for the user, Lost makes a LostError, and
	// Reason is that of a LostError.
	Public func(error) error
	Lost   func(name string, token int64, why string, err error) error
	Reason func(error) string
}

// Init makes the base of a client on a store, and does no I/O.
func (c *Base) Init(store driver.Store, cfg Config, above above) {
	c.Store, c.Traits, c.Opts, c.Trace, c.Owner, c.above = store, store.Traits(), cfg, cfg.Trace, cfg.Owner, above
	c.Machine = ofProcess
	if o, ok := driver.Find[machine.Owner](store); ok {
		c.Machine = o.Machine()
	}
	if cfg.ReadOnly {
		c.Store = readOnlyStore{store}
	}
	if f := c.Trace.StoreCall; f != nil {
		c.Store = &tracedStore{c.Store, f}
	}
	if c.Log = cfg.Log; c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Ctx, c.Stop = context.WithCancel(context.Background())
	c.Open, c.Shut = context.WithCancel(c.Ctx)
	c.Proof.Path = cfg.RuntimeDir
	c.Detector.C, c.Sweeping.detector.C = c, c
	c.Sweeping.at = lease.Never
	c.unwritten.read = c.Now()
	c.unwritten.most = listedHolds // until the setting is known
}

// newID draws the id of a session.
func (c *Base) newID() string {
	var b [16]byte
	c.Machine.Read(b[:])
	return record.ProgramID(b)
}

// NewNonce returns 64 random bits.
func (c *Base) NewNonce() string {
	var b [8]byte
	c.Machine.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Jitter returns d, plus or minus up to a quarter.
func (c *Base) Jitter(d time.Duration) time.Duration { return d*3/4 + c.UpTo(d/2) }

// UpTo returns a random duration, at most d.
func (c *Base) UpTo(d time.Duration) time.Duration {
	return time.Duration(c.Machine.Int64N(int64(d) + 1))
}

// Spawn runs f in a goroutine that Close waits for; a client starts no others. The caller is one of
// these goroutines, or holds c.Mu and has seen that c.Ctx has not ended.
func (c *Base) Spawn(f func()) { c.Work.Go(f) }

// Pause waits for d, or less if the client has ended.
func (c *Base) Pause(d time.Duration) {
	t := c.Machine.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.Ctx.Done():
	}
}

// IsDead says whether a session's claims are void; c.Mu is held.
func (c *Base) IsDead(session string) bool { return c.Deaths.Dead(session, c.Now()) }

// DeadNow returns IsDead for the present moment; c.Mu is held while the result is used.
func (c *Base) DeadNow() func(session string) bool {
	now := c.Now()
	return func(session string) bool { return c.Deaths.Dead(session, now) }
}

// ErrUnchanged ends an update that has nothing to write.
var ErrUnchanged = errors.New("unchanged")

// Update tries to swap one record until it wins: change returns the new value for
// the present record, ErrUnchanged, or an error that ends the update. It tries again
// after an ambiguous outcome, so change must recognise its own work.
func (c *Base) Update(ctx context.Context, key driver.Key, wake string, change func(driver.Record) ([]byte, error)) (driver.Record, error) {
	if c.Opts.ReadOnly {
		return driver.Record{}, ErrReadOnly
	}
	recs, err := c.Store.Load(ctx, []driver.Key{key}, driver.Fresh)
	if err != nil {
		return driver.Record{}, err
	}
	rec := recs[0]
	for try := 0; ; try++ {
		value, err := change(rec)
		switch {
		case err == ErrUnchanged:
			return rec, nil
		case err != nil:
			return rec, err
		}
		old := rec.Version
		if old == 0 {
			old = driver.IfEmpty
		}
		out, err := c.Store.CompareAndSwap(ctx, []driver.Write{{Key: key, Old: old, Value: value, Notify: wake}})
		switch {
		case err != nil && ctx.Err() != nil, err != nil && try > 10:
			return rec, err
		case err != nil:
			c.Pause(c.Jitter(20 * time.Millisecond << min(try, 5)))
			if recs, err = c.Store.Load(ctx, []driver.Key{key}, driver.Fresh); err != nil {
				return rec, err
			}
			rec = recs[0]
		case out[0].Won:
			return out[0].Record, nil
		default:
			rec = out[0].Record
			if try > 2 {
				c.Pause(c.Jitter(time.Millisecond << min(try, 6)))
			}
		}
		if ctx.Err() != nil {
			return rec, ctx.Err()
		}
	}
}

// Doze waits for a notification, or for about d; it reports whether ctx goes on.
func (c *Base) Doze(ctx context.Context, notification <-chan struct{}, d time.Duration) bool {
	t := c.Machine.NewTimer(c.Jitter(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-notification:
	case <-ctx.Done():
	case <-c.Ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// TTL is that of the session, or DefaultTTL if none is known; c.Mu is held.
func (c *Base) TTL() time.Duration {
	if c.Sess != nil && c.Sess.Life.TTL() > 0 {
		return c.Sess.Life.TTL()
	}
	return record.DefaultTTL
}

// Polling of what core.Pace does not pace begins with pauses of FirstPoll, which grow to LastPoll.
const (
	FirstPoll = 50 * time.Millisecond
	LastPoll  = time.Second
)

// Signal wakes the goroutine that waits on ch, which buffers one.
func Signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// LockOf reads the lock record of a name.
func LockOf(r driver.Record) (record.Lock, error) {
	return record.DecodeLock(r.Value, record.Version(r.Version))
}

// WhileOpen returns a ctx that also ends when the client stops taking locks. The client waits for
// cancel before it is closed. A read-only client may not write.
func (c *Base) WhileOpen(ctx context.Context, writes bool) (_ context.Context, cancel func(), err error) {
	if writes && c.Opts.ReadOnly {
		return nil, nil, ErrReadOnly
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Closing {
		return nil, nil, ErrClosed
	}
	c.Work.Add(1)
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.Open, func() { end(ErrClosed) })
	return ctx, func() {
		stop()
		end(nil)
		if writes {
			c.SweepsToo()
		}
		c.Work.Done()
	}, nil
}
