package sqlite

import (
	"sync"

	"github.com/holdfast-lock/holdfast"
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
	changed func(holdfast.Key)
}

// call tells the watcher; calls do not overlap.
func (w *watcher) call(keys ...holdfast.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range keys {
		w.changed(k)
	}
}

// tell tells everyone that the keys have changed, as well as it can.
func (w *wakes) tell(keys []holdfast.Key) {
	if len(keys) == 0 {
		return
	}
	w.mu.Lock()
	own := make([]*watcher, 0, len(w.watchers))
	for _, watcher := range w.watchers {
		own = append(own, watcher)
	}
	w.mu.Unlock()
	for _, watcher := range own {
		watcher.call(keys...)
	}
	w.tellOthers(keys)
}

// message is a key as it is sent through a pipe: its space, the length of its
// name, its name. It is short enough to be written whole or not at all.
func message(k holdfast.Key) []byte {
	return append([]byte{byte(k.Space), byte(len(k.Name))}, k.Name...)
}

// split cuts the messages out of what was read, and returns what is left of it.
// What is not a message means that anything may have changed.
func split(read []byte) (keys []holdfast.Key, rest []byte) {
	for len(read) >= 2 {
		space, size := holdfast.Space(read[0]), int(read[1])
		if space > holdfast.Audits || size == 0 {
			return append(keys, holdfast.Key{}), nil
		}
		if len(read) < 2+size {
			break
		}
		keys = append(keys, holdfast.Key{Space: space, Name: string(read[2 : 2+size])})
		read = read[2+size:]
	}
	return keys, read
}
