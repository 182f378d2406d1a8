package cassandra

import (
	"context"
	"errors"
	"fmt"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
)

// errNoFloor says that the row that keeps versions growing across sweeps is gone.
var errNoFloor error = driver.NewSchemaError("once all holders have stopped, run: holdfast schema apply",
	"the floor is missing: the table was emptied or restored without it, so tokens might repeat")

// floor is the version above which a row that was swept may come back. A read at
// QUORUM sees what was raised before somebody swept.
func (s *Store) floor(ctx context.Context) (version int64, err error) {
	_, err = s.calls.send(ctx, nil, s.text.floor, []any{int8(floorSpace), floorName}, func(ctx context.Context, q *gocql.Query) error {
		return q.ScanContext(ctx, &version)
	})
	if errors.Is(err, gocql.ErrNotFound) {
		err = errNoFloor
	}
	return version, err
}

// raise raises the floor to at least a version.
func (s *Store) raise(ctx context.Context, version int64) error {
	old, err := s.floor(ctx)
	for err == nil && old < version {
		var met row
		var applied bool
		_, err = s.calls.send(ctx, floorName, s.text.raise, []any{version, int8(floorSpace), floorName, old}, func(ctx context.Context, q *gocql.Query) (err error) {
			met, applied, err = scan(ctx, q)
			return err
		})
		switch {
		case err != nil || applied:
			return err
		case !met.there:
			return errNoFloor
		}
		old = met.version
	}
	return err
}

// Sweep removes the rows of keys that have held nothing for at least idle by the
// clocks of the coordinators, which should agree with ours to within idle; if
// not, rows go earlier or later, and nothing else happens.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	type empty struct {
		key     driver.Key
		version int64
	}
	var rows []empty
	var highest int64
	began := time.Now()
	err = s.each(ctx, func(space driver.Space, name string, version int64, value []byte, written time.Time) {
		if len(value) == 0 && began.Sub(written) >= idle {
			rows = append(rows, empty{driver.Key{Space: space, Name: name}, version})
			highest = max(highest, version)
		}
	})
	if err == nil && highest > 0 {
		err = s.raise(ctx, highest)
	}
	if err != nil {
		return 0, fmt.Errorf("cassandra: sweep: %w", err)
	}
	gone := make([]bool, len(rows))
	for _, err := range s.calls.names.each(ctx, len(rows), func(i int) error {
		k := rows[i].key
		_, err := s.calls.send(ctx, rowOf(k), s.text.drop, []any{int8(k.Space), []byte(k.Name), rows[i].version}, func(ctx context.Context, q *gocql.Query) (err error) {
			_, gone[i], err = scan(ctx, q)
			return err
		})
		return err
	}) {
		if err != nil && ctx.Err() != nil {
			return count(gone), fmt.Errorf("cassandra: sweep: %w", err)
		}
	}
	return count(gone), nil // what could not be removed is left for the next
}

func count(all []bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}
