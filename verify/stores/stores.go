// Package stores opens each of our stores by its URL, together with the database
// that it is in: sqlite:PATH, postgres://…, mysql://…, dir:PATH, cassandra://…, etcd://…,
// spanner://….
package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/etcd"
	"github.com/holdfast-lock/holdfast/mysql"
	"github.com/holdfast-lock/holdfast/open"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/holdfast-lock/holdfast/spanner"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// A Store is open, and so is its database for what an application does there.
type Store struct {
	driver.Store         // as its package made it
	DB           *sql.DB // nil where there are no transactions of that kind
	Registers    Registers

	Native bool // its fence takes locks of this store only, not of one around it

	kind  Kind
	close func() error
}

// A Kind is what tests know of a kind of store besides what programs do.
type Kind struct {
	*driver.Kind
	Crowd   int    // how many histories a full crowd of verify/chaos has, by how long they take
	Earlier string // the first commit of verify/chaos that works with the schema of today, if it is not the first of all

	open  func(ctx context.Context, target string) (*Store, error)
	fence func(ctx context.Context, tx *sql.Tx, locks ...*holdfast.Lock) error
	plain string // the same in plain SQL
	args  func(i int) string
}

// Kinds are all of them.
var Kinds = []Kind{
	{
		Kind: postgres.Kind, Crowd: 2000, Earlier: "2e8a676", open: openPostgres, fence: postgres.FenceSQL,
		plain: `select holdfast_fence(?::text, ?::bigint)`, args: func(i int) string { return fmt.Sprintf("$%d", i) },
	},
	{Kind: mysql.Kind, Crowd: 1500, open: openMySQL, fence: mysql.Fence, plain: `call holdfast_fence(?, ?)`},
	{Kind: sqlite.Kind, Crowd: 2400, open: openSQLite, fence: sqlite.Fence, plain: `insert into holdfast_fence (name, token) values (?, ?)`},
	{Kind: directory.Kind, Crowd: 2400, open: openDirectory},
	{Kind: cassandra.Kind, Crowd: 400, open: openCassandra},
	{Kind: etcd.Kind, Crowd: 700, open: openEtcd},
	{Kind: spanner.Kind, Crowd: 700, Earlier: "fbe9b8f", open: openSpanner},
}

// Names are those of all.
func Names() (all []string) {
	for _, k := range Kinds {
		all = append(all, k.Name)
	}
	return all
}

func kindOf(target string) (Kind, error) {
	scheme, _, _ := open.Scheme(target)
	for _, k := range Kinds {
		if slices.Contains(k.Schemes, scheme) {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("no store is called %q", scheme)
}

// Migrate makes the tables, where the store has some.
func Migrate(ctx context.Context, target string) error {
	k, err := kindOf(target)
	if err != nil {
		return err
	}
	at, err := open.Parse(target, k.Kind)
	if err != nil || k.Migrate == nil {
		return err
	}
	return k.Migrate(ctx, at)
}

// Open opens a store.
func Open(ctx context.Context, target string) (*Store, error) {
	k, err := kindOf(target)
	if err != nil {
		return nil, err
	}
	s, err := k.open(ctx, target)
	if err != nil {
		return nil, err
	}
	s.kind = k
	if s.DB != nil {
		s.Registers = inSQL{s}
	}
	return s, nil
}

// Close closes store and database.
func (s *Store) Close() error { return s.close() }

// SQL is a statement with ? for each argument in the words of the database.
func (s *Store) SQL(query string) string {
	if s.kind.args == nil {
		return query
	}
	i := 0
	return regexp.MustCompile(`\?`).ReplaceAllStringFunc(query, func(string) string { i++; return s.kind.args(i) })
}

// Fence has a transaction depend on a lock, by the function of the store's
// package, or as any other language does it.
func (s *Store) Fence(ctx context.Context, tx *sql.Tx, lock *holdfast.Lock, plain bool) error {
	if s.kind.fence == nil {
		return fmt.Errorf("%s has no transactions to fence", s.kind.Schemes[0])
	}
	if !plain {
		return s.kind.fence(ctx, tx, lock)
	}
	_, err := tx.ExecContext(ctx, s.SQL(s.kind.plain), lock.Name(), lock.Token())
	return err
}

// Behind is a store that answers as front does, and has the capabilities of s.
func Behind(front, s driver.Store) driver.Store { return behind{front, s} }

type behind struct {
	driver.Store
	inner driver.Store
}

func (b behind) Unwrap() driver.Store { return b.inner }

func openSQLite(ctx context.Context, target string) (*Store, error) {
	path := strings.TrimPrefix(target, "sqlite:")
	store, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &Store{Store: store, DB: db, close: func() error { return errors.Join(db.Close(), store.Close()) }}, nil
}

func openPostgres(ctx context.Context, target string) (*Store, error) {
	pool, err := pgxpool.New(ctx, target)
	if err != nil {
		return nil, err
	}
	store, err := postgres.New(ctx, pool, nil)
	if err != nil {
		pool.Close()
		return nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	return &Store{Store: store, DB: db, close: func() error {
		defer pool.Close()
		return errors.Join(db.Close(), store.Close())
	}}, nil
}

func openDirectory(ctx context.Context, target string) (*Store, error) {
	store, err := directory.New(strings.TrimPrefix(target, "dir:"), directory.FileTimes)
	if err != nil {
		return nil, err
	}
	return &Store{Store: store, Registers: inFiles{besides(target)}, close: store.Close}, nil
}

func openMySQL(ctx context.Context, target string) (*Store, error) {
	db, err := OpenDB(target)
	if err != nil {
		return nil, err
	}
	store, err := mysql.New(ctx, db, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Store{Store: store, DB: db, close: func() error { return errors.Join(store.Close(), db.Close()) }}, nil
}

// OpenDB understands the URL of a MySQL, which its driver does not.
func OpenDB(target string) (*sql.DB, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	c := mysqldriver.NewConfig()
	c.Net, c.Addr, c.User, c.DBName = "tcp", u.Host, u.User.Username(), strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	c.Timeout = 5 * time.Second
	c.Logger = &mysqldriver.NopLogger{}
	connector, err := mysqldriver.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(8)
	return db, nil
}
