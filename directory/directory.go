package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/filesystem"
	"github.com/holdfast-lock/holdfast/internal/notify"
)

// A Store keeps records as files in a directory. It is a driver.Store,
// Watcher and Diagnoser, and safe for any number of goroutines.
//
// Ages are measured by the clock of whoever serves the files, never by ours; see
// New.
// Lazy makes no difference: there is no log that would carry an earlier write
// along.
type Store struct {
	path  string
	root  *os.Root
	is    fs.FileInfo // of root
	local bool        // only this kernel changes the files, and names reach the disk in order
	timed bool        // one clock gives all files their times
	looks bool        // nothing is written
	mode  fs.FileMode

	clock   clock.Remote
	watches notify.Watches

	probe probe
	names nameCache
	calls lane
	beats lane // of heartbeats, which wait behind nothing else
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Watcher   = (*Store)(nil)
	_ driver.Diagnoser = (*Store)(nil)
)

// What is in the directory.
const (
	about   = "holdfast.json" // says that it is ours
	scratch = "tmp"           // what is not finished
	wakes   = "wake"          // files of waiters on the host that has the disk
	floor   = "floor"         // in it a key: no version of a swept key is above its value
)

var spaces = [...]string{"names", "sessions", "settings", "audits", "histories"}

const formatVersion = 1

type aboutFile struct {
	Format int    `json:"holdfast_directory"`
	Text   string `json:"about"`
}

// Migrate prepares the directory at path, which has to exist, for New. It may be
// repeated, even while others use the directory. New files in it get the directory's own
// permissions and, where its group may write, its group; those of root get its owner.
func Migrate(path string) error {
	s, err := open(path)
	if err != nil {
		return err
	}
	defer s.root.Close()
	if err := s.verify(); err == nil || !errors.Is(err, errNotPrepared) {
		return err
	}
	for _, dir := range append([]string{scratch, wakes, floor}, spaces[:]...) {
		if err := s.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("prepare %s: %w", path, err)
		}
	}
	text, err := json.Marshal(aboutFile{formatVersion, "locks of Holdfast; names/record-* tell what is held"})
	if err == nil {
		err = s.replace(about, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("prepare %s: %w", path, err)
	}
	return s.verify()
}

// Verify compares what Migrate prepares with what is there.
func Verify(path string) error {
	s, err := open(path)
	if err != nil {
		return err
	}
	defer s.root.Close()
	return s.verify()
}

// FileTimes, given to New, accepts that the times of files are those of one
// clock, even where that is not known.
const FileTimes = "file-times"

// ReadOnly, given to New, is for a client with holdfast.Options.ReadOnly: the right to read is
// enough. Without the right to write it may show what is not on disk yet and, on a network file
// system, what is out of date.
const ReadOnly = "read-only"

// New opens the store in the directory at path. It refuses one that Migrate has
// not prepared, since that could be a mount point without its mount, and one that
// everyone may write to.
//
// On a disk of this host and on NFS one clock gives files their times, and
// records have ages. Elsewhere each host's clock may do so (Ceph, Lustre, GFS2):
// there records have no age, and a process that comes late watches the dead for a
// TTL, unless allow has FileTimes.
func New(path string, allow ...string) (*Store, error) {
	for _, danger := range allow {
		if danger != FileTimes && danger != ReadOnly {
			return nil, fmt.Errorf("directory: allow %q: %q is all that can be allowed", danger, FileTimes)
		}
	}
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := s.verify(); err != nil {
		s.root.Close()
		return nil, err
	}
	s.timed = s.local || filesystem.Network(s.path) == "nfs" || slices.Contains(allow, FileTimes)
	s.looks = slices.Contains(allow, ReadOnly)
	return s, nil
}

