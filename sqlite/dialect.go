package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// A dialect is a sqlstore.Dialect that writes by way of use.
type dialect struct {
	*Store
	use func(context.Context, func(*conn) error) error
}

// now is the wall clock in µs since 1970, which all processes on this host share.
func now() int64 { return time.Now().UnixMicro() }

func keyOf(id []byte) (space int64, name []byte) { return int64(id[0]), id[1:] }

func (d dialect) Load(ctx context.Context, ids [][]byte, each func(sqlstore.Row)) (clock int64, err error) {
	err = d.read(ctx, d.reads.UseIdle, func(c *conn) error {
		clock = now()
		load := func() error {
			for _, id := range ids {
				space, name := keyOf(id)
				err := c.query(`select version, value from holdfast_records where space = ? and name = ?`, func(row []sqldriver.Value) {
					value, _ := row[1].([]byte)
					each(sqlstore.Row{ID: id, Version: row[0].(int64), Value: value})
				}, space, name)
				if err != nil {
					return err
				}
			}
			return nil
		}
		if len(ids) == 1 {
			return retry(ctx, load)
		}
		return c.read(ctx, load)
	})
	return clock, d.explain(err)
}

// Swap is one statement with its own commit.
func (d dialect) Swap(ctx context.Context, w sqlstore.Write) (version int64, lost *sqlstore.Row, err error) {
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
func (d dialect) Swaps(ctx context.Context, ws []sqlstore.Write) (versions []int64, err error) {
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

// written says what became of writes, and tells watchers of those that won.
func (d dialect) written(err error, ws []sqlstore.Write, versions []int64) error {
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
	d.wakes.tell(wake)
	return nil
}

// swap makes one write at the time now.
func (c *conn) swap(w sqlstore.Write, now int64) (version int64, err error) {
	space, name := keyOf(w.ID)
	if w.Old == driver.IfEmpty {
		// A new row starts above the floor, which lies above every version
		// that was ever swept.
		err = c.query(`
			insert into holdfast_records (space, name, version, value)
			values (?1, ?2, max(?3, (select value + 1 from holdfast_meta where key = 'floor')), ?4)
			on conflict (space, name) do update
			set version = max(version + 1, ?3), value = excluded.value
			where length(value) = 0
			returning version`, func(row []sqldriver.Value) {
			version = row[0].(int64)
		}, space, name, now, w.Value)
		return version, err
	}
	next := max(w.Old+1, now)
	changed, err := c.exec(`update holdfast_records set version = ?, value = ? where space = ? and name = ? and version = ?`,
		next, w.Value, space, name, w.Old)
	if changed == 1 {
		version = next
	}
	return version, err
}

func (d dialect) Keys(ctx context.Context, from, to []byte, n int) (ids [][]byte, err error) {
	space, after := keyOf(from)
	err = d.read(ctx, d.reads.Use, func(c *conn) error {
		return retry(ctx, func() error {
			ids = ids[:0]
			return c.query(`
				select name from holdfast_records
				where space = ? and name > ? and length(value) > 0
				order by name limit ?`, func(row []sqldriver.Value) {
				ids = append(ids, append([]byte{from[0]}, text(row[0])...))
			}, space, after, int64(n))
		})
	})
	return ids, d.explain(err)
}

// Idle looks without keeping others from writing.
func (d dialect) Idle(ctx context.Context, after []byte, idle time.Duration, n int) (found []sqlstore.Row, err error) {
	until := now() - idle.Microseconds()
	space, name := int64(-1), []byte{}
	if len(after) > 0 {
		space, name = keyOf(after)
	}
	err = d.reads.Use(ctx, func(c *conn) error {
		return retry(ctx, func() error {
			found = found[:0]
			return c.query(`
				select space, name, version from holdfast_records
				where (space, name) > (?, ?) and length(value) = 0 and version <= ?
				order by space, name limit ?`, func(r []sqldriver.Value) {
				id := append([]byte{byte(r[0].(int64))}, r[1].([]byte)...)
				found = append(found, sqlstore.Row{ID: id, Version: r[2].(int64)})
			}, space, name, until, int64(n))
		})
	})
	return found, d.explain(err)
}

func (d dialect) Remove(ctx context.Context, rows []sqlstore.Row) (removed int, err error) {
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
		n, err := c.exec(`
			delete from holdfast_records
			where space = ? and name = ? and version = ? and length(value) = 0`, space, name, r.Version)
		if err != nil {
			return 0, err
		}
		if n == 1 {
			gone++
			floor = max(floor, r.Version)
		}
	}
	_, err = c.exec(`update holdfast_meta set value = max(value, ?) where key = 'floor'`, floor)
	return gone, err
}

// Means knows of nothing that may be tried again: what is busy was waited for.
func (dialect) Means(error) sqlstore.Meaning { return sqlstore.Perhaps }
