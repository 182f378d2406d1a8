package directory

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
)

// Hints are lines that the writer appends to a file of each watcher:
//
//	wake/<whose hints it wants>.<random>
//
// The kernel tells the watcher of it (inotify), on the host whose disk it is,
// also of what came there over NFS. On other hosts nobody watches.

const (
	all      = "all"     // who wants every hint
	fullWake = 256 << 10 // a file that is longer is not read by anyone
	longWake = 32 << 10  // its watcher shortens it
)

// tell appends hints to the files of those they are for.
func (s *Store) tell(writes []driver.Write, outcomes []driver.Outcome) {
	var files []string
	for i, w := range writes {
		if w.Wake == "" || !outcomes[i].Won {
			continue
		}
		if files == nil {
			if files = s.wakeFiles(); len(files) == 0 {
				return
			}
		}
		for _, name := range files {
			who, _, _ := strings.Cut(name, ".")
			if who == all || w.Wake == driver.Everyone || who == wakeName(w.Wake) {
				s.append(path.Join(wakes, name), message(driver.Hint{Key: w.Key, Wake: w.Wake}))
			}
		}
	}
}

func (s *Store) wakeFiles() []string {
	names, _ := list(s.root, wakes)
	return names
}

func (s *Store) append(name string, line []byte) {
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_APPEND|nonblock, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Size() < fullWake {
		f.Write(line)
	}
}

// wakeName is what a Wake is called in a file's name.
func wakeName(wake string) string { return fmt.Sprintf("%x", wake) }

func message(h driver.Hint) []byte {
	return fmt.Appendf(nil, "%d %s %s\n", h.Space, strconv.Quote(h.Name), strconv.Quote(h.Wake))
}

// split takes whole lines apart, and returns what is left. A line that is none
// of ours tells that anything may have changed.
func split(text []byte) (hints []driver.Hint, rest []byte) {
	for {
		line, after, found := bytes.Cut(text, []byte{'\n'})
		if !found {
			return hints, text
		}
		text = after
		var h driver.Hint
		if _, err := fmt.Sscanf(string(line), "%d %q %q", &h.Space, &h.Name, &h.Wake); err != nil || h.Key.Check() != nil {
			h = driver.Hint{}
		}
		hints = append(hints, h)
	}
}
