package main

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/sqlite"
	modernc "modernc.org/sqlite"
)

const (
	bothWait  = "take and release"
	takeWaits = "take"
	noDisk    = "nothing"
)

// sqliteSystems are those that lock by a file of this host.
var sqliteSystems = []*system{
	{
		store: "sqlite", name: "INSERT, DELETE", of: "INSERT, DELETE", in: "latency throughput", disk: bothWait,
		means: "WAL, synchronous=FULL; prepared", open: openFloor,
	}, {
		store: "sqlite", name: "INSERT, DELETE with database/sql", of: "INSERT, DELETE", in: "latency throughput", disk: bothWait,
		means: "WAL, synchronous=FULL; prepared, one connection", open: openFloorDB,
	}, {
		store: "sqlite", name: "flock(2)", of: "flock(2)", in: "handoff crash", disk: noDisk,
		means: "one host, no tokens, no order", open: openFlock,
	}, {
		store: "sqlite", name: "holdfast", of: "INSERT, DELETE", in: "latency throughput handoff held crash waiters serve", disk: takeWaits,
		means: "WAL; synchronous=FULL for a take, NORMAL for a release to nobody", open: openSQLite,
	}, {
		store: "sqlite", name: "holdfast, Client.Do", of: "INSERT, DELETE", in: "latency", disk: takeWaits,
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			l, err := openSQLite(ctx, at, o)
			if err != nil {
				return nil, err
			}
			return doing{l.(*client)}, nil
		},
	}, {
		store: "sqlite", name: "holdfast, the store alone", of: "INSERT, DELETE", in: "latency", disk: takeWaits,
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			s, err := sqlite.Open(ctx, filepath.Join(at.Dir, "holdfast.db"), &sqlite.Options{Create: true})
			if err != nil {
				return nil, err
			}
			return storeAlone{s, s.Close}, nil
		},
	},
}

const (
	floorDSN   = "?_pragma=journal_mode(wal)&_pragma=synchronous(full)"
	floorTable = `create table if not exists bare (name text primary key, value blob)`
	insertRow  = `insert into bare (name, value) values (?, ?)`
	deleteRow  = `delete from bare where name = ?`
)

var bareValue = make([]byte, 120) // about what a lock record has

// A client is Holdfast in a process.
type client struct {
	*holdfast.Client
	closers []func() error
	counted *counter                         // nil: the server counts
	another func() (*holdfast.Client, error) // one more on the same store, as another process has it
}

// newClient makes a client on a store; closers close what it stands on, the
// last one first.
func newClient(at *site, store driver.Store, o options, closers ...func() error) (*client, error) {
	trace, err := tracing[o.Tracing]()
	if err != nil {
		return nil, err
	}
	opts := &holdfast.Options{TTL: o.TTL, RuntimeDir: at.Dir}
	if o.Elsewhere {
		dir, err := os.MkdirTemp(at.Dir, "elsewhere-")
		if err != nil {
			return nil, err
		}
		opts.RuntimeDir = dir
	}
	if o.waiting != nil {
		trace = trace.And(&holdfast.Trace{Queued: func(context.Context, holdfast.Event) { o.waiting() }})
	}
	if o.beat != nil {
		trace = trace.And(&holdfast.Trace{Heartbeat: func(context.Context, holdfast.Event) { o.beat() }})
	}
	opts.Trace = trace
	another := func() (*holdfast.Client, error) { return holdfast.New(store, opts) }
	c, err := another()
	return &client{Client: c, closers: closers, another: another}, err
}

func (c *client) lock(ctx context.Context, name string) (held, error) {
	l, err := c.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	return ours{l}, nil
}

// ours needs no memory besides the lock's.
type ours struct{ *holdfast.Lock }

func (l ours) unlock() error { return l.Release(context.Background()) }

func (c *client) close() error {
	err := c.Client.Close()
	for i := range c.closers {
		err = errors.Join(err, c.closers[len(c.closers)-1-i]())
	}
	return err
}

// doing takes locks with Client.Do.
type doing struct{ *client }

func (d doing) once(ctx context.Context, name string) error {
	return d.Do(ctx, name, func(context.Context, *holdfast.Lock) error { return nil })
}

func openSQLite(ctx context.Context, at *site, o options) (locker, error) {
	s, err := sqlite.Open(ctx, filepath.Join(at.Dir, "holdfast.db"), &sqlite.Options{Create: true})
	if err != nil {
		return nil, err
	}
	counted := &counter{Store: s}
	c, err := newClient(at, counted, o, s.Close)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	c.counted = counted
	return c, nil
}

