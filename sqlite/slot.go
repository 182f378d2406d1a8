package sqlite

import (
	"context"
	"time"
)

// conns opens and closes the connections of a store, as long as other processes find the
// same files.
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

// Sound keeps no connection after an error, so that the next call meets nothing that was
// left open.
func (conns) Sound(_ *conn, err error) bool { return err == nil }

// Close closes a connection, unless its files were removed or replaced: closing it would
// then copy its log over what others have written since, and remove theirs.
func (c conns) Close(conn *conn) error {
	if !c.looks && c.files.present() != nil {
		return nil
	}
	return conn.close()
}
