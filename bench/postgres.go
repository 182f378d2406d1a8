package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"cirello.io/pglock"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq"
)

const postgresMeans = "fsync=on, synchronous_commit=on"

var postgresSystems = []*system{
	{
		store: "postgres", name: "INSERT, DELETE", of: "INSERT, DELETE", in: "latency throughput", disk: bothWait,
		means: postgresMeans + "; prepared, a connection for each goroutine, 32 at most", open: openPostgresFloor(direct),
	}, {
		store: "postgres", name: "INSERT, DELETE through PgBouncer", of: "INSERT, DELETE", in: "latency", disk: bothWait,
		means: postgresMeans + "; a connection for each goroutine, not prepared", open: openPostgresFloor(bounced),
	}, {
		store: "postgres", name: "pg_advisory_lock", of: "INSERT, DELETE", in: "latency throughput handoff held crash", disk: noDisk,
		means: "of the session, one connection each; gone with the server, no tokens", open: openAdvisory,
	}, {
		store: "postgres", name: "pglock", of: "INSERT, DELETE", in: "latency throughput handoff held crash waiters", disk: bothWait,
		means: postgresMeans + "; v1.16.1 with lib/pq; lease 20s, heartbeat 5s (defaults)", open: openPglock(0),
	}, {
		store: "postgres", name: "pglock, lease 1s", of: "pg_advisory_lock", in: "handoff", disk: bothWait,
		means: postgresMeans + "; v1.16.1 with lib/pq; lease 1s, heartbeat 250ms", open: openPglock(time.Second),
	}, {
		store: "postgres", name: "holdfast", of: "INSERT, DELETE", in: "latency throughput handoff held crash waiters serve", disk: takeWaits,
		means: postgresMeans + "; a release to nobody commits asynchronously", open: openPostgres(direct),
	}, {
		store: "postgres", name: "holdfast through PgBouncer", of: "INSERT, DELETE through PgBouncer", in: "latency handoff", disk: takeWaits,
		means: postgresMeans + "; a release to nobody commits asynchronously; transaction pooling, polls", open: openPostgres(bounced),
	},
}

// direct and bounced are the two ways to a PostgreSQL.
func direct(at *site) string  { return at.Postgres }
func bounced(at *site) string { return at.Bouncer }

