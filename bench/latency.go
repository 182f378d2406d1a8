package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/sqlite"
	modernc "modernc.org/sqlite"
)

// free takes and gives back a lock that nobody else wants, on SQLite. Its floor
// is a lock that is a row, inserted and deleted, each waiting for the disk.
func free(b *bench) (rows []Row, err error) {
	floor, err := openFloor(b.path("floor.db"))
	if err != nil {
		return nil, err
	}
	defer floor.close()
	db, err := openFloorDB(b.path("floor-sql.db"))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	alone, err := sqlite.Open(b.ctx, b.path("store.db"), &sqlite.Options{Create: true})
	if err != nil {
		return nil, err
	}
	defer alone.Close()
	store, err := sqlite.Open(b.ctx, b.path("free.db"), &sqlite.Options{Create: true})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	counted := &counter{Store: store}
	client, err := holdfast.New(counted, &holdfast.Options{RuntimeDir: b.dir})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()

	insert, err := db.Prepare(insertRow)
	if err != nil {
		return nil, err
	}
	remove, err := db.Prepare(deleteRow)
	if err != nil {
		return nil, err
	}
	value := make([]byte, 120) // about what a lock record has
	fresh := 0
	each := func(f func() error) func() (series, error) {
		n := 50
		if b.quick {
			n = 10
		}
		return func() (series, error) { return timed(n, f) }
	}
	lock := func(name string) error {
		l, err := client.Acquire(b.ctx, name)
		if err != nil {
			return err
		}
		return l.Release(b.ctx)
	}
	systems := []system{
		{"INSERT, DELETE", each(floor.pair)},
		{"INSERT, DELETE with database/sql", each(func() error {
			if _, err := insert.Exec("nightly", value); err != nil {
				return err
			}
			_, err := remove.Exec("nightly")
			return err
		})},
		{"holdfast", each(func() error { return lock("nightly") })},
		{"holdfast, a new name each time", each(func() error {
			fresh++
			return lock(fmt.Sprintf("job/%d", fresh))
		})},
		{"holdfast, Client.Do", each(func() error {
			return client.Do(b.ctx, "nightly", func(context.Context, *holdfast.Lock) error { return nil })
		})},
		{"holdfast, the store alone", each(func() error { return storePair(b.ctx, alone, value) })},
	}
	before := counted.count()
	taken, err := b.take(systems)
	if err != nil {
		return nil, err
	}
	used := counted.count().since(before)
	locks := float64(3 * len(taken[0][0]) * (b.rounds + 1))
	for i, s := range systems {
		row := taken[i].row(s.name, "ms", 1e3)
		row.Ratio = taken[i].ratio(taken[0])
		switch s.name {
		case "holdfast":
			row = row.aims("≤ 0.75x", row.Ratio <= 0.75).
				notes("%.2f store writes and %.3f reads per lock", used.written/locks, used.loads/locks)
		case "INSERT, DELETE":
			row = row.notes("the floor: synchronous=FULL, prepared")
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// storePair is what the client asks of the store for a lock: a take that waits
// for the disk, and a release that does not.
func storePair(ctx context.Context, s holdfast.Store, value []byte) error {
	w := holdfast.Write{Key: holdfast.Key{Name: "nightly"}, Old: holdfast.IfEmpty, Value: value}
	for range 2 {
		out, err := s.CompareAndSwap(ctx, []holdfast.Write{w})
		if err != nil {
			return err
		}
		if !out[0].Won {
			return errors.New("lost a write without a rival")
		}
		w = holdfast.Write{Key: w.Key, Old: out[0].Record.Version, Lazy: true}
	}
	return nil
}

const (
	floorDSN   = "?_pragma=journal_mode(wal)&_pragma=synchronous(full)"
	floorTable = `create table bare (name text primary key, value blob)`
	insertRow  = `insert into bare (name, value) values (?, ?)`
	deleteRow  = `delete from bare where name = ?`
)

// openFloorDB opens the floor as a program would, with database/sql.
func openFloorDB(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+floorDSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	_, err = db.Exec(floorTable)
	return db, err
}

// A floorConn makes the floor's statements with as little as possible in
// between: the same use of the driver as the store's.
type floorConn struct {
	conn           driver.Conn
	insert, remove driver.StmtExecContext
	args           []driver.NamedValue
}

func openFloor(path string) (*floorConn, error) {
	connector, err := modernc.NewConnector("file:" + path + floorDSN)
	if err != nil {
		return nil, err
	}
	conn, err := connector.Connect(context.Background())
	if err != nil {
		return nil, err
	}
	if _, err := conn.(driver.ExecerContext).ExecContext(context.Background(), floorTable, nil); err != nil {
		return nil, err
	}
	f := &floorConn{conn: conn, args: []driver.NamedValue{{Ordinal: 1, Value: "nightly"}, {Ordinal: 2, Value: make([]byte, 120)}}}
	for query, stmt := range map[string]*driver.StmtExecContext{insertRow: &f.insert, deleteRow: &f.remove} {
		s, err := conn.Prepare(query)
		if err != nil {
			return nil, err
		}
		*stmt = s.(driver.StmtExecContext)
	}
	return f, nil
}

func (f *floorConn) pair() error {
	if _, err := f.insert.ExecContext(context.Background(), f.args); err != nil {
		return err
	}
	_, err := f.remove.ExecContext(context.Background(), f.args[:1])
	return err
}

func (f *floorConn) close() error { return f.conn.Close() }
