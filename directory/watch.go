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

// Notifications are lines that the writer appends to a file of each watcher:
//
//	wake/<whose notifications it wants>.<random>
//
// The kernel notifies the watcher (inotify) on the host whose disk it is, even of
// what came there over NFS. On other hosts nobody watches.

const (
	all      = "all"     // its watcher wants every notification
	fullWake = 256 << 10 // a longer file is not read by anyone
	longWake = 32 << 10  // the watcher shortens a longer file
)

// tell appends notifications to the files of the watchers that they are for.
func (s *Store) tell(writes []driver.Write, outcomes []driver.Outcome) {
	var files []string
	for i, w := range writes {
		if w.Notify == "" || !outcomes[i].Won {
			continue
		}
		if files == nil {
			if files = s.wakeFiles(); len(files) == 0 {
				return
			}
		}
		for _, name := range files {
			who, _, _ := strings.Cut(name, ".")
			if who == all || w.Notify == driver.Everyone || who == wakeName(w.Notify) {
				s.append(path.Join(wakes, name), message(driver.Notification{Key: w.Key, To: w.Notify}))
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

// wakeName is what the session to notify is called in a file's name.
func wakeName(wake string) string { return fmt.Sprintf("%x", wake) }

func message(h driver.Notification) []byte {
	return fmt.Appendf(nil, "%d %s %s\n", h.Space, strconv.Quote(h.Name), strconv.Quote(h.To))
}

// split takes whole lines apart, and returns what is left. A line that is not
// ours means that anything may have changed.
func split(text []byte) (notifications []driver.Notification, rest []byte) {
	for {
		line, after, found := bytes.Cut(text, []byte{'\n'})
		if !found {
			return notifications, text
		}
		text = after
		var h driver.Notification
		if _, err := fmt.Sscanf(string(line), "%d %q %q", &h.Space, &h.Name, &h.To); err != nil || h.Key.Check() != nil {
			h = driver.Notification{}
		}
		notifications = append(notifications, h)
	}
}
