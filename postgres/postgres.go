package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
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
	// ReadOnly is for a client with holdfast.Options.ReadOnly: the role needs usage on the
	// schema and select on the tables, and what puts locks at risk is no reason to refuse.
	ReadOnly bool
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

// A Store keeps records in a PostgreSQL database. It is a driver.Store,
// CostlyWatcher, Sweeper and Diagnoser.
type Store struct {
	sqlstore.Store
	pool   *pgxpool.Pool
	tables sqlstore.Tables
	opts   Options
	settings
	open          conns
	beats         *sqlstore.Pool[*pgx.Conn]
	notifications notifications
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Diagnoser = (*Store)(nil)
)

// New makes a store of a pool, which stays the caller's. It verifies the schema
// and the settings of the server, and creates nothing. Heartbeats and notifications have
// a connection each of their own, like those of the pool, opened when they are
// needed: a pool that is exhausted does not cost a lock.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	t, err := opts.tables()
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s := &Store{pool: pool, tables: t, opts: opts.orDefault(), open: own(pool)}
	s.opts.Allow = slices.Clone(s.opts.Allow)
	if err := dangers.Check(s.opts.Allow); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	facts, err := s.facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := s.refuse(facts); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s.tables = facts.at // whatever becomes of the search_path
	s.sql = newStatements(s.tables)
	s.channel = channelOf(s.tables.Schema, s.tables.Prefix)
	s.async = facts.synchronousCommit == "off"
	s.mode = facts.mode
	s.beats = sqlstore.NewPool(s.open, 1, 1)
	s.notifications.ends = make(map[*func()]struct{})
	s.Store.Names = &dialect{&s.settings, pooled(pool)}
	s.Store.Beats = &dialect{&s.settings, borrower(s.beats, pool)}
	return s, nil
}

// Close ends what New and Watch have begun. The pool stays open.
func (s *Store) Close() error {
	s.notifications.close()
	return s.beats.Close()
}

var dangers = sqlstore.Dangers[facts]{
	{Name: "fsync-off", Subject: "durability", There: func(f facts) bool { return f.fsync == "off" },
		Text: "fsync is off: after a power cut a token may repeat and fences fail", Cure: "Set fsync = on and restart the server"},
	{Name: "full-page-writes-off", Subject: "durability", There: func(f facts) bool { return f.fullPageWrites == "off" },
		Text: "full_page_writes is off: after a power cut locks may be lost, unless the file system never tears a page", Cure: "Set full_page_writes = on"},
	{Name: "async-commit", Subject: "durability", There: func(f facts) bool { return f.synchronousCommit == "off" },
		Text: "synchronous_commit is off: after a crash of the server a token may repeat", Cure: "Set synchronous_commit = on for this role"},
}

// Setting is the value of a setting that a report shows.
func (f facts) Setting(name string) string {
	return map[string]string{"synchronous_commit": f.synchronousCommit}[name]
}

// facts are what is known of a database.
type facts struct {
	at                sqlstore.Tables // where the tables are
	version           int             // 150004
	versionText       string
	product           string // "PostgreSQL 15.4 on x86_64-pc-linux-gnu, …"
	standby, readOnly bool
	fsync             string
	fullPageWrites    string
	synchronousCommit string
	standbyNames      string
	replicationRole   string
	schemaVersion     int64
	may               bool // write the tables
	owns              bool // may alter them
	open              bool // anybody may create in their schema
	hidden            bool // a policy hides rows
	pooler            bool
	mode              pgx.QueryExecMode
}

// facts asks for all of them, in one round trip where the schema is known.
func (s *Store) facts(ctx context.Context) (f facts, err error) {
	err = pooled(s.pool)(ctx, func(c *pgx.Conn) error {
		if f.at, err = locate(ctx, c, s.tables); err != nil {
			return err
		}
		if f.at.Schema == "" {
			return sqlstore.CheckSchema(s.tables, 0, schemaVersion, "postgres.Migrate")
		}
		var pid uint32
		err = c.QueryRow(ctx, full(f.at, texts()["facts"]), pgx.QueryExecModeExec).Scan(&f.version, &f.versionText, &f.product,
			&f.standby, &f.readOnly, &f.fsync, &f.fullPageWrites, &f.synchronousCommit, &f.standbyNames, &f.replicationRole, &pid,
			&f.schemaVersion, &f.may, &f.owns, &f.open, &f.hidden)
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
		return f, errNotGranted(s.role(), s.tables, err)
	}
	return f, err
}

func errNotGranted(role string, t sqlstore.Tables, err error) error {
	return &driver.RightsError{Role: role, What: fmt.Sprintf("may not read the tables of %q", t), Err: err}
}

// role is who the store is to the database.
func (s *Store) role() string {
	if s.pool == nil { // in a test
		return ""
	}
	return s.pool.Config().ConnConfig.User
}

// strange are databases that speak like PostgreSQL, and are not: their row locks,
// clocks and notifications are not those that a lock rests on.
var strange = []string{"-YB-", "CockroachDB", "Greenplum"}

// refuse is why there can be no locks in such a database.
func (s *Store) refuse(f facts) error {
	if slices.ContainsFunc(strange, func(mark string) bool { return strings.Contains(f.product, mark) }) {
		name, _, _ := strings.Cut(f.product, " on ")
		return fmt.Errorf("the server is %s; it takes PostgreSQL", name)
	}
	switch {
	case f.version < 120000:
		return fmt.Errorf("the server is PostgreSQL %s; it takes 12 or newer", f.versionText)
	case f.standby:
		return errStandby
	case f.hidden:
		return fmt.Errorf("schema of %q: %w", s.tables, errHidden)
	case s.opts.ReadOnly:
		return sqlstore.CheckSchema(s.tables, f.schemaVersion, schemaVersion, "postgres.Migrate")
	case f.readOnly:
		return errReadOnly
	case f.replicationRole != "origin":
		return fmt.Errorf("session_replication_role is %s, with which our trigger does not run, and a token may repeat: leave it at origin for this role", f.replicationRole)
	}
	if err := dangers.Refuse(f, s.opts.Allow); err != nil {
		return err
	}
	if err := sqlstore.CheckSchema(s.tables, f.schemaVersion, schemaVersion, "postgres.Migrate"); err != nil {
		return err
	}
	if !f.may {
		return &driver.RightsError{Role: s.role(), What: fmt.Sprintf("may not write the tables of %q", s.tables)}
	}
	return nil
}

var (
	errReadOnly = errors.New("transactions are read-only (default_transaction_read_only): use a role or a server that can write")
	errHidden   = errors.New("row-level security hides rows from this role, or from the owner, whose rights the fence has: disable it for these tables")
)

func sum(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
