package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/mysql"
)

const mysqlMeans = "innodb_flush_log_at_trx_commit=1, no binary log"

var mysqlSystems = []*system{
	{
		store: "mysql", name: "INSERT, DELETE", of: "INSERT, DELETE", in: "latency throughput", disk: bothWait,
		means: mysqlMeans + "; database/sql, prepared, a connection for each goroutine, 32 at most", open: openMySQLFloor,
	}, {
		store: "mysql", name: "GET_LOCK", of: "INSERT, DELETE", in: "latency throughput handoff held crash", disk: noDisk,
		means: "of the session, one connection each; gone with the server, no tokens", open: openGetLock,
	}, {
		store: "mysql", name: "holdfast", of: "INSERT, DELETE", in: "latency throughput handoff held crash waiters serve", disk: bothWait,
		means: mysqlMeans, open: openMySQL,
	},
}

// mysqlPool opens a pool that keeps its connections.
func mysqlPool(ctx context.Context, at *site, conns int) (*sql.DB, error) {
	u, err := url.Parse(at.MySQL)
	if err != nil {
		return nil, err
	}
	config := mysqldriver.NewConfig()
	config.Net, config.Addr, config.User, config.DBName = "tcp", u.Host, u.User.Username(), u.Path[1:]
	config.Passwd, _ = u.User.Password()
	config.ClientFoundRows = true
	connector, err := mysqldriver.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	if conns == 0 {
		conns = 4 // as pgxpool has here; the default, no limit, ends at the server's
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// A mysqlFloor has its connections to itself, and its statements prepared on them.
type mysqlFloor struct {
	db   *sql.DB
	free chan *floorDB
}

func openMySQLFloor(ctx context.Context, at *site, o options) (locker, error) {
	conns := max(1, o.Conns)
	db, err := mysqlPool(ctx, at, conns)
	if err != nil {
		return nil, err
	}
	f := &mysqlFloor{db, make(chan *floorDB, conns)}
	_, err = db.ExecContext(ctx, `create table if not exists bare (name varbinary(255) primary key, value blob)`)
	for range conns {
		var c floorDB
		var conn *sql.Conn
		if err == nil {
			conn, err = db.Conn(ctx)
		}
		if err == nil {
			c.insert, err = conn.PrepareContext(ctx, insertRow)
		}
		if err == nil {
			c.remove, err = conn.PrepareContext(ctx, deleteRow)
		}
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		f.free <- &c
	}
	return f, nil
}

func (f *mysqlFloor) lock(ctx context.Context, name string) (held, error) {
	c := <-f.free
	h, err := c.lock(ctx, name)
	if err != nil {
		f.free <- c
		return nil, err
	}
	return unlocker(func() error { defer func() { f.free <- c }(); return h.unlock() }), nil
}

func (f *mysqlFloor) close() error { return f.db.Close() }

// A getLocker pins a connection for each lock; with Conns 1 it has one for all.
type getLocker struct {
	db   *sql.DB
	free chan *getConn // as many as it may have; nil: not made yet
	mu   sync.Mutex
	one  *getConn
}

// A getConn is a connection with its prepared statements.
type getConn struct {
	conn       *sql.Conn
	take, drop *sql.Stmt
}

func openGetLock(ctx context.Context, at *site, o options) (locker, error) {
	conns := o.Conns
	if conns == 0 {
		conns = 4
	}
	db, err := mysqlPool(ctx, at, conns)
	if err != nil {
		return nil, err
	}
	g := &getLocker{db: db, free: make(chan *getConn, conns)}
	if conns == 1 {
		g.one, err = g.connect(ctx)
		return g, err
	}
	for range conns {
		g.free <- nil
	}
	return g, nil
}

func (g *getLocker) connect(ctx context.Context) (*getConn, error) {
	conn, err := g.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	c := &getConn{conn: conn}
	if c.take, err = conn.PrepareContext(ctx, `select get_lock(?, 100000)`); err == nil {
		c.drop, err = conn.PrepareContext(ctx, `select release_lock(?)`)
	}
	return c, err
}

func (c *getConn) ask(ctx context.Context, stmt *sql.Stmt, name string) error {
	var got sql.NullInt64
	err := stmt.QueryRowContext(ctx, name).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = fmt.Errorf("the server says %v for %q", got, name)
	}
	return err
}

func (g *getLocker) lock(ctx context.Context, name string) (held, error) {
	if g.one != nil {
		ask := func(ctx context.Context, stmt *sql.Stmt) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.one.ask(ctx, stmt, name)
		}
		return unlocker(func() error { return ask(context.WithoutCancel(ctx), g.one.drop) }), ask(ctx, g.one.take)
	}
	var c *getConn
	select {
	case c = <-g.free:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var err error
	if c == nil {
		c, err = g.connect(ctx)
	}
	if err == nil {
		err = c.ask(ctx, c.take, name)
	}
	if err != nil {
		g.free <- nil
		if c != nil {
			c.conn.Close()
		}
		return nil, err
	}
	return unlocker(func() error {
		defer func() { g.free <- c }()
		return c.ask(context.WithoutCancel(ctx), c.drop, name)
	}), nil
}

func (g *getLocker) close() error { return g.db.Close() }

func openMySQL(ctx context.Context, at *site, o options) (locker, error) {
	db, err := mysqlPool(ctx, at, o.Conns)
	if err != nil {
		return nil, err
	}
	s, err := mysql.New(ctx, db, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return newClient(at, s, o, db.Close, s.Close)
}

// startMySQL starts a MariaDB or MySQL.
func startMySQL(b *bench) (*server, error) {
	my, err := servers.StartMySQL(b.ctx, &servers.Options{Settings: []string{"max-connections=2000", "thread-cache-size=300"}})
	if err != nil {
		return nil, err
	}
	s := &server{version: my.Name}
	s.stopped(b, my)
	b.site.MySQL = my.URL
	admin, err := mysqlPool(b.ctx, &b.site, 1)
	if err != nil {
		s.stop()
		return nil, err
	}
	s.atEnd(func() { admin.Close() })
	if err := mysql.Migrate(b.ctx, admin, nil); err != nil {
		s.stop()
		return nil, err
	}
	status := func(name string, own float64) func(ctx context.Context) (float64, error) {
		asked := 0.0
		return func(ctx context.Context) (float64, error) {
			var is, value string
			if err := admin.QueryRowContext(ctx, "show global status like '"+name+"'").Scan(&is, &value); err != nil {
				return 0, err
			}
			asked += own
			n, err := strconv.ParseFloat(value, 64)
			return n - asked, err
		}
	}
	questions, looks := status("Questions", 1), 0.0
	s.requests = func(ctx context.Context) (float64, error) {
		n, err := questions(ctx)
		return n - looks, err
	}
	s.written = func(ctx context.Context) (bytes, syncs float64, err error) {
		looks++
		rows, err := admin.QueryContext(ctx, "show global status where variable_name in ('Innodb_os_log_written', 'Innodb_os_log_fsyncs', 'Innodb_data_fsyncs')")
		if err != nil {
			return 0, 0, err
		}
		defer rows.Close()
		is := map[string]float64{}
		for rows.Next() {
			var name string
			var n float64
			if err := rows.Scan(&name, &n); err != nil {
				return 0, 0, err
			}
			is[name] = n
		}
		syncs, ok := is["Innodb_os_log_fsyncs"]
		if !ok { // as from MariaDB 10.8 on
			syncs = is["Innodb_data_fsyncs"]
		}
		return is["Innodb_os_log_written"], syncs, rows.Err()
	}
	s.kinds = func(ctx context.Context) (map[string]float64, error) {
		rows, err := admin.QueryContext(ctx, "show global status where variable_name like 'Com\\_%'")
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		kinds := map[string]float64{}
		for rows.Next() {
			var name string
			var n float64
			if err := rows.Scan(&name, &n); err != nil {
				return nil, err
			}
			kinds[name] = n
		}
		return kinds, rows.Err()
	}
	connected := status("Threads_connected", 0)
	s.connections = func(ctx context.Context) (c connections, err error) {
		c.all, err = connected(ctx) // all of them are of the pools
		return c, err
	}
	return s, nil
}