func open(path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0 {
		err = fmt.Errorf("%s can be changed by everyone: chmod o-w %s", path, path)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return &Store{path: path, root: root, is: info, local: filesystem.Local(path) == nil, mode: info.Mode().Perm(), calls: make(lane, 64), beats: make(lane, 8)}, nil
}

// here refuses to go on in a directory that others no longer find: the store that
// they see is another.
func (s *Store) here() error {
	is, err := os.Stat(s.path)
	if err == nil && !os.SameFile(is, s.is) {
		err = errors.New("another directory, or another file system, is in its place")
	}
	if err != nil {
		return fmt.Errorf("%s was removed, replaced or mounted over while in use, open the store anew: %w", s.path, err)
	}
	return nil
}

var errNotPrepared = errors.New("not prepared for Holdfast")

func (s *Store) verify() error {
	text, err := s.root.ReadFile(about)
	if errors.Is(err, fs.ErrNotExist) {
		return driver.NewSchemaError("if something is to be mounted there, mount it; else prepare it once, with directory.Migrate or: holdfast schema apply", "%s is %w (it has no %s)", s.path, errNotPrepared, about)
	}
	if err != nil {
		return err
	}
	var a aboutFile
	switch err := json.Unmarshal(text, &a); {
	case err != nil || a.Format < 1:
		return fmt.Errorf("%s was not written by Holdfast", filepath.Join(s.path, about))
	case a.Format > formatVersion:
		return fmt.Errorf("%s is version %d, newer than this program (%d): upgrade the program", s.path, a.Format, formatVersion)
	}
	for _, dir := range append([]string{scratch, wakes, floor}, spaces[:]...) {
		info, err := s.root.Lstat(dir)
		if err == nil && !info.IsDir() {
			err = fs.ErrNotExist
		}
		if errors.Is(err, fs.ErrNotExist) && dir == spaces[driver.Histories] {
			// The first version had none, and no lock rests on it.
			return driver.NewSchemaError("prepare it again, with directory.Migrate or: holdfast schema apply", "%s is %w (it has no %s)", s.path, errNotPrepared, dir)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s has lost its directory %s: nothing in it can be trusted", s.path, dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close ends what the store has opened. Calls under way fail or go on.
func (s *Store) Close() error {
	s.watches.Close()
	s.probe.close(s.root)
	return s.root.Close()
}

// Load implements driver.Store.
func (s *Store) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("directory: load: %w", err)
		}
	}
	keys = slices.Clone(keys)
	records, err := do(ctx, s, s.calls, func() ([]driver.Record, error) {
		records := make([]driver.Record, len(keys))
		age := s.ages()
		return records, each(len(keys), func(i int) error {
			f, err := s.look(ctx, keys[i])
			if err == nil {
				defer f.close()
				records[i] = f.record(age)
			}
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("directory: load: %w", err)
	}
	return records, nil
}

// CompareAndSwap implements driver.Store. The writes of a call are made side
// by side, each on its own.
func (s *Store) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	own := slices.Clone(writes) // a call that was given up may still use them
	seen := make(map[driver.Key]bool, len(own))
	l := s.beats
	for i, w := range own {
		if err := w.Check(); err != nil {
			return nil, fmt.Errorf("directory: compare and swap: %w", err)
		}
		if seen[w.Key] {
			return nil, fmt.Errorf("directory: compare and swap: two writes of %s %q", w.Key.Space, w.Key.Name)
		}
		seen[w.Key] = true
		own[i].Value = slices.Clone(w.Value)
		if w.Key.Space != driver.Sessions {
			l = s.calls
		}
	}
	outcomes, err := do(ctx, s, l, func() ([]driver.Outcome, error) {
		outcomes := make([]driver.Outcome, len(own))
		age := sync.OnceValue(s.ages)
		return outcomes, each(len(own), func(i int) (err error) {
			outcomes[i], err = s.swap(ctx, own[i], age)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("directory: compare and swap: %w", err)
	}
	s.tell(own, outcomes)
	return outcomes, nil
}

// A lane bounds how many calls are under way. A call on files can be neither
// cancelled nor limited in time: when its context ends it is left alone.
type lane chan struct{}

// do returns what call returns. A call that is left alone shares nothing with its caller.
func do[T any](ctx context.Context, s *Store, l lane, call func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case l <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	type result struct {
		got T
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-l }()
		var r result
		if r.err = s.here(); r.err == nil {
			r.got, r.err = call()
		}
		done <- r
	}()
	select {
	case r := <-done:
		if errors.Is(r.err, os.ErrClosed) { // s.root, by Close
			r.err = driver.ErrClosed
		}
		return r.got, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// each calls fn for 0 to n-1, some at the same time, so that their waits for the
// disk overlap.
func each(n int, fn func(i int) error) error {
	if n == 1 {
		return fn(0)
	}
	const width = 16
	errs := make([]error, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, width)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = fn(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// ages reads the clock of whoever serves the files, and returns a function that
// tells how long ago something was written, from its time by that clock; negative
// where it cannot tell.
func (s *Store) ages() func(written int64) time.Duration {
	if !s.timed {
		return func(int64) time.Duration { return -1 }
	}
	began := clock.Steady()
	now, err := s.now()
	if err != nil {
		return func(int64) time.Duration { return -1 }
	}
	return s.clock.Ages(now, began)
}
