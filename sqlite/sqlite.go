// Package sqlite keeps locks in an SQLite file, which may be the application's
// own: then a fenced transaction is in reach (see Fence).
//
// # One copy of SQLite
//
// The store uses modernc.org/sqlite. A process must not open the same file
// with two copies of SQLite: each would let go of the other's locks
// (https://sqlite.org/howtocorrupt.html, 2.2.1). So if the file is the
// application's own, it should use the driver "sqlite" of modernc.org/sqlite
// too. Other processes, in any language, may use what they like.
//
// # One name, and one log
//
// SQLite keeps its log beside the name by which a file is opened. Who comes by
// another name does not see what is in that log, and both could be given one lock.
// So Open refuses a file with hard links, and one that is mounted by itself; a
// symbolic link is followed first and does no harm.
//
// While the file is in use do not move, replace or remove it, nor the files beside
// it that end in -wal and -shm: a store that has lost one of them to another refuses
// every call, and has to be opened anew. A program that reads the file by itself, as
// with os.ReadFile, makes the kernel drop the locks of its connections, and whoever
// closes the file next may remove the log. Copy it with SQLite's own backup, or turn
// on OFDLocking of modernc.org/sqlite first.
//
// # Waiting for the disk
//
// A write waits for the disk (synchronous=FULL) unless it is Lazy; a lazy one
// is in the write-ahead log when it returns (synchronous=NORMAL): it survives
// the death of every process but not of the machine. The log is one file in
// commit order. So a power cut takes only what came after the last write that
// waited, never something before it: a grant that was reported is never
// undone, and no token is given twice. What a file system or a disk promises
// falsely about fsync is beyond us, and so is a program that sets synchronous to
// off for a file that it shares with us: it may copy the log before it is on disk.
//
// # Versions and time
//
// A version is at least the wall clock of the host in microseconds, read in Go
// when a statement is about to run: SQLite's own clock has milliseconds, and
// the wait for other writers must not count as age. A record's Age is judged
// by the same clock. If that clock has stepped, as an observer with a steady
// clock notices, what was written before has no age (it is negative).
package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/clock"
)

// Options of Open; nil and the zero value of each field are the defaults.
type Options struct {
	// Create makes the file, with mode 0600, and the schema, where they are
	// missing. Without it that is an error.
	Create bool
	// Allow lists dangers accepted by name: "network-fs", a file on a network
	// file system, whose locks may not keep two writers apart; "async-commit",
	// never to wait for the disk, so that a token may repeat after a power cut.
	Allow []string
}

// A Store keeps records in an SQLite file. It is a holdfast.Store, Watcher and
// Sweeper.
type Store struct {
	path  string // absolute
	files files
	ours  bool // the file has been found to be Holdfast's
	async bool // never wait for the disk
	clock clock.Remote
	wakes wakes

	// Each has its own connection, as soon as it finds that of names in use. A
	// writer that copies the log into the file keeps its connection, though not
	// the lock for writing: so heartbeats, which may not wait behind others,
	// need another.
	names, beats, reads *slot
}

var (
	_ holdfast.Store   = (*Store)(nil)
	_ holdfast.Watcher = (*Store)(nil)
	_ holdfast.Sweeper = (*Store)(nil)
)

// Close ends what Open and Watch have begun. The calls under way end first.
func (s *Store) Close() error {
	return errors.Join(s.reads.close(), s.beats.close(), s.names.close())
}

