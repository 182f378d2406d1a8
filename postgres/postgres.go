package postgres

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/notify"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options of New, Migrate, Verify and Schema; nil and the zero value of each
// field are the defaults.
type Options struct {
	// Schema is where the tables are; "" means where the search_path of the
	// connection finds them.
	Schema string
	// Prefix is what the names of tables, views and functions begin with;
	// by default "holdfast_".
	Prefix string
	// Allow lists dangers accepted by name: "fsync-off" and
	// "full-page-writes-off", a crash of the machine may ruin the database;
	// "async-commit", never to wait for the disk, so that a token may repeat
	// after a crash of the server.
	Allow []string
	// ReadOnly is for a client with holdfast.Options.ReadOnly: the role only needs usage on the
	// schema and select on the tables, and what puts locks at risk is no reason to refuse.
	ReadOnly bool
}

func (o *Options) tables() (sqlstore.Tables, error) {
	opts := sqlstore.OrZero(o)
	return sqlstore.NewTables(opts.Schema, opts.Prefix)
}

// A Store keeps records in a PostgreSQL database. It is a driver.Store,
// Watcher and Diagnoser.
type Store struct {
	sqlstore.Store
	pool *pgxpool.Pool
	opts Options
	settings
	conns   conns // our own
	beats   *sqlstore.Pool[*pgx.Conn]
	closed  atomic.Bool
	watches notify.Watches
	spare   atomic.Pointer[pgx.Conn]  // of a Watch that has ended, for the next
	deaf    atomic.Pointer[time.Time] // when it was last seen that no notifications arrive
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Diagnoser = (*Store)(nil)
)

// New makes a store on a pool, which stays the caller's. It verifies the schema and the
// settings of the server, and creates nothing. Heartbeats and notifications each have a
// connection of their own, like those of the pool and opened when it is needed, so an
// exhausted pool does not cost a lock.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	s := &Store{pool: pool, opts: sqlstore.OrZero(opts), conns: conns{pool.Config()}}
	s.opts.Allow = slices.Clone(s.opts.Allow)
	t, err := opts.tables()
	if err == nil {
		err = dangers.Check(s.opts.Allow)
	}
	var found sqlstore.Facts
	var at sqlstore.Tables
	if err == nil {
		found, at, err = ask(ctx, pool, t)
	}
	if err == nil {
		err = s.refuse(found, t)
	}
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s.Self, s.Tables = s, at // whatever becomes of the search_path
	s.sql = newStatements(at)
	s.channel = channelOf(at.Schema, at.Prefix)
	s.async = found.Is("synchronous_commit", "OFF")
	s.mode = pgx.QueryExecModeExec
	if found.Is("prepares", "TRUE") {
		s.mode = pgx.QueryExecModeCacheStatement
	}
	s.rows = sqlstore.NewRowsSeen()
	s.beats = sqlstore.NewPool(s.conns, 1, 1)
	s.Names = newDialect(&s.settings, s.lend)
	s.Beats = newDialect(&s.settings, borrower(s.beats, pool))
	return s, nil
}

// lend lends the connections of the caller's pool until Close.
func (s *Store) lend(ctx context.Context, f func(*pgx.Conn) error) error {
	if s.closed.Load() {
		return driver.ErrClosed
	}
	return pooled(ctx, s.pool, f)
}

// Close ends what New and Watch have begun. The pool stays open.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.watches.Close()
	shut(s.spare.Swap(nil))
	return s.beats.Close()
}

func sum(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
