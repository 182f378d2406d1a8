package sqlite

import (
	"cmp"
	"context"
	sqldriver "database/sql/driver"
	_ "embed"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// A dialect is a sqlstore.Dialect that writes on the connection that use lends.
type dialect struct {
	sqlstore.Reads[*conn]
	*Store
	use func(context.Context, func(*conn) error) error
}

//go:embed statements.sql
var statements string

var texts = sync.OnceValue(func() map[string]string { return sqlstore.Texts(statements) })

func newDialect(s *Store, use func(context.Context, func(*conn) error) error) *dialect {
	return &dialect{sqlstore.Reads[*conn]{
		Use:  func(ctx context.Context, f func(*conn) error) error { return s.ask(ctx, s.reads.UseIdle, f) },
		Walk: func(ctx context.Context, f func(*conn) error) error { return s.ask(ctx, s.reads.Use, f) },
		List: idList, Codes: &codesOfNone, Clock: now,
	}, s, use}
}

// codesOfNone has no code that means "try again": retry has waited for a busy file.
var codesOfNone = sqlstore.Codes{Of: func(error) string { return "" }}

// now is the wall clock in µs since 1970, which all processes on this host share.
func now() int64 { return time.Now().UnixMicro() }

// keyOf is the space and the name of an id; for no id, those that sort before all others.
func keyOf(id []byte) (space int64, name []byte) {
	if len(id) == 0 {
		return -1, []byte{}
	}
	return int64(id[0]), id[1:]
}

// idOf is the id of a space and a name, which may be kept as text or as bytes.
func idOf(space int64, name sqldriver.Value) []byte {
	if b, ok := name.([]byte); ok {
		id := make([]byte, 0, 1+len(b))
		return append(append(id, byte(space)), b...)
	}
	return append([]byte{byte(space)}, text(name)...)
}

// idList is the argument of the statement "load all". A space is one digit.
func idList(ids [][]byte) any {
	b := []byte{'['}
	for _, id := range ids {
		space, name := keyOf(id)
		b = append(b, '"', '0'+byte(space))
		b = append(hex.AppendEncode(b, name), '"', ',')
	}
	b[len(b)-1] = ']'
	return string(b)
}

// Query implements sqlstore.Conn: an id is a space and a name.
func (c *conn) Query(_ context.Context, name string, row func(sqlstore.Scan) error, args ...any) (err error) {
	values := make([]sqldriver.Value, 0, 2*len(args))
	for _, a := range args {
		if id, ok := a.([]byte); ok {
			space, name := keyOf(id)
			values = append(values, space, name)
		} else {
			values = append(values, a)
		}
	}
	failed := c.query(texts()[name], func(r []sqldriver.Value) {
		if err == nil {
			err = row(func(columns ...any) error { return scan(r, columns) })
		}
	}, values...)
	return cmp.Or(failed, err)
}

// scan reads the columns of a row, of which the first is an id.
func scan(row []sqldriver.Value, columns []any) error {
	*columns[0].(*[]byte) = idOf(row[0].(int64), row[1])
	for i, v := range row[2:] {
		switch c := columns[i+1].(type) {
		case **int64:
			n := v.(int64)
			*c = &n
		case *int64:
			*c = v.(int64)
		case *[]byte:
			*c, _ = v.([]byte)
		case *bool:
			*c = v != int64(0)
		default:
			return fmt.Errorf("a column is no %T", c)
		}
	}
	return nil
}

// Swap is one statement with its own commit.
func (d *dialect) Swap(ctx context.Context, w sqlstore.Write) (version int64, lost *sqlstore.Row, err error) {
	err = d.use(ctx, func(c *conn) error {
		return retry(ctx, func() (err error) {
			if err := c.sync(!w.Lazy && !d.async); err != nil {
				return err
			}
			version, err = c.swap(w, now())
			return err
		})
	})
	return version, nil, d.written(err, []sqlstore.Write{w}, []int64{version})
}

// Swaps is one transaction.
func (d *dialect) Swaps(ctx context.Context, ws []sqlstore.Write) (versions []int64, err error) {
	versions, durable := make([]int64, len(ws)), false
	for _, w := range ws {
		durable = durable || !w.Lazy
	}
	durable = durable && !d.async
	err = d.use(ctx, func(c *conn) error {
		return c.transaction(ctx, durable, func() (err error) {
			for i, w := range ws {
				if versions[i], err = c.swap(w, now()); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return versions, d.written(err, ws, versions)
}

// written says what became of writes, and notifies watchers of those that won.
func (d *dialect) written(err error, ws []sqlstore.Write, versions []int64) error {
	if err == nil {
		err = d.files.present() // what was written is where others look
	}
	if err != nil {
		return d.explain(err)
	}
	var wake []driver.Notification
	for i, w := range ws {
		if w.Notify != "" && versions[i] != 0 {
			wake = append(wake, driver.Notification{Key: driver.Key{Space: driver.Space(w.ID[0]), Name: string(w.ID[1:])}, To: w.Notify})
		}
	}
	d.board.Tell(wake)
	return nil
}

// swap makes one write at the time now.
func (c *conn) swap(w sqlstore.Write, now int64) (version int64, err error) {
	space, name := keyOf(w.ID)
	if w.Old == driver.IfEmpty {
		v, err := c.one(texts()["insert"], space, name, now, w.Value)
		version, _ = v.(int64)
		return version, err
	}
	next := max(w.Old+1, now)
	changed, err := c.exec(texts()["update"], next, w.Value, space, name, w.Old)
	if changed == 1 {
		version = next
	}
	return version, err
}

func (d *dialect) Remove(ctx context.Context, rows []sqlstore.Row) (removed int, err error) {
	err = d.names.Use(ctx, func(c *conn) error {
		return c.transaction(ctx, false, func() (err error) {
			removed, err = c.remove(rows)
			return err
		})
	})
	return removed, d.explain(err)
}

// remove deletes rows that have not changed, and raises the floor above them.
func (c *conn) remove(rows []sqlstore.Row) (gone int, err error) {
	floor := int64(0)
	for _, r := range rows {
		space, name := keyOf(r.ID)
		n, err := c.exec(texts()["remove"], space, name, r.Version)
		if err != nil {
			return 0, err
		}
		if n == 1 {
			gone++
			floor = max(floor, r.Version)
		}
	}
	_, err = c.exec(texts()["raise"], floor)
	return gone, err
}
