package claims

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"time"
)

// A Table is Columns that can also list its rows. A Locker does not need that;
// List does.
type Table interface {
	Columns
	// Rows lists the keys of the rows that have a column, each once, in any order.
	// It ends with the first error.
	Rows(ctx context.Context) iter.Seq2[[]byte, error]
}

// A Claim is a claim as List found it.
type Claim struct {
	Key, Column []byte    // what is locked
	Time        time.Time // when it was made, by the clock of whoever made it
	Owner       string    // Options.Name of a Locker; of JanusGraph the graph.unique-instance-id
	Locker      bool      // it was made by a Locker, not by JanusGraph
	Expired     bool      // it is older than the expire of List, and counts for nobody
	// First: no unexpired claim to this lock comes before it. If the lock is held, then
	// by this owner; within Wait of Time it may not be held yet.
	First bool

	row, name []byte
	unit      Unit
}

// List returns the claims in a table, those to one lock in the order in which
// they count. expire is the Expire of all who lock there; 0: 5 min, JanusGraph's
// default. It only reads. The unit of each timestamp is inferred from its size.
// It ends with the first error.
func List(ctx context.Context, table Table, expire time.Duration) iter.Seq2[Claim, error] {
	return func(yield func(Claim, error) bool) {
		for row, err := range table.Rows(ctx) {
			if err != nil {
				yield(Claim{}, fmt.Errorf("listing rows: %w", err))
				return
			}
			if bytes.Equal(row, settingsKey) {
				continue
			}
			columns, err := table.Slice(ctx, row, nil)
			if err != nil {
				yield(Claim{}, fmt.Errorf("reading claims: %w", err))
				return
			}
			for _, c := range claimsIn(row, columns, time.Now(), expire) {
				if !yield(c, nil) {
					return
				}
			}
		}
	}
}

// claimsIn are the claims in a row, as of now.
func claimsIn(row []byte, columns []Column, now time.Time, expire time.Duration) (all []Claim) {
	if expire == 0 {
		expire = defaultExpire
	}
	key, column := cutRow(row)
	first := true
	for _, col := range columns {
		t, rid := timestampOf(col.Name), ridOf(col.Name)
		unit := unitOf(t)
		c := Claim{Key: key, Column: column, Time: unit.time(t), Owner: shownRid(rid), Locker: isHoldfast(rid), row: row, name: col.Name, unit: unit}
		c.Expired = now.Sub(c.Time) > expire
		c.First = first && !c.Expired
		first = first && c.Expired
		all = append(all, c)
	}
	return all
}

// Remove removes claims of a table. That is safe for a claim that has expired according
// to its owner's Expire. The owner of any other claim does not notice: beside the next
// holder, it goes on believing that it holds the lock until it renews or checks it.
func Remove(ctx context.Context, columns Columns, all ...Claim) error {
	for len(all) > 0 {
		row, stamp := all[0].row, int64(0)
		var names [][]byte
		for len(all) > 0 && bytes.Equal(all[0].row, row) {
			c := all[0]
			// Later than its write, by whatever clock; no column has the same name again.
			stamp = max(stamp, timestampOf(c.name)+c.unit.count(time.Minute), c.unit.of(time.Now().Add(time.Minute)))
			names, all = append(names, c.name), all[1:]
		}
		if err := columns.Delete(ctx, row, names, stamp); err != nil {
			return fmt.Errorf("removing %d claims: %w", len(names), err)
		}
	}
	return nil
}

// cutRow undoes rowKey. If a row is not that of a lock, all of it is key.
func cutRow(row []byte) (key, column []byte) {
	if len(row) < 4 {
		return row, nil
	}
	n := binary.BigEndian.Uint32(row)
	if uint64(n) > uint64(len(row)-4) {
		return row, nil
	}
	return row[4 : 4+n], row[4+n:]
}