// requests are the calls of a store that has no server that counts.
func (c *client) requests() float64 {
	if c.counted == nil {
		return 0
	}
	n := c.counted.count()
	return n.loads + n.swaps
}

// storeAlone makes the calls that the client makes for a lock: a take that
// waits for the disk, and a release that need not.
type storeAlone struct {
	driver.Store
	shut func() error
}

func (a storeAlone) lock(ctx context.Context, name string) (held, error) {
	key := driver.Key{Name: name}
	swap := func(ctx context.Context, w driver.Write) (int64, error) {
		out, err := a.CompareAndSwap(ctx, []driver.Write{w})
		if err == nil && !out[0].Won {
			err = errors.New("lost a write without a rival")
		}
		if err != nil {
			return 0, err
		}
		return out[0].Record.Version, nil
	}
	version, err := swap(ctx, driver.Write{Key: key, Old: driver.IfEmpty, Value: bareValue})
	if err != nil {
		return nil, err
	}
	return unlocker(func() error {
		_, err := swap(context.WithoutCancel(ctx), driver.Write{Key: key, Old: version, Lazy: true})
		return err
	}), nil
}

func (a storeAlone) close() error { return a.shut() }

// A floorDB makes the floor's statements as a program would, with database/sql.
type floorDB struct {
	db             *sql.DB
	insert, remove *sql.Stmt
}

func openFloorDB(ctx context.Context, at *site, o options) (locker, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(at.Dir, "floor-sql.db")+floorDSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return prepareFloor(ctx, db, floorTable)
}

// prepareFloor makes the floor's table and prepares its statements.
func prepareFloor(ctx context.Context, db *sql.DB, table string) (locker, error) {
	f := &floorDB{db: db}
	_, err := db.ExecContext(ctx, table)
	if err == nil {
		f.insert, err = db.PrepareContext(ctx, insertRow)
	}
	if err == nil {
		f.remove, err = db.PrepareContext(ctx, deleteRow)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return f, nil
}

func (f *floorDB) lock(ctx context.Context, name string) (held, error) {
	if _, err := f.insert.ExecContext(ctx, name, bareValue); err != nil {
		return nil, err
	}
	return unlocker(func() error { _, err := f.remove.ExecContext(context.WithoutCancel(ctx), name); return err }), nil
}

func (f *floorDB) close() error { return f.db.Close() }

// A floorConn makes the floor's statements with as little as possible in
// between: the same use of the driver as the store's.
type floorConn struct {
	mu             sync.Mutex
	conn           sqldriver.Conn
	insert, remove sqldriver.StmtExecContext
}

func openFloor(ctx context.Context, at *site, o options) (locker, error) {
	connector, err := modernc.NewConnector("file:" + filepath.Join(at.Dir, "floor.db") + floorDSN)
	if err != nil {
		return nil, err
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.(sqldriver.ExecerContext).ExecContext(ctx, floorTable, nil); err != nil {
		return nil, err
	}
	f := &floorConn{conn: conn}
	for query, stmt := range map[string]*sqldriver.StmtExecContext{insertRow: &f.insert, deleteRow: &f.remove} {
		s, err := conn.Prepare(query)
		if err != nil {
			return nil, err
		}
		*stmt = s.(sqldriver.StmtExecContext)
	}
	return f, nil
}

func (f *floorConn) exec(stmt sqldriver.StmtExecContext, args ...sqldriver.NamedValue) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := stmt.ExecContext(context.Background(), args)
	return err
}

func (f *floorConn) lock(ctx context.Context, name string) (held, error) {
	key := sqldriver.NamedValue{Ordinal: 1, Value: name}
	if err := f.exec(f.insert, key, sqldriver.NamedValue{Ordinal: 2, Value: bareValue}); err != nil {
		return nil, err
	}
	return unlocker(func() error { return f.exec(f.remove, key) }), nil
}

func (f *floorConn) close() error { return f.conn.Close() }

// A flocker locks files.
type flocker struct{ dir string }

func openFlock(ctx context.Context, at *site, o options) (locker, error) {
	return flocker{at.Dir}, nil
}

func (f flocker) lock(ctx context.Context, name string) (held, error) {
	file, err := os.OpenFile(filepath.Join(f.dir, "flock-"+url.PathEscape(name)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if !tryFlock(file) {
		locked := make(chan error, 1)
		go func() { locked <- flock(file) }()
		select {
		case err = <-locked:
		case <-ctx.Done():
			return nil, ctx.Err() // the end of the process ends the wait
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return unlocker(func() error { return errors.Join(unflock(file), file.Close()) }), nil
}

func (f flocker) close() error { return nil }
