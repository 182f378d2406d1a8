// Package mysql keeps locks in a MariaDB or MySQL database, which may be the
// application's own: then a fenced transaction is in reach (see Fence).
package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Options of New, Migrate, Verify and Schema; nil and the zero value of each
// field are the defaults.
type Options struct {
	// Prefix is what the names of tables, view and procedure begin with;
	// "holdfast_".
	Prefix string
	// Allow lists dangers accepted by name.
	Allow []string
}

func (o *Options) tables() (sqlstore.Tables, error) {
	if o == nil {
		o = &Options{}
	}
	return sqlstore.NewTables("", o.Prefix)
}

// A Store keeps records in a database. It is a holdfast.Store and Sweeper.
type Store struct {
	sqlstore.Store
	db           *sql.DB
	tables       sqlstore.Tables
	names, beats *lanes
}

var (
	_ holdfast.Store   = (*Store)(nil)
	_ holdfast.Sweeper = (*Store)(nil)
)

type server struct{ returning bool }

// New makes a store of a pool, which stays the caller's.
func New(ctx context.Context, db *sql.DB, opts *Options) (*Store, error) {
	t, err := opts.tables()
	if err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	s := &Store{db: db, tables: t}
	s.names, s.beats = share(db)
	st := newStatements(t, server{returning: true})
	s.Names = &dialect{st, s.names}
	s.Beats = &dialect{st, s.beats}
	return s, nil
}

func share(db *sql.DB) (names, beats *lanes) {
	n := db.Stats().MaxOpenConnections
	switch {
	case n == 0 || n >= 8:
		return newLanes(db, 4), newLanes(db, 1)
	case n >= 3:
		return newLanes(db, n/2), newLanes(db, 1)
	}
	names = newLanes(db, 1)
	return names, names
}

// Close ends what New and others have begun.
func (s *Store) Close() error {
	s.names.close()
	s.beats.close()
	return nil
}
