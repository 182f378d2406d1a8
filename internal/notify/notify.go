// Package notify tells the processes of one host about changes in a file, by a named pipe for each
// that watches. The pipes are in a directory beside the file whose name has "-wake" at the end.
package notify

import (
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
)

// A Board notifies watchers of changes: its own by a call, those of other processes by their pipes.
type Board struct {
	Path    string // of the file
	NoMkdir bool   // the directory of pipes is not made

	mu       sync.Mutex
	watchers map[string]*watcher // by the name of its pipe
	listed   listing
}

// A watcher is a call of Watch that is under way.
type watcher struct {
	mu      sync.Mutex
	changed func(driver.Notification)
}

// call tells the watcher; calls do not overlap.
func (w *watcher) call(notifications ...driver.Notification) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range notifications {
		w.changed(h)
	}
}

// Tell notifies everyone, as well as it can.
func (b *Board) Tell(notifications []driver.Notification) {
	if len(notifications) == 0 {
		return
	}
	b.mu.Lock()
	own := make([]*watcher, 0, len(b.watchers))
	for _, watcher := range b.watchers {
		own = append(own, watcher)
	}
	b.mu.Unlock()
	for _, watcher := range own {
		watcher.call(notifications...)
	}
	b.tellOthers(notifications)
}

// message is a notification as it is sent through a pipe: its space, the length of its
// name, its name, and the length and name of its receiver. It is short enough to be
// written whole or not at all.
func message(h driver.Notification) []byte {
	if len(h.Name) > 255 {
		return []byte{0, 0} // does not fit: anything may have changed
	}
	m := append([]byte{byte(h.Space), byte(len(h.Name))}, h.Name...)
	return append(append(m, byte(len(h.To))), h.To...)
}

// split takes the messages out of what was read, and returns the rest. Bytes that
// are not a message mean that anything may have changed.
func split(read []byte) (notifications []driver.Notification, rest []byte) {
	for len(read) >= 2 {
		space, size := driver.Space(read[0]), int(read[1])
		if space > driver.Histories || size == 0 {
			return append(notifications, driver.Notification{}), nil
		}
		if len(read) < 3+size || len(read) < 3+size+int(read[2+size]) {
			break
		}
		end := 3 + size + int(read[2+size])
		notifications = append(notifications, driver.Notification{Key: driver.Key{Space: space, Name: string(read[2 : 2+size])}, To: string(read[3+size : end])})
		read = read[end:]
	}
	return notifications, read
}
