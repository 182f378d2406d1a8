package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-lock/holdfast/internal/filesystem"
	codes "modernc.org/sqlite/lib"
)

// Open opens the store in the file at path, and verifies its schema. The
// directory must exist.
func Open(ctx context.Context, path string, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	for _, danger := range opts.Allow {
		if danger != "network-fs" && danger != "async-commit" {
			return nil, fmt.Errorf("unknown danger %q to allow: network-fs, async-commit", danger)
		}
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
	s := &Store{path: path, async: slices.Contains(opts.Allow, "async-commit")}
	s.wakes.path = path
	if s.file, err = os.Stat(path); err != nil {
		return nil, err
	}
	s.names = newSlot(s.connect)
	s.beats = newSlot(s.connect)
	s.reads = newSlot(s.connect)
	err = s.names.use(ctx, func(c *conn) error {
		// A file that is not to be made ours is not touched before it is.
		if !opts.Create {
			if err := retry(ctx, c.verify); err != nil {
				return err
			}
		}
		if err := retry(ctx, c.plainText); err != nil {
			return err
		}
		if err := retry(ctx, c.writeAhead); err != nil || !opts.Create {
			return err
		}
		return c.migrate(ctx)
	})
	if err != nil {
		s.Close()
		return nil, s.explain(err)
	}
	s.ours = true
	return s, nil
}

// creating keeps the making of a file apart from its use: whoever closes a
// descriptor of a file gives up all locks that this process has on it.
var creating sync.Mutex

// admit refuses a file that cannot carry the store, and creates it if asked.
// It never opens a file that is there (see creating).
func admit(path string, opts *Options) error {
	dir := filepath.Dir(resolved(path))
	if !slices.Contains(opts.Allow, "network-fs") {
		if name := filesystem.Network(dir); name != "" {
			return fmt.Errorf(`%s is on %s, where SQLite's locks cannot be trusted: use a local disk or the directory store, or accept it with Allow "network-fs"`, path, name)
		}
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && opts.Create {
		if err := create(path); !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err = os.Stat(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &fs.PathError{Op: "open", Path: path, Err: missing{}}
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
	if err := writable(path); err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := writable(dir); err != nil {
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

// resolved is where a path leads to; SQLite keeps its log there.
func resolved(path string) string {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		return at
	}
	return path // there is nothing yet
}

// oneName refuses a file that could be open by another name as well. SQLite keeps
// its log, and the locks on it, beside the name: those who come by another see
// nothing of what these write, and both could be given one lock. A symbolic link is
// no such name, for SQLite follows it first.
func oneName(path string, info fs.FileInfo) error {
	if n := links(info); n > 1 {
		return fmt.Errorf("%s has %d names (hard links), and whoever opens it by another could get a lock that is held here: remove the others; a symbolic link may take their place", path, n)
	}
	if filesystem.Mounted(path) {
		return fmt.Errorf("%s is mounted as a single file, without the log that SQLite keeps beside it, and whoever opens it where it comes from could get a lock that is held here: mount its directory", path)
	}
	return nil
}

// missing says what to do about a file that is not there.
type missing struct{}

func (missing) Is(target error) bool { return target == fs.ErrNotExist }

func (missing) Error() string {
	return "no such file; create it with sqlite.Migrate or: holdfast schema apply"
}

// present tells that the file is still the one that was opened. Whoever goes on
// with a file that was removed or replaced would not meet those who have come
// since, and both would hold a lock.
func (s *Store) present() error {
	if runtime.GOOS == "windows" {
		return nil // where a file in use stays
	}
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(info, s.file):
		return fmt.Errorf("%s was removed or replaced while in use: open the store anew", s.path)
	case err != nil:
		return fmt.Errorf("whether it is still the same file cannot be seen: %w", err)
	}
	return nil
}

// connect opens one more connection. It never creates the file. Once the file is
// known to be ours the connection puts right what another program has changed in
// it while none of ours was open.
func (s *Store) connect(ctx context.Context) (c *conn, err error) {
	path := filepath.ToSlash(s.path)
	if runtime.GOOS == "windows" {
		path = "/" + path
	}
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: "mode=rw&_error_rc=1"}).String()
	err = retry(ctx, func() error {
		c, err = connect(dsn)
		return err
	})
	if err != nil || !s.ours {
		return c, err
	}
	if err = s.present(); err == nil { // it was this file that was opened
		err = retry(ctx, c.writeAhead)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// plainText refuses a file whose text is not in UTF-8: the view and the fence in
// SQL would take none of our records for text.
func (c *conn) plainText() error {
	encoding := ""
	err := c.query(`pragma encoding`, func(row []driver.Value) { encoding = text(row[0]) })
	if err == nil && encoding != "UTF-8" {
		return fmt.Errorf("its text is in %s, and UTF-8 is needed: keep locks in a file of their own", encoding)
	}
	return err
}

// writeAhead makes sure that the file has a write-ahead log.
func (c *conn) writeAhead() error {
	mode := ""
	err := c.query(`pragma journal_mode = wal`, func(row []driver.Value) { mode = text(row[0]) })
	if err == nil && mode != "wal" {
		return fmt.Errorf("its journal mode is %s and cannot be changed to wal, which is needed", mode)
	}
	return err
}

// explain says what an error of SQLite means for this store.
func (s *Store) explain(err error) error {
	switch c := code(err); {
	case c == codes.SQLITE_FULL, c == codes.SQLITE_IOERR && diskFull(filepath.Dir(resolved(s.path))):
		return fmt.Errorf("%s: disk is full; nothing was changed: %w", s.path, err)
	case c == codes.SQLITE_NOTADB:
		return fmt.Errorf("%s is not a database: %w", s.path, err)
	case c == codes.SQLITE_CORRUPT:
		return fmt.Errorf("%s is damaged; restore it, or move it away and create it anew: %w", s.path, err)
	}
	if err == errClosed || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s: %w", s.path, err)
}
