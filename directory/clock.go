package directory

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"
	"time"
)

// A probe is a file of this store, whose time shows the clock of whoever serves
// the files.
type probe struct {
	mu   sync.Mutex
	name string
}

// now is the time by the clock of whoever serves the files. On a disk of this host that is our
// clock, for a store that only looks and may not set the time of a file.
func (s *Store) now() (int64, error) {
	now, err := s.probe.now(s)
	if s.mayNot(err) && s.local {
		return time.Now().UnixMicro(), nil
	}
	return now, err
}

// mayNot says that something may not be made or changed, and need not be: a store that only
// looks does without.
func (s *Store) mayNot(err error) bool {
	return s.looks && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS))
}

// now is the time by that clock, in microseconds since 1970.
func (p *probe) now(s *Store) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.name != "" {
		now, err := read(s.root, p.name)
		if !errors.Is(err, fs.ErrNotExist) {
			return now, err
		}
	}
	name := path.Join(scratch, "clock-"+rand.Text())
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, s.mode&0o666)
	if err != nil {
		return 0, err
	}
	f.Close()
	p.name = name
	return read(s.root, name)
}

func read(root *os.Root, name string) (int64, error) {
	if err := touch(root, name); err != nil {
		return 0, err
	}
	f, err := root.Open(name) // opening asks the server; a mere stat need not
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.ModTime().UnixMicro(), nil
}

func (p *probe) close(root *os.Root) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.name != "" {
		root.Remove(p.name)
		p.name = ""
	}
}

func (p *probe) file() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.name
}
