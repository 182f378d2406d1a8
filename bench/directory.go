package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
)

// dirSystems are those that lock by files in a directory.
var dirSystems = []*system{
	{
		store: "dir", name: "link, unlink", of: "link, unlink", in: "latency throughput", disk: bothWait,
		means: "a file, fsynced, linked to the name; unlink; fsync of the directory after each", open: openLinks,
	}, {
		store: "dir", name: "flock(2)", of: "link, unlink", in: "latency throughput handoff crash", disk: noDisk,
		means: "open, flock, close; one host, no tokens, no order", open: openFlock,
	}, {
		store: "dir", name: "holdfast", of: "link, unlink", in: "latency throughput handoff held crash waiters", disk: bothWait,
		means: "notifications by inotify", open: openDirectory,
	}, {
		store: "dir", name: "holdfast, polling", of: "link, unlink", in: "handoff crash waiters", disk: bothWait,
		means: "no notifications, as on a network file system: asks each 3 ms to 1 s, the longer it waits",
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			return newDirectory(at, o, func(s *directory.Store, c *counter) driver.Store {
				return withoutWatch{c}
			})
		},
	}, {
		store: "dir", name: "holdfast, the store alone", of: "link, unlink", in: "latency", disk: bothWait,
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			s, err := directory.New(filepath.Join(at.Dir, "directory"))
			if err != nil {
				return nil, err
			}
			return storeAlone{s, s.Close}, nil
		},
	},
}

func startDirectory(b *bench) (*server, error) {
	path := b.path("directory")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	return &server{version: "directory"}, directory.Migrate(path)
}

// withoutWatch hides that a store can tell of changes.
type withoutWatch struct{ driver.Store }

func openDirectory(ctx context.Context, at *site, o options) (locker, error) {
	return newDirectory(at, o, func(_ *directory.Store, c *counter) driver.Store { return c })
}

func newDirectory(at *site, o options, as func(*directory.Store, *counter) driver.Store) (locker, error) {
	s, err := directory.New(filepath.Join(at.Dir, "directory"))
	if err != nil {
		return nil, err
	}
	counted := &counter{Store: s}
	c, err := newClient(at, as(s, counted), o, s.Close)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	c.counted = counted
	return c, nil
}

// links is the floor: what it takes to have a name in a directory, and to have
// it no more, so that a crash forgets neither.
type links struct {
	dir string
	n   atomic.Int64
}

func openLinks(ctx context.Context, at *site, o options) (locker, error) {
	dir, err := os.MkdirTemp(at.Dir, "links-")
	return &links{dir: dir}, err
}

func (l *links) lock(ctx context.Context, name string) (held, error) {
	path := filepath.Join(l.dir, filepath.Base(name))
	if err := l.link(path); err != nil {
		return nil, err
	}
	return unlocker(func() error { return errors.Join(os.Remove(path), syncDir(l.dir)) }), nil
}

func (l *links) link(path string) error {
	temp := filepath.Join(l.dir, "temp-"+strconv.FormatInt(l.n.Add(1), 10))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(bareValue)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Link(temp, path)
	}
	return errors.Join(err, os.Remove(temp), syncDir(l.dir))
}

func (l *links) close() error { return os.RemoveAll(l.dir) }

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
