package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/filesystem"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	codes "modernc.org/sqlite/lib"
)

// Open opens the store in the file at path, and verifies its schema. The
// directory must exist.
func Open(ctx context.Context, path string, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	if err := (sqlstore.Dangers{{Name: "network-fs"}, {Name: "async-commit"}}).Check(opts.Allow); err != nil {
		return nil, err
	}
	if path == "" {
		return nil, errors.New("path of the SQLite file is empty")
	}
	if path == ":memory:" || strings.HasPrefix(path, "file:") {
		return nil, fmt.Errorf("%s: a path is needed, of a file that other processes can open; for one process use the memory store", path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := admit(path, opts); err != nil {
		return nil, err
	}
	s := &Store{path: path, files: files{path: path}, async: slices.Contains(opts.Allow, "async-commit"), looks: opts.ReadOnly}
	s.Self, s.board.Path, s.board.NoMkdir = s, path, opts.ReadOnly
	if s.files.db, err = os.Stat(path); err != nil {
		return nil, err
	}
	s.names, s.beats, s.reads = sqlstore.NewPool(conns{s}, 1, 1), sqlstore.NewPool(conns{s}, 1, 1), sqlstore.NewPool(conns{s}, 1, 1)
	s.beats.Borrow(s.names, math.MaxInt)
	s.reads.Borrow(s.names, math.MaxInt)
	s.Names, s.Beats = newDialect(s, s.names.Use), newDialect(s, s.beats.UseIdle)
	err = s.read(ctx, s.names.Use, func(c *conn) error { return s.begin(ctx, c, opts) })
	if err != nil {
		s.Close()
		return nil, s.explain(err)
	}
	s.ours = true
	return s, nil
}

// begin creates what is missing, if opts allow it, and verifies that the file is ours.
func (s *Store) begin(ctx context.Context, c *conn, opts *Options) (err error) {
	if opts.ReadOnly {
		return errors.Join(c.verify(ctx), retry(ctx, c.plainText))
	}
	// Unless it may be made ours, the file is not touched until it is known to be ours.
	create := opts.Create
	if !create && opts.ifEmpty {
		if create, err = c.empty(ctx); err != nil {
			return err
		}
	}
	if !create {
		if err := c.verify(ctx); err != nil {
			return err
		}
	}
	if err := retry(ctx, c.plainText); err != nil {
		return err
	}
	if err := retry(ctx, c.writeAhead); err != nil {
		return err
	}
	if create {
		if err := c.migrate(ctx); err != nil {
			return err
		}
	}
	return s.adopt(ctx, c)
}

// creating keeps the creation of a file apart from its use: closing a descriptor
// of a file gives up all locks that this process has on it.
var creating sync.Mutex

// admit refuses a file that cannot be used for a store, and creates a missing one
// if asked. It never opens an existing file (see creating).
func admit(path string, opts *Options) error {
	dir := filepath.Dir(resolved(path))
	if !slices.Contains(opts.Allow, "network-fs") {
		if name := filesystem.Network(dir); name != "" {
			return &driver.DangerError{Danger: "network-fs", What: path + " is on " + name + ", where SQLite's locks cannot be trusted", Cure: "Use a local disk or the directory store"}
		}
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && (opts.Create || opts.ifEmpty) && !opts.ReadOnly {
		if err := create(path); !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err = os.Stat(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && opts.ReadOnly:
		return &driver.SchemaError{What: "open " + path + ": no such file", Cure: "nothing was ever locked there", Err: fs.ErrNotExist}
	case errors.Is(err, fs.ErrNotExist):
		return &driver.SchemaError{What: "open " + path + ": no such file", Cure: "create it with sqlite.Migrate or: holdfast schema apply", Err: fs.ErrNotExist}
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory, not a database", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a database: it is no regular file", path)
	}
	if err := oneName(path, info); err != nil {
		return err
	}
	if opts.ReadOnly {
		if err := filesystem.Readable(path); err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return nil
	}
	if err := filesystem.Writable(path); err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := filesystem.Writable(dir); err != nil {
		return fmt.Errorf("SQLite keeps its log beside the database: %w", &fs.PathError{Op: "write", Path: dir, Err: err})
	}
	return nil
}

func create(path string) error {
	creating.Lock()
	defer creating.Unlock()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// connect opens one more connection. It never creates the file. Once the file is
// known to be ours, connect puts right what another program has changed in it
// while none of our connections was open.
func (s *Store) connect(ctx context.Context) (c *conn, err error) {
	if s.ours { // what has taken its place is not touched
		if err := s.files.present(); err != nil {
			return nil, err
		}
	}
	if s.looks {
		return s.connectToLook(ctx)
	}
	c, err = s.dial(ctx, "mode=rw")
	if err != nil || !s.ours {
		return c, err
	}
	if err = retry(ctx, c.writeAhead); err == nil {
		err = s.adopt(ctx, c)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// dial opens a connection with some of SQLite's settings.
func (s *Store) dial(ctx context.Context, settings string) (c *conn, err error) {
	path := filepath.ToSlash(s.path)
	if runtime.GOOS == "windows" {
		path = "/" + path
	}
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: settings + "&_error_rc=1"}).String()
	err = retry(ctx, func() error {
		c, err = connect(dsn)
		return err
	})
	return c, err
}

// adopt verifies the schema, which makes the connection open the log, and keeps the connection.
func (s *Store) adopt(ctx context.Context, c *conn) error {
	if err := c.verify(ctx); err != nil {
		return err
	}
	return s.files.adopt(c)
}

// plainText refuses a file whose text is not in UTF-8: the view and the fence in
// SQL would take none of our records for text.
func (c *conn) plainText() error {
	encoding, err := c.one(`pragma encoding`)
	if err == nil && encoding != "UTF-8" {
		return fmt.Errorf("its text is in %s, and UTF-8 is needed: keep locks in a file of their own", encoding)
	}
	return err
}

// writeAhead makes sure that the file has a write-ahead log.
func (c *conn) writeAhead() error {
	mode, err := c.one(`pragma journal_mode = wal`)
	if err == nil && mode != "wal" {
		return fmt.Errorf("its journal mode is %s and cannot be changed to wal, which is needed", mode)
	}
	return err
}

// explain says what an error of SQLite means for this store.
func (s *Store) explain(err error) error {
	switch c := code(err); {
	case err == nil:
		return nil
	case c == codes.SQLITE_FULL, c == codes.SQLITE_IOERR && filesystem.Full(filepath.Dir(resolved(s.path))):
		return fmt.Errorf("%s: disk is full; nothing was changed: %w", s.path, err)
	case c == codes.SQLITE_NOTADB:
		return fmt.Errorf("%s is not a database: %w", s.path, err)
	case c == codes.SQLITE_CORRUPT:
		return fmt.Errorf("%s is damaged; restore it, or move it away and create it anew: %w", s.path, err)
	}
	if _, ok := errors.AsType[*otherFile](err); ok || err == driver.ErrClosed || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s: %w", s.path, err)
}
