// Package postgres keeps locks in a PostgreSQL database, version 12 or newer,
// which may be the application's own: then a fenced transaction is in reach (see
// Fence).
package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options of New, Migrate, Verify and Schema; nil and the zero value of each
// field are the defaults.
type Options struct {
	// Schema is where the tables are; "" is what the search_path of the
	// connection says.
	Schema string
	// Prefix is what the names of tables, view and functions begin with;
	// "holdfast_".
	Prefix string
	// Allow lists dangers accepted by name: "fsync-off" and
	// "full-page-writes-off", a crash of the machine may ruin the database;
	// "async-commit", never to wait for the disk, so that a token may repeat
	// after a crash of the server.
	Allow []string
}

func (o *Options) orDefault() Options {
	if o == nil {
		return Options{}
	}
	return *o
}

func (o *Options) tables() (sqlstore.Tables, error) {
	opts := o.orDefault()
	return sqlstore.NewTables(opts.Schema, opts.Prefix)
}

// A Store keeps records in a PostgreSQL database. It is a holdfast.Store,
// CostlyWatcher, Sweeper and Diagnoser.
type Store struct {
	sqlstore.Store
	pool   *pgxpool.Pool
	tables sqlstore.Tables
	opts   Options
	settings
	open  func(context.Context) (*pgx.Conn, error)
	beats *slot
	hints hints
}

var (
	_ holdfast.Store         = (*Store)(nil)
	_ holdfast.Sweeper       = (*Store)(nil)
	_ holdfast.CostlyWatcher = (*Store)(nil)
	_ holdfast.Diagnoser     = (*Store)(nil)
)

// New makes a store of a pool, which stays the caller's. It verifies the schema
// and the settings of the server, and creates nothing. Heartbeats and hints have
// a connection each of their own, like those of the pool, opened when they are
// needed: a pool that is exhausted does not cost a lock.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	t, err := opts.tables()
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s := &Store{pool: pool, tables: t, opts: opts.orDefault(), open: own(pool)}
	s.opts.Allow = slices.Clone(s.opts.Allow)
	for _, a := range s.opts.Allow {
		if !slices.ContainsFunc(dangers, func(d danger) bool { return d.name == a }) {
			return nil, fmt.Errorf("postgres: cannot allow %q: it is none of async-commit, fsync-off, full-page-writes-off", a)
		}
	}
	facts, err := s.facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := s.refuse(facts); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if !strings.Contains(facts.schema, `"`) {
		t.Schema = facts.schema // whatever becomes of the search_path
	}
	s.tables = t
	s.statements = newStatements(t)
	s.channel = channelOf(facts.schema, t.Prefix)
	s.async = facts.synchronousCommit == "off"
	s.mode = facts.mode
	s.beats = newSlot(s.open)
	s.hints.ends = make(map[*func()]struct{})
	s.Store.Names = &dialect{&s.settings, pooled{pool}}
	s.Store.Beats = &dialect{&s.settings, &borrower{s.beats, pool, time.Now()}}
	return s, nil
}

// Close ends what New and Watch have begun. The pool stays open.
func (s *Store) Close() error {
	s.hints.close()
	s.beats.close()
	return nil
}

// A danger is a setting that puts locks at risk, which Options.Allow may accept.
type danger struct{ name, text, cure string }

var dangers = []danger{
	{"fsync-off", "fsync is off: after a power cut a token may repeat and fences fail", "Set fsync = on and restart the server"},
	{"full-page-writes-off", "full_page_writes is off: after a power cut locks may be lost, unless the file system never tears a page", "Set full_page_writes = on"},
	{"async-commit", "synchronous_commit is off: after a crash of the server a token may repeat", "Set synchronous_commit = on for this role"},
}

// dangers are those that are there.
func (f facts) dangers() (there []danger) {
	for i, setting := range []string{f.fsync, f.fullPageWrites, f.synchronousCommit} {
		if setting == "off" {
			there = append(there, dangers[i])
		}
	}
	return there
}

// facts are what is known of a database.
type facts struct {
	version           int // 150004
	versionText       string
	standby, readOnly bool
	fsync             string
	fullPageWrites    string
	synchronousCommit string
	standbyNames      string
	schema            string // where the tables are
	schemaVersion     int64
	may               bool // write the tables
	owns              bool // may alter them
	pooler            bool
	mode              pgx.QueryExecMode
}

// facts asks for all of them in one round trip.
func (s *Store) facts(ctx context.Context) (facts, error) {
	var f facts
	err := pooled{s.pool}.use(ctx, func(c *pgx.Conn) error {
		var pid uint32
		err := c.QueryRow(ctx, s.tables.Expand(`
select current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
	current_setting('transaction_read_only') = 'on',
	current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
	current_setting('synchronous_standby_names'), pg_backend_pid(),
	(select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = '{records}'::regclass),
	coalesce((select m.value from {meta} m where m.key = 'version'), 0),
	has_table_privilege('{records}', 'select') and has_table_privilege('{records}', 'insert')
	and has_table_privilege('{records}', 'update') and has_table_privilege('{records}', 'delete')
	and has_table_privilege('{meta}', 'update'),
	pg_has_role((select c.relowner from pg_class c where c.oid = '{records}'::regclass), 'usage')`, `"`), pgx.QueryExecModeExec).Scan(
			&f.version, &f.versionText, &f.standby, &f.readOnly, &f.fsync, &f.fullPageWrites, &f.synchronousCommit,
			&f.standbyNames, &pid, &f.schema, &f.schemaVersion, &f.may, &f.owns)
		if err != nil {
			return err
		}
		f.pooler = pid != c.PgConn().PID()
		cc := c.Config()
		f.mode = pgx.QueryExecModeCacheStatement
		if f.pooler || cc.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement || cc.StatementCacheCapacity == 0 {
			f.mode = pgx.QueryExecModeExec
		}
		return nil
	})
	switch state(err) {
	case "42P01", "3F000": // no such table, no such schema
		return f, sqlstore.CheckSchema(s.tables, 0, schemaVersion, "postgres.Migrate")
	case "42501":
		return f, fmt.Errorf("the role may not read the tables of %q: grant it what the doc comment of postgres.Migrate says: %w", s.tables, err)
	}
	return f, err
}

// refuse is why there can be no locks in such a database.
func (s *Store) refuse(f facts) error {
	switch {
	case f.version < 120000:
		return fmt.Errorf("the server is PostgreSQL %s; it takes 12 or newer", f.versionText)
	case f.standby:
		return errStandby
	case f.readOnly:
		return errors.New("transactions are read-only (default_transaction_read_only): use a role or a server that can write")
	}
	for _, d := range f.dangers() {
		if !slices.Contains(s.opts.Allow, d.name) {
			return fmt.Errorf("%s. %s, or accept it: allow %q", d.text, d.cure, d.name)
		}
	}
	if err := sqlstore.CheckSchema(s.tables, f.schemaVersion, schemaVersion, "postgres.Migrate"); err != nil {
		return err
	}
	if !f.may {
		return fmt.Errorf("the role may not write the tables of %q: grant it what the doc comment of postgres.Migrate says", s.tables)
	}
	return nil
}

func sum(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
