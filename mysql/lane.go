package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// A lane is a connection of the caller's pool that is set up for us: whatever
// the DSN says, statements in it are READ COMMITTED, commit by themselves, wait
// a second for a locked row, and tell the time in UTC. It does not go back to
// the pool, which would lend it to others with these settings: it is closed.
type lane struct {
	conn  *sql.Conn
	texts map[string]string // see statements.sql
	stmts map[string]*sql.Stmt
}

// conns are the lanes of a pool.
type conns struct {
	db    *sql.DB
	texts map[string]string
}

// Open implements sqlstore.Conns.
func (c conns) Open(ctx context.Context) (*lane, error) {
	conn, err := c.db.Conn(ctx)
	switch {
	case errors.Is(err, errDBClosed()):
		return nil, driver.ErrClosed
	case err != nil:
		used := c.db.Stats()
		return nil, sqlstore.NoneFree(err, used.InUse, used.MaxOpenConnections, "SetMaxOpenConns")
	}
	l := &lane{conn, c.texts, make(map[string]*sql.Stmt)}
	if _, err := conn.ExecContext(ctx, c.texts["set up"]); err != nil {
		c.Close(l)
		return nil, err
	}
	return l, nil
}

// errDBClosed is the error of database/sql for a closed pool, which it does not export.
var errDBClosed = sync.OnceValue(func() error {
	db := sql.OpenDB(noConnector{})
	db.Close()
	return db.PingContext(context.Background())
})

type noConnector struct{}

func (noConnector) Connect(context.Context) (sqldriver.Conn, error) { return nil, sqldriver.ErrBadConn }
func (noConnector) Driver() sqldriver.Driver                        { return nil }

// Works tells before a statement is sent whether the connection is still there: a context
// that ended just when an answer came has closed it, though the call that got the answer
// succeeded. Finding out whether the server has hung up takes some time, so a connection
// that was used just now is taken to be there.
func (conns) Works(ctx context.Context, l *lane, unused time.Duration) (bool, error) {
	return nil == l.conn.Raw(func(c any) error {
		if v, ok := c.(sqldriver.Validator); ok && !v.IsValid() {
			return sqldriver.ErrBadConn
		}
		if r, ok := c.(sqldriver.SessionResetter); ok && unused >= 20*time.Millisecond {
			return r.ResetSession(ctx)
		}
		return nil
	}), nil
}

// Sound tells whether a lane can be used again: after an error from the server it can, unless the
// server does not know a statement or is read-only.
func (conns) Sound(_ *lane, err error) bool {
	switch code(err) {
	case "":
		return err == nil
	case "1243", "1615", "1290", "1836", "1792": // prepare anew; --read-only and its like
		return false
	}
	return true
}

// Close ends the connection, for the server and for the caller's pool.
func (conns) Close(l *lane) error {
	l.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	l.conn.Close()
	return nil
}

// prepare keeps a statement for the next time.
func (l *lane) prepare(ctx context.Context, name string) (*sql.Stmt, error) {
	s := l.stmts[name]
	if s == nil {
		var err error
		if s, err = l.conn.PrepareContext(ctx, l.texts[name]); err != nil {
			return nil, err
		}
		l.stmts[name] = s
	}
	return s, nil
}

// seldom are the statements that are not kept. By default the server has room for 16,382
// of all its clients.
var seldom = map[string]bool{"keys": true, "idle": true, "settings": true, "version": true, "replicas": true, "columns": true,
	"trigger": true, "procedure": true, "view": true}

// Query implements sqlstore.Conn.
func (l *lane) Query(ctx context.Context, name string, row func(sqlstore.Scan) error, args ...any) error {
	if seldom[name] {
		rows, err := l.conn.QueryContext(ctx, l.texts[name], args...)
		return each(rows, err, row)
	}
	s, err := l.prepare(ctx, name)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	return each(rows, err, row)
}

func each(rows *sql.Rows, err error, row func(sqlstore.Scan) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
