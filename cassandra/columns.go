package cassandra

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/driver"
)

// Columns is a table that package claims takes locks in, without lightweight
// transactions: (key blob, column1 blob, value blob, primary key (key, column1)),
// which is what JanusGraph makes for each of its stores. It writes and reads at
// QUORUM, over all data centres, whatever the session says: with less a claim may
// be invisible to another.
type Columns struct {
	calls calls
	add   string // one column
	swap  string // one column, and remove others
	drop  string
	all   string
	from  string
	rows  string
}

var _ claims.Table = (*Columns)(nil)

// NewColumns makes Columns of a table, which has to be there. The session stays
// the caller's. Claims carry the clock of this process as their timestamp.
func NewColumns(ctx context.Context, session *gocql.Session, keyspace, table string) (*Columns, error) {
	full, err := columnsName(keyspace, table)
	if err != nil {
		return nil, fmt.Errorf("cassandra: %w", err)
	}
	c := &Columns{
		add: `insert into ` + full + ` (key, column1, value) values (?, ?, ?) using timestamp ?`,
		swap: `begin unlogged batch using timestamp ? delete from ` + full + ` where key = ? and column1 in ?; insert into ` +
			full + ` (key, column1, value) values (?, ?, ?); apply batch`,
		drop: `delete from ` + full + ` using timestamp ? where key = ? and column1 in ?`,
		all:  `select column1, value from ` + full + ` where key = ?`,
		from: `select column1, value from ` + full + ` where key = ? and column1 >= ?`,
		rows: `select distinct key from ` + full,
	}
	c.calls.init(session, "", false)
	if _, err := c.Slice(ctx, []byte("holdfast"), nil); err != nil {
		return nil, fmt.Errorf("cassandra: the table %s.%s cannot be read; cassandra.MigrateColumns makes it: %w", keyspace, table, err)
	}
	return c, nil
}

// OpenColumns is NewColumns on a session of its own, from the URL of a store, whose path is
// the keyspace. The table of a store need not be there. close ends the session.
func OpenColumns(ctx context.Context, at *driver.Location, table string) (c *Columns, close func() error, err error) {
	session, err := withSession(ctx, at, func(ctx context.Context, session *gocql.Session, opts *Options) (err error) {
		c, err = NewColumns(ctx, session, opts.Keyspace, table)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return c, leave(session), nil
}

// MigrateColumns creates a table for NewColumns in an existing keyspace, if the
// table is missing.
func MigrateColumns(ctx context.Context, session *gocql.Session, keyspace, table string) error {
	full, err := columnsName(keyspace, table)
	if err == nil {
		var c calls
		c.init(session, "", false)
		host, _ := c.coordinator([]byte(full), nil) // the same for all that may create it now
		err = session.Query(`create table if not exists ` + full + ` (key blob, column1 blob, value blob, primary key (key, column1))`).
			SetHostID(host).ExecContext(ctx)
	}
	if err == nil {
		err = session.AwaitSchemaAgreement(ctx)
	}
	if err != nil {
		return fmt.Errorf("cassandra: create %s.%s: %w", keyspace, table, err)
	}
	return nil
}

func columnsName(keyspace, table string) (string, error) {
	for _, n := range []string{keyspace, table} {
		if n == "" || !nameForm().MatchString(n) {
			return "", fmt.Errorf("%q is not the name of a keyspace or table: up to 40 letters, digits and underscores", n)
		}
	}
	return quote(keyspace) + "." + quote(table), nil
}

// Add writes one column and removes others.
func (c *Columns) Add(ctx context.Context, key []byte, add claims.Column, remove [][]byte, timestamp int64) error {
	if len(remove) == 0 {
		return c.do(ctx, key, c.add, []any{key, add.Name, add.Value, timestamp}, execute)
	}
	return c.do(ctx, key, c.swap, []any{timestamp, key, remove, key, add.Name, add.Value}, execute)
}

// Delete removes columns.
func (c *Columns) Delete(ctx context.Context, key []byte, columns [][]byte, timestamp int64) error {
	return c.do(ctx, key, c.drop, []any{timestamp, key, columns}, execute)
}

// Slice reads columns.
func (c *Columns) Slice(ctx context.Context, key, from []byte) (columns []claims.Column, err error) {
	text, args := c.all, []any{key}
	if from != nil {
		text, args = c.from, []any{key, from}
	}
	err = c.do(ctx, key, text, args, func(ctx context.Context, q *gocql.Query) error {
		iter := q.IterContext(ctx)
		var name, value []byte
		for iter.Scan(&name, &value) {
			columns = append(columns, claims.Column{Name: slices.Clone(name), Value: slices.Clone(value)})
		}
		return iter.Close()
	})
	return columns, err
}

// Rows lists the keys of all rows, a page of them at a time.
func (c *Columns) Rows(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		rows := c.calls.session.Query(c.rows).Consistency(gocql.Quorum).IterContext(ctx)
		var key []byte
		for rows.Scan(&key) {
			if !yield(slices.Clone(key), nil) {
				rows.Close()
				return
			}
		}
		if err := rows.Close(); err != nil {
			yield(nil, err)
		}
	}
}

func execute(ctx context.Context, q *gocql.Query) error { return q.ExecContext(ctx) }

// do sends a statement to one coordinator, once.
func (c *Columns) do(ctx context.Context, key []byte, text string, args []any, run func(ctx context.Context, q *gocql.Query) error) error {
	host, _ := c.calls.coordinator(key, nil)
	if host == "" {
		return gocql.ErrNoConnections
	}
	sent := time.Now()
	err := run(ctx, c.calls.session.Query(text, args...).SetHostID(host).Consistency(gocql.Quorum).RetryPolicy(nil))
	var answer gocql.RequestError
	switch {
	case err == nil:
		c.calls.deaf.heard(host, true)
	case refused(err):
		return claims.Permanent(err)
	case !errors.As(err, &answer):
		c.calls.deaf.add(host, sent) // claims have no time to see whether it is only slow
	}
	return err
}

// A Skew is how far the clock of a node is ahead of this host's.
type Skew struct {
	Node   string        // its address
	Ahead  time.Duration // negative: behind
	Within time.Duration // how exact that is, at least
}

// Skews measures the clock of every node that is up. Claims rest on the clocks of
// those who lock, which are not these; but a host that is out of step with all
// nodes is the one to look at.
func Skews(ctx context.Context, session *gocql.Session) ([]Skew, error) {
	var skews []Skew
	for _, h := range session.GetHosts() {
		if !h.IsUp() {
			continue
		}
		best := Skew{Node: h.ConnectAddress().String(), Within: time.Hour}
		for range 5 {
			sent := time.Now()
			var id gocql.UUID
			err := session.Query(`select now() from system.local`).SetHostID(h.HostID()).Consistency(gocql.One).RetryPolicy(nil).ScanContext(ctx, &id)
			if err != nil {
				return skews, fmt.Errorf("cassandra: the clock of %s: %w", best.Node, err)
			}
			// Its clock counts in milliseconds.
			took := time.Since(sent)
			if within := took/2 + time.Millisecond; within < best.Within {
				best.Ahead, best.Within = id.Time().Sub(sent.Add(took/2)), within
			}
		}
		skews = append(skews, best)
	}
	slices.SortFunc(skews, func(a, b Skew) int { return int(b.Ahead.Abs() - a.Ahead.Abs()) })
	return skews, nil
}
