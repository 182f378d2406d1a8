package cassandra

import (
	"context"
	"fmt"
	"slices"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/seen"
)

// Options of New, Migrate, Verify and Schema; nil and the zero value of each
// field are the defaults.
type Options struct {
	// Keyspace is where the table is; "" is the keyspace of the session.
	Keyspace string
	// Prefix is what the table's name begins with; by default "holdfast_".
	Prefix string
	// LocalDC is the data centre whose nodes are asked; "" asks all of them.
	LocalDC string
	// Allow lists dangers accepted by name: "few-replicas", a replication factor
	// below 3; "simple-strategy", SimpleStrategy across data centres;
	// "local-serial", to agree within LocalDC only, which is quicker: then
	// nobody may lock from another data centre, and whoever does breaks all locks.
	Allow []string
}

// A Store keeps records in a table of a Cassandra keyspace. It is a
// driver.Store and Diagnoser.
type Store struct {
	session *gocql.Session
	opts    Options
	tables  tables
	text    statements
	calls   calls
	rows    rowsSeen
	lists   listings
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Diagnoser = (*Store)(nil)
)

// New makes a store on a session, which stays the caller's and should not have
// a Timeout below five seconds. It verifies the schema and the replication of
// its keyspace, and creates nothing. The session's settings for retries,
// speculation, consistency and host selection do not matter: a Store decides
// these for each of its statements.
//
// Version 2.1.2 of the driver has a defect: the Close of a session may never return if it begins
// while the session reconnects to its nodes. A program that has to end should not wait for it.
func New(ctx context.Context, session *gocql.Session, opts *Options) (*Store, error) {
	s, err := prepare(ctx, session, opts)
	if err == nil {
		err = s.check(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("cassandra: %w", err)
	}
	return s, nil
}

// prepare makes a store and looks at nothing but the keyspace's name.
func prepare(ctx context.Context, session *gocql.Session, opts *Options) (*Store, error) {
	s := &Store{session: session}
	s.rows.keys = seen.New()
	if opts != nil {
		s.opts = *opts
	}
	s.opts.Allow = slices.Clone(s.opts.Allow)
	if err := s.opts.check(); err != nil {
		return nil, err
	}
	s.calls.init(session, s.opts.LocalDC, s.opts.localSerial())
	if s.opts.Keyspace == "" {
		var err error
		if s.opts.Keyspace, err = s.calls.keyspace(ctx); err != nil {
			return nil, err
		}
	}
	s.tables = s.opts.tables()
	s.text = newStatements(s.tables)
	return s, nil
}

// localSerial says whether consensus is within one data centre.
func (o *Options) localSerial() bool { return slices.Contains(o.Allow, "local-serial") }
