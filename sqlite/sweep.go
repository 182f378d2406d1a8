package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"time"
)

// A row is one that Sweep has found.
type row struct {
	space   int64
	name    []byte
	version int64
}

// sweepBatch is how many rows go in one transaction: others wait for it.
const sweepBatch = 500

// Sweep implements holdfast.Sweeper. It looks for rows without keeping others
// from writing, and removes those that have not changed since.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	until := now() - idle.Microseconds()
	last := row{space: -1, name: []byte{}}
	for {
		var found []row
		err := s.reads.use(ctx, func(c *conn) error {
			return retry(ctx, func() error {
				found = found[:0]
				return c.query(`
					select space, name, version from holdfast_records
					where (space, name) > (?, ?) and length(value) = 0 and version <= ?
					order by space, name limit ?`, func(r []driver.Value) {
					found = append(found, row{r[0].(int64), bytes.Clone(r[1].([]byte)), r[2].(int64)})
				}, last.space, last.name, until, int64(sweepBatch))
			})
		})
		if err != nil {
			return removed, s.explain(err)
		}
		if len(found) == 0 {
			return removed, nil
		}
		last = found[len(found)-1]
		gone := 0
		err = s.names.use(ctx, func(c *conn) error {
			return c.transaction(ctx, false, func() (err error) {
				gone, err = c.remove(found)
				return err
			})
		})
		if err != nil {
			return removed, s.explain(err)
		}
		removed += gone
	}
}

// remove deletes rows that have not changed, and raises the floor above them.
func (c *conn) remove(rows []row) (gone int, err error) {
	floor := int64(0)
	for _, r := range rows {
		n, err := c.exec(`
			delete from holdfast_records
			where space = ? and name = ? and version = ? and length(value) = 0`, r.space, r.name, r.version)
		if err != nil {
			return 0, err
		}
		if n == 1 {
			gone++
			floor = max(floor, r.version)
		}
	}
	_, err = c.exec(`update holdfast_meta set value = max(value, ?) where key = 'floor'`, floor)
	return gone, err
}
