package holdfast

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/internal/batch"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
	"github.com/holdfast-lock/holdfast/internal/liveness"
	"github.com/holdfast-lock/holdfast/internal/machine"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Client takes locks in one store. It may be used by any number of
// goroutines; one per process is enough, and best: its locks share one session, whose
// one heartbeat keeps them, and goroutines that want the same name queue in memory and
// bother the store once. Only locks with MinHold and those of AcquireFor have sessions
// of their own.
type Client struct {
	store    driver.Store
	traits   driver.Traits
	opts     Options
	trace    *Trace // never nil
	traced   bool   // a function for requests or locks is set
	detaches bool   // its locks become detached
	owner    record.Owner
	log      *slog.Logger
	batch    *batch.Batcher
	proof    liveness.Dir
	requests sync.Pool
	machine  *machine.Machine // nil: the real one

	ctx  context.Context // ends when the client has nothing left to do
	stop context.CancelFunc
	open context.Context // ends when Shutdown or Close begins
	shut context.CancelFunc
	work sync.WaitGroup // our goroutines

	mu        sync.Mutex             // guards everything below, and the local queues and sessions
	queues    map[string]*localQueue // by name, idle ones included
	idle      int                    // how many are idle
	sess      *session               // nil before the first claim and after a loss
	deaths    lease.Deaths
	wrote     time.Duration            // the TTL of the last session that wrote something; 0: nothing was written
	lazy      map[string]lease.Instant // names written without waiting for the disk, and when that was answered
	here      bool                     // the goroutine that holds mu will drive one queue itself
	mine      *localQueue              // that queue
	answers   bool                     // the store has answered once
	ambiguous bool                     // a write of unknown outcome was left to the end of the session
	end       ending
	after     afterwards
	sweeping  sweeping
	scratch   core.Env // what env returns
	walled    walled
	rooms     core.Rooms
	claims    int64 // claim numbers used
	detector  detector
	part      *part   // whose client this is; nil: of none
	parts     []*part // locks with sessions of their own
	holds     holds
	renewals  renewals

	unwritten unwritten
	waiting   bool          // the poll loop runs
	nudge     chan struct{} // tells the poll loop that there is something to look at
	notes     notifications
}

// New makes a client on a store. It refuses bad settings and does no I/O: the
// session opens with the first claim, so a client that only looks writes
// nothing. opts may be nil.
func New(store driver.Store, opts *Options) (*Client, error) {
	if store == nil {
		return nil, errors.New("holdfast: no store")
	}
	c := &Client{
		store:   store,
		traits:  store.Traits(),
		queues:  make(map[string]*localQueue),
		lazy:    make(map[string]lease.Instant),
		end:     newEnding(),
		nudge:   make(chan struct{}, 1),
		machine: ofProcess,
	}
	if o, ok := driver.Find[machine.Owner](store); ok {
		c.machine = o.Machine()
	}
	if opts != nil {
		c.opts = *opts
		c.opts.Owner.Labels = maps.Clone(c.opts.Owner.Labels)
	}
	if err := c.opts.check(); err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	if c.opts.ReadOnly {
		c.store = readOnlyStore{store}
	}
	if c.trace = c.opts.Trace; c.trace == nil {
		c.trace = new(Trace)
	}
	c.traced = c.trace.ofLocks()
	if f := c.trace.StoreCall; f != nil {
		c.store = &tracedStore{c.store, f}
	}
	c.owner = record.Owner(fillOwner(c.opts.Owner))
	c.log = c.opts.Logger
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.requests.New = func() any { return &request{ch: make(chan struct{}, 1)} }
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.open, c.shut = context.WithCancel(c.ctx)
	c.batch = batch.New(c.ctx, c.store, c.now, c.spawn, c.traits.SingleWrites)
	c.proof.Path = c.opts.RuntimeDir
	c.detector.c, c.sweeping.detector.c = c, c
	_, awaits := store.(driver.Awaiter)
	c.scratch = core.Env{
		Stale: c.traits.StaleReads, Tells: c.traits.TellsRecords, Awaits: awaits && c.traits.Awaits, Wall: c.wall, Grace: c.opts.Grace,
		Dead:     func(session string) bool { return c.deaths.Dead(session, c.scratch.Now) },
		NewClaim: func() int64 { c.claims++; return c.claims },
	}
	c.sweeping.at = lease.Never
	c.unwritten.read = c.now()
	c.unwritten.most = listedHolds // until the setting is known
	c.notes.watch.Costs = c.traits.CostlyWatch
	c.notes.subs = make(map[driver.Key]map[chan struct{}]bool)
	return c, nil
}

// newID returns 128 random bits.
func (c *Client) newID() string {
	var b [16]byte
	c.machine.Read(b[:])
	return hex.EncodeToString(b[:])
}

func (c *Client) newNonce() string {
	var b [8]byte
	c.machine.Read(b[:])
	return hex.EncodeToString(b[:])
}

// jitter returns d, plus or minus up to a quarter.
func (c *Client) jitter(d time.Duration) time.Duration { return d*3/4 + c.upTo(d/2) }

