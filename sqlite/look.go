package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-lock/holdfast/internal/filesystem"
	codes "modernc.org/sqlite/lib"
)

// A store that only looks creates no file: a log that it made would belong to its user, and
// writers could not use it. While others have the file open, it reads their log and takes part in
// SQLite's locks. While nobody has, there is no log, and SQLite would have to make one: then the
// store reads the file as one that does not change, and checks afterwards whether it did.
// Connections are not kept, for the next read may meet the other case.

// connectToLook opens a connection to read from.
func (s *Store) connectToLook(ctx context.Context) (*conn, error) {
	alone, err := s.alone()
	if err != nil {
		return nil, err
	}
	settings := "mode=ro"
	switch {
	case alone != nil:
		settings += "&immutable=1"
	case filesystem.Writable(s.path) != nil || filesystem.Writable(filepath.Dir(resolved(s.path))) != nil:
		// Only here: SQLite shares the index with the connections of this process that write,
		// and they could not write either.
		settings += "&readonly_shm=1"
	}
	c, err := s.dial(ctx, settings)
	if err == nil {
		c.alone = alone
	}
	return c, err
}

// alone is the file as it is now, if nobody has it open; else nil.
func (s *Store) alone() (fs.FileInfo, error) {
	info, err := os.Stat(s.path)
	if err != nil {
		return nil, err
	}
	_, err = os.Stat(resolved(s.path) + "-wal")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return info, nil
	case err != nil:
		return nil, err
	}
	return nil, nil
}

// lookPatience is how long a store that only looks keeps trying while others open the file,
// recover it or close it: only they may make what that needs.
const lookPatience = 2 * time.Second

// read calls f with a connection that use lends. In a store that only looks, f is called
// again if the file was changed under it.
func (s *Store) read(ctx context.Context, use func(context.Context, func(*conn) error) error, f func(*conn) error) error {
	for began := time.Now(); ; {
		changed := false
		err := use(ctx, func(c *conn) error {
			err := f(c)
			if c.alone != nil {
				now, unseen := s.alone()
				changed = unseen != nil || now == nil || now.Size() != c.alone.Size() || !now.ModTime().Equal(c.alone.ModTime())
			}
			return err
		})
		if c := code(err); s.looks && (c == codes.SQLITE_CANTOPEN || c == codes.SQLITE_READONLY) {
			changed = time.Since(began) < lookPatience
		}
		if !changed || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// ask calls f through read until the file is not locked by another, and explains its error.
func (s *Store) ask(ctx context.Context, use func(context.Context, func(*conn) error) error, f func(*conn) error) error {
	return s.explain(s.read(ctx, use, func(c *conn) error { return retry(ctx, func() error { return f(c) }) }))
}
