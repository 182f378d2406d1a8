package sqlite

import (
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
)

// wakes tells watchers of changes: those of this store by a call, those of
// other processes by a named pipe each, in a directory beside the file.
type wakes struct {
	path string // of the database file

	mu       sync.Mutex
	watchers map[string]*watcher // by the name of its pipe
	listed   listing
}

// A watcher is a call of Watch that is under way.
type watcher struct {
	mu      sync.Mutex
	changed func(driver.Hint)
}

// call tells the watcher; calls do not overlap.
func (w *watcher) call(hints ...driver.Hint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range hints {
		w.changed(h)
	}
}

// tell tells everyone of writes, as well as it can.
func (w *wakes) tell(hints []driver.Hint) {
	if len(hints) == 0 {
		return
	}
	w.mu.Lock()
	own := make([]*watcher, 0, len(w.watchers))
	for _, watcher := range w.watchers {
		own = append(own, watcher)
	}
	w.mu.Unlock()
	for _, watcher := range own {
		watcher.call(hints...)
	}
	w.tellOthers(hints)
}

// message is a hint as it is sent through a pipe: its space, the length of its
// name, its name, and the same of whom it is for. It is short enough to be
// written whole or not at all.
func message(h driver.Hint) []byte {
	m := append([]byte{byte(h.Space), byte(len(h.Name))}, h.Name...)
	return append(append(m, byte(len(h.Wake))), h.Wake...)
}

// split cuts the messages out of what was read, and returns what is left of it.
// What is not a message means that anything may have changed.
func split(read []byte) (hints []driver.Hint, rest []byte) {
	for len(read) >= 2 {
		space, size := driver.Space(read[0]), int(read[1])
		if space > driver.Audits || size == 0 {
			return append(hints, driver.Hint{}), nil
		}
		if len(read) < 3+size || len(read) < 3+size+int(read[2+size]) {
			break
		}
		end := 3 + size + int(read[2+size])
		hints = append(hints, driver.Hint{Key: driver.Key{Space: space, Name: string(read[2 : 2+size])}, Wake: string(read[3+size : end])})
		read = read[end:]
	}
	return hints, read
}
