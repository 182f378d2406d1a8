package directory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// swap makes one write.
func (s *Store) swap(ctx context.Context, w driver.Write, age func() func(int64) time.Duration) (driver.Outcome, error) {
	at := keyDir(w.Key)
	for {
		if err := ctx.Err(); err != nil {
			return driver.Outcome{}, err
		}
		f, err := s.look(ctx, w.Key)
		if err != nil {
			return driver.Outcome{}, err
		}
		if !f.letsFollow(w.Old) {
			defer f.close()
			return driver.Outcome{Record: f.record(age())}, nil
		}
		if f.dir == nil {
			if err := s.create(at, w.Key); err != nil {
				return driver.Outcome{}, err
			}
			continue
		}
		next, err := s.follow(ctx, f, w)
		f.close()
		if err != nil {
			return driver.Outcome{}, fmt.Errorf("%s %q: %w", w.Key.Space, w.Key.Name, err)
		}
		if next != nil {
			r := next.record(func(int64) time.Duration { return 0 })
			return driver.Outcome{Won: true, Record: r}, nil
		}
	}
}

func (f *found) letsFollow(old int64) bool {
	if old == driver.IfEmpty {
		return f.empty()
	}
	return old > 0 && f.version == old
}

// create makes the directory of a key that has none, with version 0 in it. It
// appears with one rename, which fails where another has been quicker.
func (s *Store) create(at string, k driver.Key) error {
	f := &found{at: at, marker: marker{nonce: rand.Text(), free: true}}
	f.head.setName(k.Name)
	text, err := encodeRecord(f.head, nil)
	if err != nil {
		return err
	}
	// It must never be seen without its marker and record. A disk of this host
	// keeps the order of names; another may not.
	apart := !s.local
	temporary := path.Join(scratch, f.nonce) // while it is there, nobody sweeps the record
	err = s.mkdir(temporary)
	if err == nil {
		_, err = s.write(f.recordOf(f.nonce), text, apart)
	}
	// A create that a file server carries out twice, since its first answer was
	// lost, could bring back a marker. So markers come from renames alone.
	blank := path.Join(temporary, look+"blank")
	if err == nil {
		_, err = s.write(blank, nil, apart)
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

// follow makes w follow the version that was found. It returns the new version,
// or nil if the one found was no longer the newest.
func (s *Store) follow(ctx context.Context, f *found, w driver.Write) (*found, error) {
	next := &found{at: f.at, dir: f.dir, marker: marker{nonce: rand.Text(), free: len(w.Value) == 0}, value: w.Value}
	floor := int64(0)
	if f.version == 0 {
		// The floor is read after version 0 was seen: it is above all that was here before.
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
	// The name of its marker says that a key is free: on a disk of this host, where
	// the order of names is kept, the record need not be there after a power cut.
	next.written, err = s.write(next.recordOf(next.nonce), text, !next.free || !s.local)
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
// can no longer happen.
func (s *Store) resolve(ctx context.Context, f, next *found, failed error) (*found, error) {
	if !s.local {
		s.refresh(f.at)
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
	// The marker that was to be renamed is gone for ever: by us, by another writer,
	// or by a sweep. A writer that follows us, and a sweep, would have removed our record.
	lost := s.exists(f.recordOf(next.nonce))
	if !lost && (now.version == 0 || now.head.Follows == 0) {
		floor, err := s.floor(ctx) // a sweep would also have raised it above us first
		lost = err == nil && floor < next.version
	}
	if !lost {
		return nil, failed
	}
	s.root.Remove(f.recordOf(next.nonce))
	return nil, nil
}

// write creates a file, and with onDisk syncs it to disk. It returns the time at
// which it was written, by the clock of whoever serves the files, in µs.
func (s *Store) write(name string, text []byte, onDisk bool) (written int64, err error) {
	f, err := s.newFile(name, os.O_WRONLY)
	if err != nil {
		return 0, err
	}
	defer f.Close()
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

// newFile creates a file with the directory's permissions, whatever the umask.
func (s *Store) newFile(name string, access int) (*os.File, error) {
	f, err := s.root.OpenFile(name, access|os.O_CREATE|os.O_EXCL, s.mode&0o666)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = s.share(info, f.Chown)
	}
	if err == nil && s.mode&0o066 != 0 {
		err = f.Chmod(s.mode & 0o666)
	}
	if err != nil {
		f.Close()
		s.root.Remove(name)
		return nil, err
	}
	return f, nil
}

// mkdir makes a directory with the permissions of ours, whatever the umask.
func (s *Store) mkdir(name string) error {
	if err := s.root.Mkdir(name, s.mode); err != nil {
		return err
	}
	info, err := s.root.Lstat(name)
	if err == nil {
		err = s.share(info, func(uid, gid int) error { return s.root.Lchown(name, uid, gid) })
	}
	if err == nil && s.mode&0o077 != 0 {
		err = s.root.Chmod(name, s.mode)
	}
	if err != nil {
		s.root.Remove(name)
	}
	return err
}

// share gives a new file the group of the directory if that group may use it, and the
// directory's owner if root has made the file. Without that, other users of the directory
// could not follow it. For a group that may only read, a refusal is ignored.
func (s *Store) share(made fs.FileInfo, chown func(uid, gid int) error) error {
	uid, gid := owner(s.is)
	ownUID, ownGID := owner(made)
	if ownUID == uid || os.Geteuid() != 0 {
		uid = -1
	}
	if uid < 0 && s.mode&0o020 == 0 {
		if ownGID != gid && s.mode&0o040 != 0 {
			chown(-1, gid)
		}
		return nil
	}
	if ownGID == gid {
		gid = -1
	}
	if uid < 0 && gid < 0 {
		return nil
	}
	if err := chown(uid, gid); err != nil {
		return fmt.Errorf("a new file in %s cannot be given the owner and group of that directory (%d:%d; -1: kept), so other users could not use it: %w", s.path, uid, gid, err)
	}
	return nil
}

// replace writes a file that is there whole or not at all.
func (s *Store) replace(name string, text []byte) error {
	temporary := path.Join(scratch, rand.Text())
	_, err := s.write(temporary, text, true)
	if err == nil {
		err = s.root.Rename(temporary, name)
	}
	if err != nil {
		s.root.Remove(temporary)
		return err
	}
	return syncDir(s.root, ".")
}
