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

	"github.com/holdfast-lock/holdfast"
)

// A found is the newest version of a key that could be read. Who can open a
// version's record knows that no later version had been reported to anyone
// before: the record goes first.
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

func (f *found) record(age func(int64) time.Duration) holdfast.Record {
	if f.version == 0 {
		return holdfast.Record{}
	}
	r := holdfast.Record{Version: f.version, Age: age(f.written)}
	if len(f.value) > 0 {
		r.Value = f.value
	}
	return r
}

// gone are the errors of a file that others have removed: those of this kernel,
// and of a network file system.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE)
}

// look reads the newest version of a key.
func (s *Store) look(ctx context.Context, k holdfast.Key) (*found, error) {
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
			s.refresh(s.root, at)
			s.refresh(s.root, path.Dir(at)) // where the records are
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

// absent asks whoever serves the files whether a key has no directory. What this
// host has once not found it may go on not finding for a while.
func (s *Store) absent(at string) (bool, error) {
	err := s.root.Mkdir(at, s.mode)
	if errors.Is(err, fs.ErrExist) || gone(err) {
		return false, nil
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
	text, written, err := readFile(s.root, f.recordOf(f.nonce))
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
	if exists(s.root, f.recordOf(f.head.Previous)) {
		return s.settle(f)
	}
	return nil
}

// finishSweep removes the directory of a key that is swept. A listing that was
// made during a rename may have no marker at all: so only the marker of a sweep
// tells, or that the directory can be removed.
func (s *Store) finishSweep(f *found, swept string, names []string) error {
	if swept != "" {
		// The record goes first, as when it is followed.
		if err := s.drop(f.recordOf(swept[strings.LastIndexByte(swept, '-')+1:])); err != nil {
			return err
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

// settle makes a version last: it must not be told to anyone before it is on
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
	return s.drop(f.recordOf(f.head.Previous))
}

// drop removes a record, so that nobody can read it any more. On a network file
// system one that this host has open would only get another name, under which
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
func exists(root *os.Root, record string) bool {
	f, err := root.OpenFile(record, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return !gone(err)
	}
	defer f.Close()
	info, err := f.Stat()
	return err != nil || info.Size() > 0
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
func readFile(dir *os.Root, name string) (text []byte, written int64, err error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > holdfast.MaxValue+4096 {
		return nil, 0, fmt.Errorf("%s is not a file of ours", name)
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

// refresh has a network file system ask its server for a directory: it does so
// after changes of its own.
func (s *Store) refresh(root *os.Root, dir string) {
	name := path.Join(dir, look+rand.Text())
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, s.mode&0o666)
	if err != nil {
		return
	}
	f.Close()
	root.Remove(name)
}

// swap makes one write.
func (s *Store) swap(ctx context.Context, w holdfast.Write, age func() func(int64) time.Duration) (holdfast.Outcome, error) {
	at := keyDir(w.Key)
	for {
		if err := ctx.Err(); err != nil {
			return holdfast.Outcome{}, err
		}
		f, err := s.look(ctx, w.Key)
		if err != nil {
			return holdfast.Outcome{}, err
		}
		if !f.letsFollow(w.Old) {
			defer f.close()
			return holdfast.Outcome{Record: f.record(age())}, nil
		}
		if f.dir == nil {
			if err := s.create(at, w.Key); err != nil {
				return holdfast.Outcome{}, err
			}
			continue
		}
		next, err := s.follow(ctx, f, w)
		f.close()
		if err != nil {
			return holdfast.Outcome{}, fmt.Errorf("%s %q: %w", w.Key.Space, w.Key.Name, err)
		}
		if next != nil {
			r := next.record(func(int64) time.Duration { return 0 })
			return holdfast.Outcome{Won: true, Record: r}, nil
		}
	}
}

func (f *found) letsFollow(old int64) bool {
	if old == holdfast.IfEmpty {
		return f.empty()
	}
	return old > 0 && f.version == old
}

// create makes the directory of a key that has none, with version 0 in it: it
// comes with one rename, which fails where another has been quicker.
func (s *Store) create(at string, k holdfast.Key) error {
	f := &found{at: at, marker: marker{nonce: rand.Text(), free: true}}
	f.head.setName(k.Name)
	text, err := encodeRecord(f.head, nil)
	if err != nil {
		return err
	}
	// It must never be seen without its marker and record. A disk of ours keeps
	// the order of names; of another's we do not know.
	apart := !s.local
	temporary := path.Join(scratch, f.nonce) // while it is there, nobody sweeps the record
	err = s.mkdir(s.root, temporary)
	if err == nil {
		_, err = s.write(s.root, f.recordOf(f.nonce), text, apart)
	}
	// A create that a file server makes twice, since its first answer was lost,
	// could bring back a marker. So markers come from renames alone.
	blank := path.Join(temporary, look+"blank")
	if err == nil {
		_, err = s.write(s.root, blank, nil, apart)
	}
	if err == nil {
		marker := path.Join(temporary, f.marker.String())
		err = s.root.Rename(blank, marker)
		if _, there := s.root.Lstat(marker); there == nil {
			err = nil // only the answer was lost
		}
	}
	if err == nil && apart {
		err = errors.Join(syncDir(s.root, temporary), syncDir(s.root, path.Dir(at)))
	}
	if err == nil {
		if err = s.root.Rename(temporary, at); err == nil {
			return nil
		}
		if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) || gone(err) {
			err = nil // another's, or ours and the answer was lost: the next look tells
		}
	}
	if s.discard(temporary) {
		s.root.Remove(f.recordOf(f.nonce))
	}
	return err
}

// discard removes a directory that was not finished. If it has another name by
// now it is left alone.
func (s *Store) discard(dir string) bool {
	if s.root.Rename(dir, dir+discarded) != nil {
		return false
	}
	s.root.RemoveAll(dir + discarded)
	return true
}

const discarded = "-discarded"

// follow has w follow the version that was found. It returns the new version,
// or nil if that was no longer the newest.
func (s *Store) follow(ctx context.Context, f *found, w holdfast.Write) (*found, error) {
	next := &found{at: f.at, dir: f.dir, marker: marker{nonce: rand.Text(), free: len(w.Value) == 0}, value: w.Value}
	floor := int64(0)
	if f.version == 0 {
		// Read now, after version 0 was seen: it is above all that was here before.
		var err error
		if floor, err = s.floor(ctx); err != nil {
			return nil, err
		}
	}
	next.head = header{Follows: f.version, Previous: f.nonce}
	next.head.setName(w.Key.Name)
	text, err := encodeRecord(next.head, w.Value)
	if err != nil {
		return nil, err
	}
	// That a key is free is in the name of its marker: on a disk of ours, where
	// the order of names is kept, the record need not be there after a power cut.
	next.written, err = s.write(s.root, next.recordOf(next.nonce), text, !next.free || !s.local)
	if err == nil && !s.local {
		// The name of the record must not be lost when that of its version is kept.
		err = syncDir(s.root, path.Dir(f.at))
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.root.Remove(next.recordOf(next.nonce))
		return nil, err
	}
	next.version = max(f.version+1, floor+1, next.written)
	err = f.dir.Rename(f.marker.String(), next.marker.String())
	if err == nil {
		return next, s.settle(next)
	}
	return s.resolve(ctx, f, next, err)
}

// resolve finds out what became of a rename that has failed, or of which only
// the answer was lost. The record stays unless it is certain that the rename
// cannot come any more.
func (s *Store) resolve(ctx context.Context, f, next *found, failed error) (*found, error) {
	if !s.local {
		s.refresh(s.root, f.at)
	}
	now, err := s.lookAt(ctx, f.at)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	defer now.close()
	switch {
	case now.nonce == next.nonce || now.head.Previous == next.nonce:
		return next, nil // looking at it has settled it
	case s.local: // an error is an answer
		s.root.Remove(f.recordOf(next.nonce))
		if gone(failed) {
			return nil, nil
		}
		return nil, failed
	case now.nonce == f.nonce:
		return nil, failed // it may still come
	}
	// The marker that was to be renamed is gone for ever: by us, by another
	// writer, or by a sweep, which would have raised the floor above us first.
	lost := exists(s.root, f.recordOf(next.nonce)) // or who followed us would have removed it
	if now.version == 0 || now.head.Follows == 0 {
		floor, err := s.floor(ctx)
		lost = err == nil && floor < next.version
	}
	if !lost {
		return nil, failed
	}
	s.root.Remove(f.recordOf(next.nonce))
	return nil, nil
}

// write creates a file, and may have it on disk when it returns. It tells the
// time at which it was written, by the clock of whoever serves the files, in µs.
func (s *Store) write(dir *os.Root, name string, text []byte, onDisk bool) (written int64, err error) {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, s.mode&0o666)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if s.mode&0o066 != 0 { // whatever the umask
		if err := f.Chmod(s.mode & 0o666); err != nil {
			return 0, err
		}
	}
	if _, err := f.Write(text); err != nil {
		return 0, err
	}
	if onDisk {
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.ModTime().UnixMicro(), f.Close()
}

// mkdir makes a directory with the permissions of ours, whatever the umask.
func (s *Store) mkdir(root *os.Root, name string) error {
	if err := root.Mkdir(name, s.mode); err != nil {
		return err
	}
	if s.mode&0o077 != 0 {
		return root.Chmod(name, s.mode)
	}
	return nil
}

// replace writes a file that is there whole or not at all.
func (s *Store) replace(name string, text []byte) error {
	temporary := path.Join(scratch, rand.Text())
	_, err := s.write(s.root, temporary, text, true)
	if err == nil {
		err = s.root.Rename(temporary, name)
	}
	if err != nil {
		s.root.Remove(temporary)
		return err
	}
	return syncDir(s.root, ".")
}
