package postgres

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"
)

// A source lends connections, each to one caller at a time.
type source func(ctx context.Context, f func(*pgx.Conn) error) error

// pooled calls f with a connection of the caller's pool.
func pooled(ctx context.Context, pool *pgxpool.Pool, f func(*pgx.Conn) error) error {
	c, err := pool.Acquire(ctx)
	switch {
	case errors.Is(err, puddle.ErrClosedPool):
		return driver.ErrClosed
	case err != nil:
		used := pool.Stat()
		return sqlstore.NoneFree(err, int(used.AcquiredConns()), int(used.MaxConns()), "MaxConns (pool_max_conns in the URL)")
	}
	defer c.Release()
	return f(c.Conn())
}

// conns opens connections of our own, like those of a pool.
type conns struct{ like *pgxpool.Config }

// Open implements sqlstore.Conns.
func (o conns) Open(ctx context.Context) (*pgx.Conn, error) {
	cc := o.like.ConnConfig.Copy()
	if o.like.BeforeConnect != nil {
		if err := o.like.BeforeConnect(ctx, cc); err != nil {
			return nil, err
		}
	}
	cc.OnNotification = nil
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams = maps.Clone(cc.RuntimeParams)
		if cc.RuntimeParams == nil {
			cc.RuntimeParams = make(map[string]string)
		}
		cc.RuntimeParams["application_name"] = "holdfast"
	}
	c, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, err
	}
	if o.like.AfterConnect != nil {
		if err := o.like.AfterConnect(ctx, c); err != nil {
			shut(c)
			return nil, err
		}
	}
	return c, nil
}

// Works pings a connection that was idle for a while: it may have been ended.
func (conns) Works(ctx context.Context, c *pgx.Conn, unused time.Duration) (bool, error) {
	return unused <= time.Second || c.Ping(ctx) == nil, nil
}

// Sound tells whether nothing is under way on a connection.
func (conns) Sound(c *pgx.Conn, _ error) bool {
	return !c.IsClosed() && !c.PgConn().IsBusy() && c.PgConn().TxStatus() == 'I'
}

// Close does not wait for the server.
func (conns) Close(c *pgx.Conn) error {
	shut(c)
	return nil
}

// borrower lends the connection for heartbeats. In its first two seconds it prefers one of
// the pool that is idle: a program that takes one lock and ends needs no other.
func borrower(beats *sqlstore.Pool[*pgx.Conn], pool *pgxpool.Pool) source {
	since := time.Now()
	return func(ctx context.Context, f func(*pgx.Conn) error) error {
		if time.Since(since) > 2*time.Second || pool.Stat().IdleConns() == 0 {
			return beats.Use(ctx, f)
		}
		quick, cancel := context.WithTimeout(ctx, 10*time.Millisecond) // somebody may be quicker
		c, err := pool.Acquire(quick)
		cancel()
		if err != nil {
			return beats.Use(ctx, f)
		}
		defer c.Release()
		return f(c.Conn())
	}
}

// shut closes a connection, without waiting for the server.
func shut(c *pgx.Conn) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.Close(ctx)
}