// Load implements holdfast.Store.
func (s *Store) Load(ctx context.Context, keys []holdfast.Key) ([]holdfast.Record, error) {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, err
		}
	}
	if len(keys) == 0 {
		return nil, ctx.Err()
	}
	records := make([]holdfast.Record, len(keys))
	err := s.reads.useOr(ctx, s.names, func(c *conn) error {
		age := s.ages()
		load := func() (err error) {
			for i, k := range keys {
				if records[i], err = c.load(k, age); err != nil {
					return err
				}
			}
			return nil
		}
		if len(keys) == 1 {
			return retry(ctx, load)
		}
		return c.read(ctx, load)
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return records, nil
}

func (c *conn) load(k holdfast.Key, age func(int64) time.Duration) (r holdfast.Record, err error) {
	err = c.query(`select version, value from holdfast_records where space = ? and name = ?`, func(row []driver.Value) {
		r.Version = row[0].(int64)
		r.Value, _ = row[1].([]byte)
		r.Age = age(r.Version)
	}, int64(k.Space), []byte(k.Name))
	return r, err
}

// CompareAndSwap implements holdfast.Store. A single write is one statement
// with its own commit, several are one transaction.
func (s *Store) CompareAndSwap(ctx context.Context, writes []holdfast.Write) ([]holdfast.Outcome, error) {
	durable, beats := false, true
	for _, w := range writes {
		if err := w.Check(); err != nil {
			return nil, err
		}
		durable = durable || !w.Lazy
		beats = beats && w.Key.Space == holdfast.Sessions
	}
	if len(writes) == 0 {
		return nil, ctx.Err()
	}
	use := s.names.use
	if beats {
		use = func(ctx context.Context, f func(*conn) error) error { return s.beats.useOr(ctx, s.names, f) }
	}
	durable = durable && !s.async

	outcomes := make([]holdfast.Outcome, len(writes))
	var wake []holdfast.Hint
	err := use(ctx, func(c *conn) error {
		if len(writes) > 1 {
			return c.transaction(ctx, durable, func() error { return c.swaps(writes, outcomes, s.ages()) })
		}
		return retry(ctx, func() (err error) {
			if err := c.sync(durable); err != nil {
				return err
			}
			outcomes[0], err = c.swap(writes[0], now())
			return err
		})
	})
	if err == nil {
		err = s.files.present() // what was written is where others look
	}
	if err != nil {
		return nil, s.explain(err)
	}
	for i, w := range writes {
		if w.Wake != "" && outcomes[i].Won {
			wake = append(wake, holdfast.Hint{Key: w.Key, Wake: w.Wake})
		}
	}
	s.wakes.tell(wake)
	if len(writes) == 1 && !outcomes[0].Won {
		lostTo, err := s.Load(ctx, []holdfast.Key{writes[0].Key})
		if err != nil {
			return nil, err
		}
		outcomes[0].Record = lostTo[0]
	}
	return outcomes, nil
}

// swaps makes each write and reads what the losers lost to.
func (c *conn) swaps(writes []holdfast.Write, outcomes []holdfast.Outcome, age func(int64) time.Duration) (err error) {
	for i, w := range writes {
		if outcomes[i], err = c.swap(w, now()); err != nil {
			return err
		}
		if !outcomes[i].Won {
			if outcomes[i].Record, err = c.load(w.Key, age); err != nil {
				return err
			}
		}
	}
	return nil
}

// now is the wall clock in µs since 1970, which all processes on this host share.
func now() int64 { return time.Now().UnixMicro() }

// ages returns a function that tells a record's age now, by its version.
func (s *Store) ages() func(version int64) time.Duration {
	steady := clock.Steady()
	return s.clock.Ages(now(), steady)
}

// swap makes one write at the time now. Who loses gets no record.
func (c *conn) swap(w holdfast.Write, now int64) (o holdfast.Outcome, err error) {
	value := append([]byte{}, w.Value...) // never nil, which would be null
	switch {
	case w.Old == holdfast.IfEmpty:
		// A new row starts above the floor, which lies above every version
		// that was ever swept.
		err = c.query(`
			insert into holdfast_records (space, name, version, value)
			values (?1, ?2, max(?3, (select value + 1 from holdfast_meta where key = 'floor')), ?4)
			on conflict (space, name) do update
			set version = max(version + 1, ?3), value = excluded.value
			where length(value) = 0
			returning version`, func(row []driver.Value) {
			o.Won, o.Record.Version = true, row[0].(int64)
		}, int64(w.Key.Space), []byte(w.Key.Name), now, value)
	case w.Old > 0:
		next := max(w.Old+1, now)
		var changed int64
		changed, err = c.exec(`update holdfast_records set version = ?, value = ? where space = ? and name = ? and version = ?`,
			next, value, int64(w.Key.Space), []byte(w.Key.Name), w.Old)
		o.Won, o.Record.Version = changed == 1, next
	}
	if err != nil || !o.Won {
		return holdfast.Outcome{}, err
	}
	if len(value) > 0 {
		o.Record.Value = value
	}
	return o, nil
}

// Keys implements holdfast.Store.
func (s *Store) Keys(ctx context.Context, space holdfast.Space, after string, n int) ([]string, error) {
	if n <= 0 {
		return nil, ctx.Err()
	}
	var names []string
	err := s.reads.use(ctx, func(c *conn) error {
		return retry(ctx, func() error {
			names = names[:0]
			return c.query(`
				select name from holdfast_records
				where space = ? and name > ? and length(value) > 0
				order by name limit ?`, func(row []driver.Value) {
				names = append(names, text(row[0]))
			}, int64(space), []byte(after), int64(n))
		})
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return slices.Clip(names), nil
}
