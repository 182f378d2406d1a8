// Package mysql keeps locks in a MariaDB or MySQL database, which may be the
// application's own: then a transaction can be fenced (see Fence).
//
// It takes MariaDB 10.6 or newer and MySQL 8.0.21 or newer. It is tested on
// MariaDB 10.11. It has never been run on MySQL: there it relies on the manual.
//
// # Connections
//
// The store takes connections from the caller's pool and sets them up for
// itself: READ COMMITTED, autocommit, UTC, at most a second of waiting for a
// locked row, and no limits on rows, time or joins. So neither the settings of the
// data source name nor those of the server matter to it, and its own matter to nobody
// else: it gives no connection back, but closes each when it has been unused for half
// a minute, except the one for heartbeats. There are up to four for locks, and at most
// half as many as SetMaxOpenConns allows, and one for heartbeats; if it allows two,
// one connection serves both.
//
// # Waiting
//
// The database cannot notify of changes, so waiters poll, each according to its place in
// the queue. On MariaDB the next in line sends one statement in which the server looks
// every other millisecond at first (see driver.Awaiter); elsewhere it polls, at first every 3 ms.
//
// A chain of user locks (GET_LOCK), where each waits for the one before, would wake
// waiters without polling. It is not used: such a lock belongs to a connection, so it is
// gone, unseen, behind a proxy that shares connections (ProxySQL, MaxScale, Vitess); it
// blocks a connection for each name waited for; Galera forbids it in strict mode and does
// not replicate it; and the server takes a chain of 32 waits for a deadlock. Polling works
// everywhere.
//
// # Waiting for the disk
//
// Every write waits: that is a setting of the whole server
// (innodb_flush_log_at_trx_commit), so a lazy write is written like any other.
//
// # Dumps
//
// Anything that locks our tables for longer than a TTL ends every lock, since no heartbeat
// can be written. mysqldump does so by default (--lock-tables), even when it runs under a
// lock of ours: use --single-transaction.
//
// # Versions and time
//
// A version is at least the server's clock in microseconds when the statement
// began, computed under the lock of the row; a record's Age goes by the same
// clock.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Options of New, Migrate, Verify and Schema; nil and the zero value of each
// field are the defaults. The database is that of the data source name.
type Options struct {
	// Prefix is what the names of tables, views and procedure begin with;
	// by default "holdfast_".
	Prefix string
	// Allow lists dangers accepted by name: "async-commit" and "async-binlog",
	// that the server does not wait for the disk, so that a token may repeat
	// after a crash of the machine; "galera", a cluster that may give the same
	// lock twice; "group-replication", a group with several primaries, which may too.
	Allow []string
	// ReadOnly is for a client with holdfast.Options.ReadOnly: the user only needs select on
	// the tables, and what puts locks at risk is no reason to refuse.
	ReadOnly bool
}

func (o *Options) tables() (sqlstore.Tables, error) {
	return sqlstore.NewTables("", sqlstore.OrZero(o).Prefix)
}

// A Store keeps records in a database. It is a driver.Store, Awaiter and
// Diagnoser.
type Store struct {
	sqlstore.Store
	db           *sql.DB
	allow        []string
	readOnly     bool
	names, beats *sqlstore.Pool[*lane]
	awaits       bool // MariaDB looks for a write by itself
}

var (
	_ driver.Store   = (*Store)(nil)
	_ driver.Awaiter = (*Store)(nil)
)

// Traits implements driver.Store.
func (s *Store) Traits() driver.Traits { return driver.Traits{Awaits: s.awaits} }

// Await implements driver.Awaiter. Traits say whether the server can do it.
func (s *Store) Await(ctx context.Context, key driver.Key, version int64, every, limit time.Duration) (driver.Record, error) {
	return sqlstore.Await(ctx, &s.Store, key, version, every, limit)
}

// New makes a store on a pool, which stays the caller's. It verifies the schema,
// the settings of the server and the user's right to write, and creates nothing.
func New(ctx context.Context, db *sql.DB, opts *Options) (*Store, error) {
	s, err := newStore(ctx, db, sqlstore.OrZero(opts), nil)
	if err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	return s, nil
}

// newStore is New; tests change what it has learned about the server.
func newStore(ctx context.Context, db *sql.DB, opts Options, change func(sqlstore.Facts)) (*Store, error) {
	t, err := opts.tables()
	if err != nil {
		return nil, err
	}
	if err := dangers.Check(opts.Allow); err != nil {
		return nil, err
	}
	s := &Store{db: db, allow: slices.Clone(opts.Allow), readOnly: opts.ReadOnly}
	s.Tables, s.Self = t, s
	if s.names, s.beats, err = share(conns{db, newStatements(t)}); err != nil {
		return nil, err
	}
	err = s.names.Use(ctx, func(l *lane) error {
		found, err := ask(ctx, l, t)
		if err != nil {
			return err
		}
		if err := dangers.Refuse(found, opts.Allow, opts.ReadOnly); err != nil {
			return err
		}
		if err := checkVersion(t, found); err != nil {
			return err
		}
		if change != nil {
			change(found)
		}
		returning, rows := found["mariadb"] != "", sqlstore.NewRowsSeen()
		s.awaits = returning && s.names.Size() > 1
		s.Names, s.Beats = newDialect(s.names.Use, returning, rows), newDialect(s.beats.UseIdle, returning, rows)
		if opts.ReadOnly {
			return nil
		}
		// Whether the user may also sweep is left to Diagnose: each check costs a
		// round trip before the first lock.
		if _, err := l.prepare(ctx, "insert"); denied(err) {
			return sqlstore.NotGranted("", "write", t, err)
		} else if err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// share says how many connections of a pool are for locks, and for heartbeats. The one for
// heartbeats stays even when unused, for with a long TTL they are far apart.
func share(c conns) (names, beats *sqlstore.Pool[*lane], err error) {
	n := c.db.Stats().MaxOpenConnections
	switch {
	case n == 1:
		return nil, nil, errors.New("the pool has one connection, and locks would take it from everybody else: SetMaxOpenConns(3) or more, or a pool of its own")
	case n == 2:
		names = sqlstore.NewPool(c, 1, 0)
		return names, names, nil
	case n == 0:
		n = 8
	}
	names, beats = sqlstore.NewPool(c, min(n/2, 4), 0), sqlstore.NewPool(c, 1, 1)
	beats.Borrow(names, 2)
	return names, beats, nil
}

// Close closes the connections that the store has taken. The pool stays open.
func (s *Store) Close() error {
	return errors.Join(s.beats.Close(), s.names.Close())
}