// upTo returns a random duration, at most d.
func (c *Client) upTo(d time.Duration) time.Duration {
	return time.Duration(c.machine.Int64N(int64(d) + 1))
}

// spawn runs f in a goroutine that Close waits for; a client starts no others. The caller is one of
// these goroutines, or holds c.mu and has seen that c.ctx has not ended.
func (c *Client) spawn(f func()) { c.work.Go(f) }

// pause waits for d, or less if the client has ended.
func (c *Client) pause(d time.Duration) {
	t := c.machine.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}

// isDead says whether a session's claims are void; c.mu is held.
func (c *Client) isDead(session string) bool { return c.deaths.Dead(session, c.now()) }

// deadNow returns isDead for the present moment; c.mu is held while the result is used.
func (c *Client) deadNow() func(session string) bool {
	now := c.now()
	return func(session string) bool { return c.deaths.Dead(session, now) }
}

var ttlKey = driver.Settings.Key("ttl")

// StoreTTL returns the store's setting for how long a session may be silent. Clients
// without a TTL of their own read it once per TTL and adopt a change with their next heartbeat.
func (c *Client) StoreTTL(ctx context.Context) (time.Duration, error) {
	return c.readTTL(ctx, driver.Fresh)
}

// readTTL reads the setting ttl, and in the same call the setting history. A stale read is enough
// for a heartbeat: a session is declared dead by the TTL in its own record.
func (c *Client) readTTL(ctx context.Context, how driver.Freshness) (time.Duration, error) {
	recs, err := c.store.Load(ctx, []driver.Key{ttlKey, historyKey}, how)
	if err != nil {
		return 0, fmt.Errorf("read the setting ttl: %w", err)
	}
	c.sawHistorySetting(recs[1])
	c.mu.Lock()
	c.answers = true
	c.mu.Unlock()
	return ttlOf(recs[0])
}

func ttlOf(rec driver.Record) (time.Duration, error) {
	if len(rec.Value) == 0 {
		return DefaultTTL, nil
	}
	var s settingRecord
	if err := json.Unmarshal(rec.Value, &s); err != nil {
		return 0, fmt.Errorf("the setting ttl is %q: %w", rec.Value, err)
	}
	ttl := time.Duration(s.TTL) * time.Millisecond
	if ttl < MinTTL || ttl > MaxTTL || ttl.Milliseconds() != s.TTL {
		return 0, fmt.Errorf("the setting ttl is %d ms, which is not between %v and %v", s.TTL, MinTTL, MaxTTL)
	}
	return ttl, nil
}

// SetStoreTTL changes the store's setting, also while clients run. A session is declared dead
// by the TTL in its own record, so none is lost to a change that it has not read.
func (c *Client) SetStoreTTL(ctx context.Context, ttl time.Duration) error {
	ttl = ttl.Round(time.Millisecond)
	if ttl < MinTTL || ttl > MaxTTL {
		return fmt.Errorf("set ttl: TTL %v is not between %v and %v", ttl, MinTTL, MaxTTL)
	}
	value, err := json.Marshal(settingRecord{TTL: ttl.Milliseconds()})
	if err != nil {
		return err
	}
	if _, err := c.update(ctx, ttlKey, driver.Everyone, func(driver.Record) ([]byte, error) { return value, nil }); err != nil {
		return fmt.Errorf("set ttl: %w", err)
	}
	return nil
}

// errUnchanged ends an update that has nothing to write.
var errUnchanged = errors.New("unchanged")

// update tries to swap one record until it wins: change returns the new value for
// the present record, errUnchanged, or an error that ends the update. It tries again
// after an ambiguous outcome, so change must recognise its own work.
func (c *Client) update(ctx context.Context, key driver.Key, wake string, change func(driver.Record) ([]byte, error)) (driver.Record, error) {
	if c.opts.ReadOnly {
		return driver.Record{}, ErrReadOnly
	}
	recs, err := c.store.Load(ctx, []driver.Key{key}, driver.Fresh)
	if err != nil {
		return driver.Record{}, err
	}
	rec := recs[0]
	for try := 0; ; try++ {
		value, err := change(rec)
		switch {
		case err == errUnchanged:
			return rec, nil
		case err != nil:
			return rec, err
		}
		old := rec.Version
		if old == 0 {
			old = driver.IfEmpty
		}
		out, err := c.store.CompareAndSwap(ctx, []driver.Write{{Key: key, Old: old, Value: value, Notify: wake}})
		switch {
		case err != nil && ctx.Err() != nil, err != nil && try > 10:
			return rec, err
		case err != nil:
			c.pause(c.jitter(20 * time.Millisecond << min(try, 5)))
			if recs, err = c.store.Load(ctx, []driver.Key{key}, driver.Fresh); err != nil {
				return rec, err
			}
			rec = recs[0]
		case out[0].Won:
			return out[0].Record, nil
		default:
			rec = out[0].Record
			if try > 2 {
				c.pause(c.jitter(time.Millisecond << min(try, 6)))
			}
		}
		if ctx.Err() != nil {
			return rec, ctx.Err()
		}
	}
}
