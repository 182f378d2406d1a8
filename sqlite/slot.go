package sqlite

import (
	"context"
	"errors"
)

// A slot lends a connection to one at a time, and opens it when it is needed
// for the first time or again after an error.
type slot struct {
	open    func(context.Context) (*conn, error)
	present func() error // whether others find what the connection is on
	turn    chan *conn   // holds the connection, or nil if it is not open; closed by close
}

func newSlot(open func(context.Context) (*conn, error), present func() error) *slot {
	s := &slot{open, present, make(chan *conn, 1)}
	s.turn <- nil
	return s
}

var errClosed = errors.New("the store is closed")

// useOr is use, but as long as there was no need for a connection of its own
// it takes the other, if that is open and idle. Most programs that take one
// lock and end need just one.
func (s *slot) useOr(ctx context.Context, other *slot, f func(*conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c, ok := <-s.turn:
		if !ok {
			return errClosed
		}
		s.turn <- c
		if c != nil {
			return s.use(ctx, f)
		}
	default:
		return s.use(ctx, f)
	}
	select {
	case c, ok := <-other.turn:
		if !ok {
			return errClosed
		}
		if c == nil {
			other.turn <- c
			return s.use(ctx, f)
		}
		return other.lend(ctx, c, f)
	default:
		return s.use(ctx, f)
	}
}

// use runs f with the connection. Unless f returns nil the connection is
// closed: whatever f left open on it, the next one meets nothing of it.
func (s *slot) use(ctx context.Context, f func(*conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var c *conn
	var ok bool
	select {
	case c, ok = <-s.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !ok {
		return errClosed
	}
	return s.lend(ctx, c, f)
}

// lend runs f with c, whose turn it is, or with a new connection if it is nil.
func (s *slot) lend(ctx context.Context, c *conn, f func(*conn) error) (err error) {
	sound := false
	defer func() {
		if c != nil && !sound {
			c.close()
			c = nil
		}
		s.turn <- c
	}()
	if c == nil {
		if c, err = s.open(ctx); err != nil {
			return err
		}
	}
	if err = s.present(); err == nil {
		err = f(c)
	}
	sound = err == nil || s.present() != nil // see close
	return err
}

// close closes the connection, unless its files have others in their place: closing
// it would copy its log over what others have written since, and remove theirs.
func (s *slot) close() error {
	c, ok := <-s.turn
	if !ok {
		return nil
	}
	close(s.turn)
	if c == nil || s.present() != nil {
		return nil
	}
	return c.close()
}
