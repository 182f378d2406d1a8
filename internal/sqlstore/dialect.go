package sqlstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/seen"
)

// A Dialect speaks to one database, over connections of its own choice. All
// methods may be called from many goroutines; every statement that changes a
// record runs in a transaction of its own, READ COMMITTED or stricter.
type Dialect interface {
	// Load returns the existing rows of ids, which are sorted and distinct, and
	// the server's clock at that time, in microseconds since 1970. It fails on a
	// server that only follows another.
	Load(ctx context.Context, ids [][]byte) (rows []Row, clock int64, err error)

	// Swap attempts one write. version is the row's new version; 0: the write
	// lost. lost is what it lost to, where the statement tells; else nil. Swap
	// waits for a locked row for a second at most; with w.Hurry as briefly as the
	// server can.
	Swap(ctx context.Context, w Write) (version int64, lost *Row, err error)

	// Swaps attempts several, sorted by id, in one statement or transaction, and
	// takes locks in that order. versions are like Swap's. Swaps waits for a locked
	// row for a second at most, less where the server has a finer limit.
	Swaps(ctx context.Context, ws []Write) (versions []int64, err error)

	// Keys returns at most n ids with a value, from < id < to, in order.
	Keys(ctx context.Context, from, to []byte, n int) ([][]byte, error)

	// Idle returns at most n rows after an id, in order, that have no value and
	// were written before idle, by the server's clock. They have no Value.
	Idle(ctx context.Context, after []byte, idle time.Duration, n int) ([]Row, error)

	// Remove raises the floor to the versions of rows, and then, or in the same
	// transaction, deletes those that have not changed since; a row inserted
	// after that has a version above the floor, however long its statement has
	// been under way.
	Remove(ctx context.Context, rows []Row) (removed int, err error)

	// Means says what an error means for the statement that had it.
	Means(err error) Meaning
}

// A Row is a record as a table has it.
type Row struct {
	ID      []byte // see ID
	Version int64
	Value   []byte
	Clock   int64 // where a swap has lost to it: the server's clock then, in microseconds since 1970
}

// A Write is a driver.Write to a row.
type Write struct {
	ID     []byte
	Old    int64  // driver.IfEmpty, or above 0
	Value  []byte // never nil, which would be null
	Notify string // as in driver.Write
	Lazy   bool
	Hurry  bool // another write of its batch has waited for a locked row

	at   int  // index of the driver.Write in its call
	told bool // what it has lost to is known
}

// Winners returns the versions of a batch, as Swaps does, and a function that sets them: it scans
// the rows of the batch's result, which are an id, its version, and more.
func Winners(ws []Write, more ...any) (versions []int64, row func(Scan) error) {
	var id []byte
	var version int64
	versions, columns := make([]int64, len(ws)), append([]any{&id, &version}, more...)
	return versions, func(scan Scan) error {
		if err := scan(columns...); err != nil {
			return err
		}
		if i, ok := slices.BinarySearchFunc(ws, id, func(w Write, id []byte) int { return bytes.Compare(w.ID, id) }); ok {
			versions[i] = version
		}
		return nil
	}
}

// RowsSeen remembers which ids have rows, as far as it has room. It may be wrong, which costs a
// round trip: an update is up to a tenth faster than an insert that finds a row, and useless where
// there is none.
type RowsSeen struct{ ids *seen.Set }

// NewRowsSeen returns one that has seen none.
func NewRowsSeen() *RowsSeen { return &RowsSeen{seen.New()} }

// Take is the Swap of a write that takes a name if it holds nothing. take updates its row, and
// insert makes the row or updates it; each returns the new version, or 0. d loads what take has
// lost to.
func (r *RowsSeen) Take(ctx context.Context, d Dialect, w Write, take, insert func() (int64, error)) (version int64, lost *Row, err error) {
	if r.ids.Has(w.ID) {
		if version, err = take(); err != nil || version != 0 {
			return version, nil, err
		}
		rows, clock, err := d.Load(ctx, [][]byte{w.ID})
		if err != nil {
			return 0, nil, err
		}
		if len(rows) > 0 && len(rows[0].Value) > 0 {
			rows[0].Clock = clock
			return 0, &rows[0], nil
		}
		// It was freed just now, or swept.
	}
	if version, err = insert(); err == nil {
		r.ids.Add(w.ID)
	}
	return version, nil, err
}

// A Meaning is what is known after an error.
type Meaning int8

const (
	Ambiguous Meaning = iota // nothing
	Again                    // it was rolled back, and may be tried again: a deadlock, a failure to serialize
	Locked                   // it was rolled back, since someone keeps a row locked

	// A Dialect's Means does not tell these apart from Ambiguous.
	Denied        // the role lacks a right
	Missing       // there are no such tables
	Lost          // a fence: the token does not hold the lock
	NoLock        // a fence: there is no such lock, or no fence
	NoTransaction // a fence: there is no transaction
)

// Codes says what errors of a database mean, by the code that Of finds in an error.
type Codes struct {
	Of    func(error) string
	Means map[string]Meaning
}

// Meaning is what an error means.
func (c *Codes) Meaning(err error) Meaning { return c.Means[c.Of(err)] }

// ID is the key as one string of bytes: the space, then the name.
func ID(k driver.Key) []byte { return append([]byte{byte(k.Space)}, k.Name...) }
