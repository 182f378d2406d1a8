package directory

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A found is the newest version of a key that could be read. A reader that can
// open a version's record knows that no later version had been reported to
// anyone before: the record goes first.
type found struct {
	marker
	at      string   // the key's directory
	dir     *os.Root // the same; nil: there is none
	head    header
	value   []byte
	written int64 // µs, by the clock of whoever serves the files
}

func (f *found) close() {
	if f.dir != nil {
		f.dir.Close()
	}
}

func (f *found) empty() bool { return len(f.value) == 0 }

func (f *found) record(age func(int64) time.Duration) driver.Record {
	if f.version == 0 {
		return driver.Record{}
	}
	r := driver.Record{Version: f.version, Age: age(f.written)}
	if len(f.value) > 0 {
		r.Value = f.value
	}
	return r
}

// gone says whether an error is that of a file that others have removed, from
// this kernel or from a network file system.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE)
}

// look reads the newest version of a key.
func (s *Store) look(ctx context.Context, k driver.Key) (*found, error) {
	f, err := s.lookAt(ctx, keyDir(k))
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", k.Space, k.Name, err)
	}
	if f.head.name() != "" && f.head.name() != k.Name {
		f.close()
		return nil, fmt.Errorf("%s %q: its directory %s is that of %q", k.Space, k.Name, keyDir(k), f.head.name())
	}
	return f, nil
}

func (s *Store) lookAt(ctx context.Context, at string) (*found, error) {
	for try := 0; ; try++ {
		f, err := s.lookOnce(at)
		switch {
		case err == nil && (f.dir != nil || s.local):
			return f, nil
		case err == nil:
			if absent, err := s.absent(at); absent || err != nil {
				return f, err
			}
		case !errors.Is(err, errMoved) && (s.local || !errors.Is(err, errDamaged) || try > 20):
			return nil, err
		case !s.local: // a listing is old
			s.refresh(at)
			s.refresh(path.Dir(at)) // where the records are
		}
		// Somebody has written between two looks, or what we see is old.
		if try > 3 {
			time.Sleep(min(time.Duration(try), 50) * time.Millisecond)
		}
		if late := ctx.Err(); late != nil {
			return nil, fmt.Errorf("%s: %w: %w", at, errMoved, late)
		}
		if try > 60 {
			return nil, fmt.Errorf("%s: %w", at, cmp.Or(err, errMoved))
		}
	}
}

// absent asks whoever serves the files whether a key has no directory. For a while
// this host may keep failing to find what it has once not found.
func (s *Store) absent(at string) (bool, error) {
	err := s.root.Mkdir(at, s.mode)
	if errors.Is(err, fs.ErrExist) || gone(err) {
		return false, nil
	}
	if s.mayNot(err) {
		return true, nil // as far as can be seen
	}
	if err != nil {
		return false, err
	}
	return s.root.Remove(at) == nil, nil // else another has put a directory in its place
}

// errMoved means to look again.
var errMoved = errors.New("the directory's listing and its files do not agree")

var errDamaged = errors.New("is damaged")

// lookOnce reads the newest version that the listing has.
func (s *Store) lookOnce(at string) (*found, error) {
	dir, err := s.root.OpenRoot(at)
	if errors.Is(err, fs.ErrNotExist) {
		return &found{at: at}, nil
	}
	if errors.Is(err, syscall.ESTALE) {
		return nil, errMoved
	}
	if err != nil {
		return nil, err
	}
	f := &found{at: at, dir: dir}
	if err := s.read(f); err != nil || f.nonce == "" {
		dir.Close()
		return &found{at: at}, err
	}
	return f, nil
}

