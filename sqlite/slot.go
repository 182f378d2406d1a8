package sqlite

import (
	"context"
	"time"
)

// conns opens and closes the connections of a store, as long as others find what they
// are on.
type conns struct{ *Store }

// Open implements sqlstore.Conns.
func (c conns) Open(ctx context.Context) (*conn, error) {
	opened, err := c.connect(ctx)
	if err == nil {
		if err = c.files.present(); err == nil {
			return opened, nil
		}
	}
	return nil, err
}

// Works implements sqlstore.Conns.
func (c conns) Works(context.Context, *conn, time.Duration) (bool, error) {
	return !c.looks, c.files.present()
}

// Sound keeps none after an error: whatever that left open, the next call meets nothing
// of it.
func (conns) Sound(_ *conn, err error) bool { return err == nil }

// Close closes a connection, unless its files have others in their place: closing it
// would copy its log over what others have written since, and remove theirs.
func (c conns) Close(conn *conn) error {
	if !c.looks && c.files.present() != nil {
		return nil
	}
	return conn.close()
}