// postgresPool opens a pool. A pooler gives every transaction another
// connection, where nothing can be prepared.
func postgresPool(ctx context.Context, at *site, way func(*site) string, conns int) (*pgxpool.Pool, error) {
	target := way(at)
	config, err := pgxpool.ParseConfig(target)
	if err != nil {
		return nil, err
	}
	if conns > 0 {
		config.MaxConns = int32(conns)
	}
	if target == at.Bouncer {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err == nil {
		err = pool.Ping(ctx)
	}
	return pool, err
}

// A postgresFloor has its connections to itself, and its statements prepared on them, as nothing
// does that is quicker.
type postgresFloor struct {
	free         chan *pgx.Conn
	insert, drop string // the name of a prepared statement, or its text
}

func openPostgresFloor(way func(*site) string) func(context.Context, *site, options) (locker, error) {
	return func(ctx context.Context, at *site, o options) (locker, error) {
		conns := max(1, o.Conns)
		f := &postgresFloor{make(chan *pgx.Conn, conns), `insert into bare (name, value) values ($1, $2)`, `delete from bare where name = $1`}
		config, err := pgx.ParseConfig(way(at))
		if err != nil {
			return nil, err
		}
		pooled := way(at) == at.Bouncer // where nothing can be prepared
		if pooled {
			config.DefaultQueryExecMode = pgx.QueryExecModeExec
		}
		for range conns {
			c, err := pgx.ConnectConfig(ctx, config)
			if err == nil && !pooled {
				_, err = c.Prepare(ctx, "insert", f.insert)
				if err == nil {
					_, err = c.Prepare(ctx, "drop", f.drop)
				}
			}
			if err != nil {
				return nil, errors.Join(err, f.close())
			}
			f.free <- c
		}
		if !pooled {
			f.insert, f.drop = "insert", "drop"
		}
		return f, nil
	}
}

func (f *postgresFloor) lock(ctx context.Context, name string) (held, error) {
	c := <-f.free
	if _, err := c.Exec(ctx, f.insert, name, bareValue); err != nil {
		f.free <- c
		return nil, err
	}
	return unlocker(func() error {
		_, err := c.Exec(context.WithoutCancel(ctx), f.drop, name)
		f.free <- c
		return err
	}), nil
}

func (f *postgresFloor) close() (err error) {
	for range len(f.free) {
		err = errors.Join(err, (<-f.free).Close(context.Background()))
	}
	return err
}

// An advisory locker pins a connection for each lock; with Conns 1 it has one
// for all.
type advisory struct {
	pool *pgxpool.Pool
	mu   sync.Mutex
	one  *pgxpool.Conn
}

const (
	advisoryLock   = `select pg_advisory_lock(hashtextextended($1, 0))`
	advisoryUnlock = `select pg_advisory_unlock(hashtextextended($1, 0))`
)

func openAdvisory(ctx context.Context, at *site, o options) (locker, error) {
	pool, err := postgresPool(ctx, at, direct, o.Conns)
	if err != nil {
		return nil, err
	}
	a := &advisory{pool: pool}
	if o.Conns == 1 {
		if a.one, err = pool.Acquire(ctx); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *advisory) lock(ctx context.Context, name string) (held, error) {
	if a.one != nil {
		exec := func(ctx context.Context, query string) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			_, err := a.one.Exec(ctx, query, name)
			return err
		}
		return unlocker(func() error { return exec(context.WithoutCancel(ctx), advisoryUnlock) }), exec(ctx, advisoryLock)
	}
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, advisoryLock, name); err != nil {
		conn.Release()
		return nil, err
	}
	return unlocker(func() error {
		defer conn.Release()
		_, err := conn.Exec(context.WithoutCancel(ctx), advisoryUnlock, name)
		return err
	}), nil
}

func (a *advisory) close() error {
	if a.one != nil {
		a.one.Release()
	}
	a.pool.Close()
	return nil
}

type pglocker struct {
	db *sql.DB
	c  *pglock.Client
}