// read fills in what is in f.dir. If that is no version, f has no nonce.
func (s *Store) read(f *found) error {
	names, err := list(f.dir, ".")
	if err != nil {
		return err
	}
	swept := ""
	for _, name := range names {
		if m, ok := parseMarker(name); ok && (f.nonce == "" || m.version > f.version) {
			f.marker = m
		}
		if strings.HasPrefix(name, "swept-") {
			swept = name
		}
	}
	if f.nonce == "" {
		return s.finishSweep(f, swept, names)
	}
	text, written, err := s.readFile(f.recordOf(f.nonce))
	if gone(err) {
		return errMoved
	}
	if err != nil {
		return err
	}
	f.written = written
	if f.version == 0 {
		return nil
	}
	f.head, f.value, err = decodeRecord(text)
	if err != nil && f.free && s.local {
		f.head, f.value = header{}, nil // see follow
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %w: %w", f.recordOf(f.nonce), errDamaged, err)
	}
	if s.exists(f.recordOf(f.head.Previous)) {
		return s.settle(f)
	}
	return nil
}

// finishSweep removes the directory of a key that is swept. A listing that was
// made during a rename may have no marker at all, so the only proof is the marker
// of a sweep, or that the directory can be removed.
func (s *Store) finishSweep(f *found, swept string, names []string) error {
	if swept != "" {
		// The record goes first, as when it is followed.
		if err := s.drop(f.recordOf(swept[strings.LastIndexByte(swept, '-')+1:])); s.mayNot(err) {
			return nil
		} else if err != nil {
			return err
		}
		if !s.local { // see resolve: a crash must not bring it back without its directory
			if err := syncDir(s.root, path.Dir(f.at)); err != nil {
				return err
			}
		}
		f.dir.Remove(swept)
	} else if slices.ContainsFunc(names, func(name string) bool { return !strings.HasPrefix(name, look) }) {
		return errMoved
	}
	for _, name := range names {
		if strings.HasPrefix(name, look) {
			f.dir.Remove(name)
		}
	}
	if err := s.root.Remove(f.at); err != nil && !gone(err) {
		return errMoved
	}
	return nil
}

// settle makes a version last: nobody may see it before it is on
// disk, nor while the version that it follows can still be read.
func (s *Store) settle(f *found) error {
	if err := syncDir(f.dir, "."); err != nil {
		return err
	}
	if f.head.Follows == 0 {
		if err := syncDir(s.root, path.Dir(f.at)); err != nil {
			return err
		}
	}
	err := s.drop(f.recordOf(f.head.Previous))
	if s.mayNot(err) {
		return nil
	}
	return err
}

// drop removes a record, so that nobody can read it any more. On a network file
// system a record that this host has open would only get another name, under which
// other hosts that knew it still find it: so it is emptied first.
func (s *Store) drop(record string) error {
	if !s.local {
		f, err := s.root.OpenFile(record, os.O_WRONLY|os.O_TRUNC|nonblock, 0)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if err := s.root.Remove(record); err != nil && !gone(err) {
		return err
	}
	return nil
}

// recordOf is where the record of a version of the key is.
func (f *found) recordOf(nonce string) string { return path.Join(path.Dir(f.at), "record-"+nonce) }

// exists says whether a record is there; see drop for those that are empty.
func (s *Store) exists(record string) bool {
	f, err := s.root.OpenFile(record, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return !gone(err)
	}
	defer f.Close()
	info, err := f.Stat()
	return err != nil || s.local || info.Size() > 0
}

// list names what is in a directory.
func list(root *os.Root, dir string) ([]string, error) {
	d, err := root.Open(dir)
	if err == nil {
		defer d.Close()
		var names []string
		if names, err = d.Readdirnames(-1); err == nil {
			return names, nil
		}
	}
	if gone(err) {
		return nil, errMoved
	}
	return nil, err
}

// readFile reads a regular file, and when it was written.
func (s *Store) readFile(name string) (text []byte, written int64, err error) {
	f, err := s.root.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > driver.MaxValue+4096 {
		return nil, 0, fmt.Errorf("%s %w: it is not a file of ours", name, errDamaged)
	}
	text, err = io.ReadAll(f)
	return text, info.ModTime().UnixMicro(), err
}

func syncDir(root *os.Root, name string) error {
	if !dirsSync {
		return nil
	}
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

const look = ".look-"

// refresh makes a network file system ask its server for a directory, as it does
// after changes of its own.
func (s *Store) refresh(dir string) {
	name := path.Join(dir, look+rand.Text())
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, s.mode&0o666)
	if err != nil {
		return
	}
	f.Close()
	s.root.Remove(name)
}
