package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"runtime"
	"time"

	modernc "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"
)

// A conn is one connection with its prepared statements, for one goroutine at
// a time. It uses the driver without database/sql: that saves a fifth of the
// time of a short statement.
//
// No statement waits in SQLite and none is interrupted, whatever becomes of a
// context: waits for other processes are ours (see retry), so a context that
// ends during one leaves nothing behind.
type conn struct {
	driver sqldriver.Conn
	stmts  map[string]sqldriver.Stmt
	args   []sqldriver.NamedValue
	full   bool   // what synchronous is set to: full or normal
	left   func() // is called before it is closed; may be nil

	alone fs.FileInfo // the file, if nobody else had it open when it was opened to look; else nil
}

// own is a driver of our own: what the program registers with the driver that it
// uses (functions, such as one called length, and hooks for new connections) does
// not apply to our connections.
var own modernc.Driver

func connect(dsn string) (*conn, error) {
	d, err := own.Open(dsn)
	if err != nil {
		return nil, err
	}
	c := &conn{driver: d, stmts: make(map[string]sqldriver.Stmt), full: true}
	setup := `pragma synchronous = full`
	if runtime.GOOS == "darwin" {
		// There fsync alone does not wait for the disk.
		setup += `; pragma fullfsync = on; pragma checkpoint_fullfsync = on`
	}
	if err := c.script(setup); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// close also rolls back what is open.
func (c *conn) close() error {
	for _, s := range c.stmts {
		s.Close()
	}
	if c.left != nil {
		c.left()
	}
	return c.driver.Close()
}

func (c *conn) prepare(query string, args []sqldriver.Value) (sqldriver.Stmt, []sqldriver.NamedValue, error) {
	s, ok := c.stmts[query]
	if !ok {
		var err error
		if s, err = c.driver.Prepare(query); err != nil {
			return nil, nil, err
		}
		c.stmts[query] = s
	}
	c.args = c.args[:0]
	for i, a := range args {
		c.args = append(c.args, sqldriver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return s, c.args, nil
}

// exec runs a statement that returns nothing and says how many rows it changed.
func (c *conn) exec(query string, args ...sqldriver.Value) (changed int64, err error) {
	s, named, err := c.prepare(query, args)
	if err != nil {
		return 0, err
	}
	r, err := s.(sqldriver.StmtExecContext).ExecContext(context.Background(), named)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// query runs a statement to its end and calls each with the rows. The slice is
// used again for the next row.
func (c *conn) query(query string, each func(row []sqldriver.Value), args ...sqldriver.Value) (err error) {
	s, named, err := c.prepare(query, args)
	if err != nil {
		return err
	}
	rows, err := s.(sqldriver.StmtQueryContext).QueryContext(context.Background(), named)
	if err != nil {
		return err
	}
	defer func() {
		// A row that was returned may be uncommitted until the statement
		// has ended.
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	row := make([]sqldriver.Value, len(rows.Columns()))
	for {
		switch err := rows.Next(row); err {
		case nil:
			each(row)
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// one runs a statement to its end and returns the first column of its last row; nil without one.
func (c *conn) one(query string, args ...sqldriver.Value) (v sqldriver.Value, err error) {
	err = c.query(query, func(row []sqldriver.Value) { v = row[0] }, args...)
	return v, err
}

// script runs statements that are not worth keeping.
func (c *conn) script(sql string) error {
	_, err := c.driver.(sqldriver.ExecerContext).ExecContext(context.Background(), sql, nil)
	return err
}

// sync sets whether the following commits wait for the disk.
func (c *conn) sync(full bool) error {
	if c.full == full {
		return nil
	}
	sql := `pragma synchronous = normal`
	if full {
		sql = `pragma synchronous = full`
	}
	if err := c.script(sql); err != nil {
		return err
	}
	c.full = full
	return nil
}

// transaction runs f between BEGIN IMMEDIATE, which waits for other writers,
// and COMMIT. After an error the connection must be closed.
func (c *conn) transaction(ctx context.Context, full bool, f func() error) error {
	err := retry(ctx, func() error {
		if err := c.sync(full); err != nil {
			return err
		}
		_, err := c.exec(`begin immediate`)
		return err
	})
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	_, err = c.exec(`commit`)
	return err
}

// patience is how long others may keep the file locked.
const patience = 10 * time.Second

// retry calls f until the file is not locked by another. Its waits are short
// and random, so that the latest comer has the same chance as all others;
// SQLite's own waits grow to 100 ms.
func retry(ctx context.Context, f func() error) error {
	err := f()
	if !busy(err) {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for start := time.Now(); ; {
		if time.Since(start) > patience {
			return fmt.Errorf("locked by another for %v: %w", patience, err)
		}
		timer.Reset(100*time.Microsecond + rand.N(500*time.Microsecond))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if err = f(); !busy(err) {
			return err
		}
	}
}

// code is SQLite's primary result code, 0 if err has none.
func code(err error) int {
	var e *modernc.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

func busy(err error) bool { return err != nil && code(err) == codes.SQLITE_BUSY }

// text is a column that may be kept as text or as bytes.
func text(v sqldriver.Value) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}