func openPglock(lease time.Duration) func(context.Context, *site, options) (locker, error) {
	return func(ctx context.Context, at *site, o options) (locker, error) {
		db, err := sql.Open("postgres", at.Postgres)
		if err != nil {
			return nil, err
		}
		conns := o.Conns
		if conns == 0 {
			conns = 4 // as the others have
		}
		db.SetMaxOpenConns(conns)
		db.SetMaxIdleConns(conns)
		ttl, beat := lease, lease/4
		if o.TTL > 0 {
			ttl, beat = o.TTL, o.TTL/3
		}
		var opts []pglock.ClientOption
		if ttl > 0 {
			opts = append(opts, pglock.WithLeaseDuration(ttl), pglock.WithHeartbeatFrequency(beat))
		}
		c, err := pglock.New(db, opts...)
		if err == nil {
			err = db.PingContext(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		return &pglocker{db, c}, nil
	}
}

func (p *pglocker) lock(ctx context.Context, name string) (held, error) {
	l, err := p.c.AcquireContext(ctx, name)
	if err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	return unlocker(func() error { return p.c.ReleaseContext(context.WithoutCancel(ctx), l) }), nil
}

func (p *pglocker) close() error { return p.db.Close() }

func openPostgres(way func(*site) string) func(context.Context, *site, options) (locker, error) {
	return func(ctx context.Context, at *site, o options) (locker, error) {
		pool, err := postgresPool(ctx, at, way, o.Conns)
		if err != nil {
			return nil, err
		}
		s, err := postgres.New(ctx, pool, nil)
		if err != nil {
			pool.Close()
			return nil, err
		}
		return newClient(at, s, o, func() error { pool.Close(); return nil }, s.Close)
	}
}

// startPostgres starts a PostgreSQL that counts statements, and a PgBouncer.
func startPostgres(b *bench) (*server, error) {
	pg, err := servers.StartPostgres(b.ctx, &servers.Options{Settings: []string{
		"max_connections=1500", "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track_planning=off",
	}})
	if err != nil {
		return nil, err
	}
	s := &server{version: pg.Name}
	s.stopped(b, pg)
	err = func() error {
		admin, err := pgxpool.New(b.ctx, pg.URL)
		if err != nil {
			return err
		}
		s.atEnd(admin.Close)
		for _, statement := range []string{"create extension pg_stat_statements", "create database bench"} {
			if _, err := admin.Exec(b.ctx, statement); err != nil {
				return err
			}
		}
		if b.site.Postgres, err = inDatabase(pg.URL, "bench"); err != nil {
			return err
		}
		bouncer, err := servers.StartPgBouncer(b.ctx, pg, &servers.Options{Cancels: true})
		switch {
		case errors.Is(err, servers.ErrMissing):
			b.say("SKIPPED: %v", err)
		case err != nil:
			return err
		default:
			s.stopped(b, bouncer)
			if b.site.Bouncer, err = inDatabase(bouncer.URL, "bench"); err != nil {
				return err
			}
		}
		const here = `(select oid from pg_database where datname = 'bench')`
		s.requests = func(ctx context.Context) (n float64, err error) {
			err = admin.QueryRow(ctx, `select coalesce(sum(calls), 0)::float8 from pg_stat_statements where dbid = `+here).Scan(&n)
			return n, err
		}
		// What the store opens by itself has a name.
		s.connections = func(ctx context.Context) (c connections, err error) {
			err = admin.QueryRow(ctx, `select count(*)::float8, count(*) filter (where application_name = 'holdfast')::float8
from pg_stat_activity where datid = `+here).Scan(&c.all, &c.beside)
			return c, err
		}
		// The server counts what it has synced at most a second late.
		s.written = func(ctx context.Context) (bytes, syncs float64, err error) {
			err = admin.QueryRow(ctx, `select (pg_current_wal_insert_lsn() - '0/0')::float8, wal_sync::float8 from pg_stat_wal`).Scan(&bytes, &syncs)
			return bytes, syncs, err
		}
		s.kinds = func(ctx context.Context) (map[string]float64, error) {
			rows, err := admin.Query(ctx, `select regexp_replace(query, '\s+', ' ', 'g'), calls::float8 from pg_stat_statements where dbid = `+here)
			if err != nil {
				return nil, err
			}
			kinds, query, calls := map[string]float64{}, "", 0.0
			_, err = pgx.ForEachRow(rows, []any{&query, &calls}, func() error {
				kinds[query[:min(len(query), 150)]] += calls
				return nil
			})
			return kinds, err
		}
		return preparePostgres(b)
	}()
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func inDatabase(target, name string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// preparePostgres makes the tables of all systems.
func preparePostgres(b *bench) error {
	pool, err := postgresPool(b.ctx, &b.site, direct, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(b.ctx, `create table bare (name text primary key, value bytea)`); err != nil {
		return err
	}
	if err := postgres.Migrate(b.ctx, pool, nil); err != nil {
		return err
	}
	l, err := openPglock(0)(b.ctx, &b.site, options{})
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.(*pglocker).c.CreateTable(); err != nil {
		return fmt.Errorf("pglock: %w", err)
	}
	return nil
}

// fillPostgres adds names to the table, as they are when their locks have been given back.
func (b *bench) fillPostgres(from, to int) error {
	pool, err := postgresPool(b.ctx, &b.site, direct, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(b.ctx, `insert into holdfast_records (id, version, value)
		select '\x00'::bytea || convert_to('filler/' || i, 'UTF8'), (extract(epoch from clock_timestamp()) * 1000000)::bigint, ''
		from generate_series($1::bigint, $2::bigint - 1) i`, from, to)
	return err
}
