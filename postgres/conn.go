package postgres

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A source lends connections, each to one at a time.
type source interface {
	use(ctx context.Context, f func(*pgx.Conn) error) error
}

// A pooled source is the caller's pool.
type pooled struct{ *pgxpool.Pool }

func (p pooled) use(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	return f(c.Conn())
}

// A slot lends one connection of our own, which it opens when it is needed for
// the first time or again after an error.
type slot struct {
	open func(context.Context) (*pgx.Conn, error)
	turn chan *pgx.Conn // holds the connection, or nil if it is not open; closed by close
	used time.Time      // belongs to who has the turn
}

func newSlot(open func(context.Context) (*pgx.Conn, error)) *slot {
	s := &slot{open: open, turn: make(chan *pgx.Conn, 1)}
	s.turn <- nil
	return s
}

var errClosed = errors.New("the store is closed")

func (s *slot) use(ctx context.Context, f func(*pgx.Conn) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	var c *pgx.Conn
	var ok bool
	select {
	case c, ok = <-s.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !ok {
		return errClosed
	}
	defer func() {
		if c != nil && (c.IsClosed() || c.PgConn().IsBusy() || c.PgConn().TxStatus() != 'I') {
			shut(c)
			c = nil
		}
		s.used = time.Now()
		s.turn <- c
	}()
	if c != nil && time.Since(s.used) > time.Second && c.Ping(ctx) != nil {
		shut(c) // somebody ends what is idle
		c = nil
	}
	if c == nil {
		if c, err = s.open(ctx); err != nil {
			c = nil
			return err
		}
	}
	return f(c)
}

func (s *slot) close() {
	if c, ok := <-s.turn; ok {
		close(s.turn)
		shut(c)
	}
}

// A borrower is a slot that in its first moments rather takes a connection of the
// pool that is idle: a program that takes one lock and ends needs but one.
type borrower struct {
	*slot
	pool  *pgxpool.Pool
	since time.Time
}

func (b *borrower) use(ctx context.Context, f func(*pgx.Conn) error) error {
	if time.Since(b.since) > 2*time.Second || b.pool.Stat().IdleConns() == 0 {
		return b.slot.use(ctx, f)
	}
	quick, cancel := context.WithTimeout(ctx, 10*time.Millisecond) // somebody may be quicker
	c, err := b.pool.Acquire(quick)
	cancel()
	if err != nil {
		return b.slot.use(ctx, f)
	}
	defer c.Release()
	return f(c.Conn())
}

// shut closes a connection, without waiting for anybody.
func shut(c *pgx.Conn) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.Close(ctx)
}

// own returns a function that opens connections like those of the pool.
func own(pool *pgxpool.Pool) func(context.Context) (*pgx.Conn, error) {
	config := pool.Config()
	return func(ctx context.Context) (*pgx.Conn, error) {
		cc := config.ConnConfig.Copy()
		if config.BeforeConnect != nil {
			if err := config.BeforeConnect(ctx, cc); err != nil {
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
		if config.AfterConnect != nil {
			if err := config.AfterConnect(ctx, c); err != nil {
				shut(c)
				return nil, err
			}
		}
		return c, nil
	}
}
