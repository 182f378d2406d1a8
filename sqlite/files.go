package sqlite

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/holdfast-lock/holdfast/internal/filesystem"
)

// files are those of a store: the database, and the log and its index that SQLite
// keeps beside it as long as a connection is open. A later process opens whatever
// has these names then. A store that went on with files that were removed or
// replaced would not meet that process, and both could be given one lock.
type files struct {
	path string
	db   fs.FileInfo

	mu    sync.Mutex
	conns int     // open connections
	log   [2]file // that they use; without a name: none
	gone  error   // set once a file was found to be removed or replaced
}

// A file is what a name stood for when it was opened.
type file struct {
	name string
	is   fs.FileInfo
}

// An otherFile is the error of a file that was removed or replaced while in use.
type otherFile struct {
	name string
	err  error // why it is not known whether it was; nil: it was
}

func (e *otherFile) Error() string {
	if e.err != nil {
		return fmt.Sprintf("whether %s is still the same file cannot be seen: %v", e.name, e.err)
	}
	return e.name + " was removed or replaced while in use: open the store anew"
}

func (e *otherFile) Unwrap() error { return e.err }

// check verifies that the name still stands for the file that was opened.
func (f file) check() error {
	info, err := os.Stat(f.name)
	switch {
	case os.IsNotExist(err), err == nil && !os.SameFile(info, f.is):
		return &otherFile{name: f.name}
	case err != nil:
		return &otherFile{f.name, err}
	}
	return nil
}

// present verifies that all files are still those that the open connections use.
// Once they were not, it always fails.
func (f *files) present() error {
	if filesystem.KeptWhileOpen {
		return nil
	}
	f.mu.Lock()
	log, gone := f.log, f.gone
	f.mu.Unlock()
	if gone != nil {
		return gone
	}
	err := file{f.path, f.db}.check()
	for _, l := range log {
		if err == nil && l.name != "" {
			err = l.check()
		}
	}
	if other, ok := err.(*otherFile); ok && other.err == nil {
		f.mu.Lock()
		f.gone = err
		f.mu.Unlock()
	}
	return err
}

// adopt keeps a connection that has read the file. The first connection finds the
// log, and those that come while one is open share it.
func (f *files) adopt(c *conn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns == 0 {
		var log [2]file
		for i, end := range []string{"-wal", "-shm"} {
			name := resolved(f.path) + end
			is, err := os.Stat(name)
			if err != nil {
				return &otherFile{name, err}
			}
			log[i] = file{name, is}
		}
		if !filesystem.Opened(log[1].is) {
			return fmt.Errorf("%s: the log was removed while in use, and a connection of this program still has it: close all of them", f.path)
		}
		f.log = log
	}
	f.conns++
	c.left = f.leave
	return nil
}

// leave is called before a connection is closed: the last one takes the log away,
// and the next will find another.
func (f *files) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns--; f.conns == 0 {
		f.log = [2]file{}
	}
}

// resolved is where a path leads to; SQLite keeps its log there.
func resolved(path string) string {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		return at
	}
	return path // there is nothing yet
}

// oneName refuses a file that could be open by another name as well. SQLite keeps
// its log, and the locks on it, beside the name: a process that opens it by another
// name sees nothing of what is written here, and both could be given one lock. A
// symbolic link is no such name, for SQLite follows it first.
func oneName(path string, info fs.FileInfo) error {
	if n := filesystem.Links(info); n > 1 {
		return fmt.Errorf("%s has %d names (hard links), and whoever opens it by another could get a lock that is held here: remove the others; a symbolic link may take their place", path, n)
	}
	if filesystem.Mounted(path) {
		return fmt.Errorf("%s is mounted as a single file, without the log that SQLite keeps beside it, and whoever opens it where it comes from could get a lock that is held here: mount its directory", path)
	}
	return nil
}
