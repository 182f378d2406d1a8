package sqlstore

import (
	"context"
	"time"
)

// A Conn is one connection of a database, lent to one call at a time.
type Conn interface {
	// Query sends the statement of this name and calls row with each row of the result, whose
	// columns scan takes in.
	Query(ctx context.Context, name string, row func(scan Scan) error, args ...any) error
}

// A Scan reads the columns of a row.
type Scan func(columns ...any) error

// Reads are the methods of a Dialect that read. Their statements have the same arguments and
// columns in every database:
//
//	load        id                         id, version, value, clock, whether the server only follows
//	await       looks, id, version, s, id  the same
//	load all    what List makes of ids     the same
//	load range  first, last, n             the same
//	keys        from, to, n                id
//	idle        after, µs, n               id, version
//
// A row without a version is there for its clock.
type Reads[C Conn] struct {
	Use   func(context.Context, func(C) error) error
	Walk  func(context.Context, func(C) error) error // for reads that may take long
	List  func(ids [][]byte) any
	Codes *Codes

	Follows error        // of a server that only follows another
	Clock   func() int64 // nil: the statements tell the time; else "idle" takes a time, not an age
}

// manyIDs is how many ids make Load read a range: those of a list of names are neighbours in the
// index.
const manyIDs = 64

// Load implements Dialect.
func (d *Reads[C]) Load(ctx context.Context, ids [][]byte) (rows []Row, clock int64, err error) {
	given := 0 // rows, whatever they hold
	row := func(scan Scan) error {
		given++
		now, err := d.row(scan, &rows)
		clock = max(clock, now)
		return err
	}
	err = d.Use(ctx, func(c C) error {
		rows, given = nil, 0
		if d.Clock != nil {
			clock = d.Clock()
		}
		if len(ids) == 1 {
			return c.Query(ctx, "load", row, ids[0])
		}
		if len(ids) >= manyIDs && ids[0][0] == ids[len(ids)-1][0] {
			most := 2 * len(ids)
			err := c.Query(ctx, "load range", row, ids[0], ids[len(ids)-1], int64(most))
			if err != nil || given < most {
				return err
			}
			rows = nil // too much lies between them
		}
		return c.Query(ctx, "load all", row, d.List(ids))
	})
	return rows, clock, err
}

// row reads a row of those statements, and adds it to rows if it has a version.
func (d *Reads[C]) row(scan Scan, rows *[]Row) (clock int64, err error) {
	var r Row
	var version *int64
	var follows bool
	if err := scan(&r.ID, &version, &r.Value, &clock, &follows); err != nil {
		return 0, err
	}
	if follows {
		return 0, d.Follows
	}
	if version != nil && *version > 0 {
		r.Version = *version
		*rows = append(*rows, r)
	}
	return clock, nil
}

// Await returns a row as Load does, once its version has changed or limit has passed.
func (d *Reads[C]) Await(ctx context.Context, id []byte, version int64, every, limit time.Duration) (rows []Row, clock int64, err error) {
	err = d.Use(ctx, func(c C) error {
		rows = nil
		return c.Query(ctx, "await", func(scan Scan) (err error) {
			clock, err = d.row(scan, &rows)
			return err
		}, int64(limit/every), id, version, every.Seconds(), id)
	})
	return rows, clock, err
}

// Keys implements Dialect.
func (d *Reads[C]) Keys(ctx context.Context, from, to []byte, n int) (ids [][]byte, err error) {
	err = d.Walk(ctx, func(c C) error {
		ids = nil
		return c.Query(ctx, "keys", func(scan Scan) error {
			var id []byte
			err := scan(&id)
			ids = append(ids, id)
			return err
		}, from, to, int64(min(n, 1<<30)))
	})
	return ids, err
}

// Idle implements Dialect.
func (d *Reads[C]) Idle(ctx context.Context, after []byte, idle time.Duration, n int) (found []Row, err error) {
	err = d.Walk(ctx, func(c C) error {
		found = nil
		since := idle.Microseconds()
		if d.Clock != nil {
			since = d.Clock() - since
		}
		return c.Query(ctx, "idle", func(scan Scan) error {
			var r Row
			err := scan(&r.ID, &r.Version)
			found = append(found, r)
			return err
		}, after, since, int64(min(n, 1<<30)))
	})
	return found, err
}

// Means implements Dialect.
func (d *Reads[C]) Means(err error) Meaning {
	switch m := d.Codes.Meaning(err); m {
	case Again, Locked:
		return m
	}
	return Ambiguous
}
