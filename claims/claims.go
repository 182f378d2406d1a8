package claims

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/clock"
)

// A Column is one column of a row: its name orders it, byte by byte.
type Column struct{ Name, Value []byte }

// Columns is a table of a wide-column store: rows of columns. Of two writes of a
// column the one with the later timestamp stays. It is safe for concurrent use.
//
// It has to promise: once a write has returned without an error, every
// Slice that begins afterwards shows it (on Cassandra: QUORUM for both, across
// all data centres). A write that returned an error may have been applied, or
// may be at any later time. A deleted column stays deleted against writes of
// older timestamps, however late they come. Errors count as temporary unless
// Permanent marks them. Columns itself retries nothing and sets no timestamps.
type Columns interface {
	// Add writes one column and removes others of the same row, in one mutation
	// with one timestamp. What is removed was written with earlier timestamps
	// and is never the column that is added. remove may be empty.
	Add(ctx context.Context, key []byte, add Column, remove [][]byte, timestamp int64) error
	// Delete removes columns of a row, whether they are there or not, in one
	// mutation.
	Delete(ctx context.Context, key []byte, columns [][]byte, timestamp int64) error
	// Slice returns the columns of a row from a name on (nil: all), in the order
	// of their names. It should not read what lies before that name: the tombstones of
	// all earlier claims are there.
	Slice(ctx context.Context, key, from []byte) ([]Column, error)
}

// Permanent marks an error of Columns that no retry can mend, such as a missing
// table. nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

func permanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// defaultExpire is JanusGraph's.
const defaultExpire = 5 * time.Minute

// Options are settings of a Locker. The zero value of each field is its
// default. Unit, Wait, Expire and Skew have to be the same for all who lock in a
// table; a Locker publishes its own there and refuses to lock where others differ.
type Options struct {
	// Name is what others see of this process in its claims and in errors, up to
	// 200 bytes. It need not be unique. Host name and process id by default.
	Name string
	// Unit of the timestamps: Micro. JanusGraph's graph.timestamps.
	Unit Unit
	// Wait is the longest that a write may take to count: 100 ms. JanusGraph's
	// storage.lock.wait-time. A lock costs at least Wait plus Skew.
	Wait time.Duration
	// Expire is the age at which a claim no longer counts: 5 min. JanusGraph's
	// storage.lock.expiry-time. After a crash a lock is free again within Expire
	// plus twice Skew.
	Expire time.Duration
	// Skew is the largest difference that there ever is between the clocks of
	// any two hosts: 100 ms. Where it is larger, two may hold one lock.
	Skew time.Duration
	// Retries is how often a write or a read is tried: 3.
	Retries int
	// Group names the Lockers of this process that queue together, so that
	// goroutines contend here and not in the store: all of one table. "": this
	// Locker alone.
	Group string
	// CleanExpired removes claims that count for nobody any more, from a row at most
	// once in 30 s. That reads the whole row.
	CleanExpired bool
	// Trace receives Acquired, Refused, Heartbeat (a renewal), Lost and Released of each
	// lock, and from Acquire also Queued and GaveUp. Name is the key and the column. nil: none.
	Trace *holdfast.Trace
	// Logger receives what no return value reports: renewals that failed, losses, claims
	// that could not be removed. nil: silence.
	Logger *slog.Logger

	clocks *clocks // for tests
}

// clocks are where a Locker gets the time.
type clocks struct {
	wall   func() time.Time     // what other hosts' clocks are compared with
	steady func() time.Duration // does not step, runs while the machine sleeps
}

// A Locker takes locks in one table. It is safe for concurrent use.
type Locker struct {
	columns Columns
	opts    Options
	clocks
	mediator *mediator
	settings settings
	cleaner  cleaner
	stamped  atomic.Int64 // the latest write timestamp given
	met      atomic.Int64 // when a claim of JanusGraph's was last seen, by steady

	ctx    context.Context // of all background work
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	open   map[*Tx]bool // not over yet
	behind sync.WaitGroup
}

