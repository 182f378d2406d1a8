package directory

import (
	"context"
	"crypto/rand"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/filesystem"
)

// Diagnose implements driver.Diagnoser. It writes a file, and removes it.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	return do(ctx, s, s.calls, func() ([]driver.Finding, error) { return s.diagnose(ctx) })
}

func (s *Store) diagnose(ctx context.Context) ([]driver.Finding, error) {
	var r driver.Findings
	if err := s.verify(); err != nil {
		return r, err
	}
	s.place(&r)
	s.durability(&r)
	s.fileTimes(&r)
	s.wakeUps(&r)
	return r, s.records(ctx, &r)
}

// place tells what file system the directory is on.
func (s *Store) place(r *driver.Findings) {
	switch network := filesystem.Network(s.path); {
	case filesystem.Overlay(s.path):
		r.Say(driver.Warning, "file system", "%s is seen through an overlay: the host and other containers have files of their own in its place, and could be given a lock that is held here; mount one directory into all that share locks", s.path)
	case s.local && filesystem.Volatile(s.path):
		r.Say(driver.Warning, "file system", "%s is in memory: after a restart of this host all is gone, and a token may repeat", s.path)
	case s.local:
		r.Say(driver.Good, "file system", "%s is on a disk of this host", s.path)
	case network == "nfs":
		r.Say(driver.Good, "file system", "%s is on nfs", s.path)
	case network != "":
		r.Say(driver.Warning, "file system", "%s is on %s: locks are safe there only if a rename is atomic for all hosts, which its documentation has to promise", s.path, network)
	default:
		r.Say(driver.Warning, "file system", "%s is on an unknown file system: locks are safe there only if a rename is atomic for all hosts", s.path)
	}
}

// durability writes a file.
func (s *Store) durability(r *driver.Findings) {
	began := time.Now()
	name := path.Join(scratch, rand.Text())
	_, err := s.write(name, []byte("a trial\n"), true)
	took := time.Since(began)
	s.root.Remove(name)
	if err == nil {
		err = syncDir(s.root, scratch)
	}
	switch {
	case s.mayNot(err):
		r.Say(driver.Good, "rights", "this user may read, and not write")
	case err != nil:
		r.Say(driver.Failure, "durability", "nothing can be written: %v", err)
	case s.local:
		r.Say(driver.Good, "durability", "a file is on disk after %s", took.Round(100*time.Microsecond))
	default:
		r.Say(driver.Good, "durability", "a file is on disk after %s, if its server tells the truth (NFS: exported with sync; with async locks are lost when it crashes)", took.Round(100*time.Microsecond))
	}
}

// fileTimes tells whose clock sets the times of files.
func (s *Store) fileTimes(r *driver.Findings) {
	if !s.timed {
		r.Say(driver.Warning, "clock", "each host may set the times of files by its own clock, so a process that comes late waits a whole TTL for a dead holder; if one clock sets them all, accept it: dir:…?allow=%s", FileTimes)
	} else if now, err := s.now(); err != nil {
		r.Say(driver.Warning, "clock", "the time of a file cannot be set, so a process that comes late waits a whole TTL for a dead holder: %v", err)
	} else if off := time.Until(time.UnixMicro(now)); off.Abs() > time.Second {
		r.Say(driver.Good, "clock", "that of the files is %s off ours, and nothing rests on ours", off.Round(time.Second))
	}
}

// wakeUps tells how soon waiters see a change.
func (s *Store) wakeUps(r *driver.Findings) {
	options := filesystem.Options(s.path)
	fresh := slices.Contains(options, "noac") || slices.Contains(options, "actimeo=0") || slices.Contains(options, "lookupcache=none") && slices.ContainsFunc(options, func(o string) bool {
		return o == "acdirmax=0" || o == "acdirmax=1"
	})
	switch {
	case s.local && watchable:
		r.Say(driver.Good, "notifications", "the kernel wakes waiters of this host")
	case filesystem.Network(s.path) == "nfs" && !fresh:
		r.Say(driver.Warning, "notifications", "waiters poll, and this mount (%s) may show them changes up to a minute late; safe, but slow: mount it with lookupcache=none,acdirmin=0,acdirmax=1, or noac", strings.Join(options, ","))
	default:
		r.Say(driver.Warning, "notifications", "waiters poll: a hand-over takes as long as another host's change needs to be seen")
	}
}

// records reads all records.
func (s *Store) records(ctx context.Context, r *driver.Findings) error {
	for _, space := range spaces {
		keys, _, err := s.spaceDir(space)
		if err != nil {
			return err
		}
		for _, at := range keys {
			f, err := s.lookAt(ctx, at)
			if err != nil {
				r.Say(driver.Failure, "records", "%v: nobody can use this name; restore the file, or if nobody holds it remove %s and the file", err, path.Join(s.path, at))
				continue
			}
			f.close()
		}
	}
	return nil
}