// New returns a Locker on a table. It refuses settings that contradict each
// other. It does not ask the store anything yet: the first lock does.
func New(columns Columns, opts *Options) (*Locker, error) {
	l := &Locker{columns: columns, open: make(map[*Tx]bool)}
	if opts != nil {
		l.opts = *opts
	}
	o := &l.opts
	if o.Trace == nil {
		o.Trace = new(holdfast.Trace)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		host, _ := os.Hostname()
		o.Name = host + ":" + strconv.Itoa(os.Getpid())
	}
	if o.Wait == 0 {
		o.Wait = 100 * time.Millisecond
	}
	if o.Expire == 0 {
		o.Expire = defaultExpire
	}
	if o.Skew == 0 {
		o.Skew = 100 * time.Millisecond
	}
	if o.Retries == 0 {
		o.Retries = 3
	}
	switch {
	case columns == nil:
		return nil, errors.New("claims: no columns")
	case len(o.Name) > 200 || strings.HasPrefix(o.Name, "\x00"):
		return nil, fmt.Errorf("claims: Name %q: 1 to 200 bytes, the first of which is not 0", o.Name)
	case o.Unit < Micro || o.Unit > Nano:
		return nil, fmt.Errorf("claims: there is no Unit %d", o.Unit)
	case o.Wait < time.Millisecond || o.Skew < 0 || o.Retries < 0:
		return nil, fmt.Errorf("claims: Wait %v has to be at least 1ms, and Skew %v and Retries %d at least 0", o.Wait, o.Skew, o.Retries)
	case l.trust() < 6*l.wait():
		return nil, fmt.Errorf("claims: Expire %v is too short for Wait %v and Skew %v: a claim could not be renewed in time", o.Expire, o.Wait, o.Skew)
	}
	l.clocks = clocks{time.Now, clock.Steady}
	if o.clocks != nil {
		l.clocks = *o.clocks
	}
	l.settings.id = random()
	l.mediator = mediatorOf(o.Group)
	l.settings.turn = make(chan bool, 1)
	l.cleaner.last = make(map[string]time.Duration)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// tick is how far a timestamp may be behind the clock that it was read from.
func (l *Locker) tick() time.Duration { return max(l.opts.Unit.span(), time.Millisecond) }

// wait is how long after its timestamp a claim may be checked. Until then a write
// of another process may be on its way that sorts before ours, although it began up
// to Skew later.
func (l *Locker) wait() time.Duration { return l.opts.Wait + l.opts.Skew + l.tick() }

// trust is how long a claim is trusted, counted from before its timestamp was taken:
// until another process may first see it expired, less 5 % for clock drift.
func (l *Locker) trust() time.Duration {
	return l.opts.Expire - l.opts.Expire/20 - l.opts.Skew - l.tick()
}

// now is the wall clock as a timestamp.
func (l *Locker) now() int64 { return l.opts.Unit.of(l.wall()) }

// expired is the timestamp before which claims no longer count.
func (l *Locker) expired() int64 {
	return l.now() - l.opts.Unit.count(l.opts.Expire+l.opts.Skew+l.tick())
}

// stamp returns a write timestamp: now, but later than all before and than
// after, so that a deletion counts even if a clock, here or elsewhere, has gone back.
func (l *Locker) stamp(after int64) int64 {
	for {
		last := l.stamped.Load()
		if next := max(l.now(), last+1, after+2); l.stamped.CompareAndSwap(last, next) { // JanusGraph's are up to 1 later than their claims
			return next
		}
	}
}

// rid makes the bytes behind the timestamp of a column: no two are ever equal,
// however processes are named or cloned.
func (l *Locker) rid() string { return l.opts.Name + "~" + random() }

func random() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// callTimeout bounds one call of the store. It is longer than Wait, so that
// errors can say how slow the store is.
func (l *Locker) callTimeout() time.Duration { return max(10*l.opts.Wait, 5*time.Second) }

// call calls the store, within callTimeout.
func (l *Locker) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.callTimeout())
	defer cancel()
	return do(ctx)
}

// slice reads a row, and tries again after temporary errors.
func (l *Locker) slice(ctx context.Context, key, from []byte) (columns []Column, err error) {
	for try := range l.opts.Retries {
		if try > 0 && sleep(ctx, jitter(l.opts.Wait/4)) != nil {
			break
		}
		err = l.call(ctx, func(ctx context.Context) (err error) {
			columns, err = l.columns.Slice(ctx, key, from)
			return err
		})
		if err == nil || permanent(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading claims: %w", err)
	}
	return columns, nil
}

// Close releases all locks and waits until their claims, and what the Locker
// has published, are removed, or until ctx is done: then they expire by
// themselves. It does not close the store.
func (l *Locker) Close(ctx context.Context) error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	var all []*Tx
	for t := range l.open {
		all = append(all, t)
	}
	l.mu.Unlock()
	for _, t := range all {
		t.end(holdfast.ErrClosed)
	}
	done := make(chan error, 1)
	go func() {
		l.behind.Wait()
		var err error
		if first {
			err = l.retract(ctx)
		}
		done <- err
	}()
	defer l.cancel()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		l.cancel()
		<-done
		return fmt.Errorf("claims: closed before all claims were removed: %w; they expire by themselves", ctx.Err())
	}
}

// sleep sleeps, unless ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
