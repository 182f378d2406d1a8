package memory

import (
	"context"
	"sync"

	"github.com/holdfast-lock/holdfast"
)

// maxHints is how many keys wait for a watcher that is slow. When there are
// more, one zero key stands for all.
const maxHints = 1024

// Watch implements holdfast.Watcher. Hints that wait are told once per key.
func (s *Store) Watch(ctx context.Context, changed func(holdfast.Key)) error {
	w := &watcher{news: make(chan struct{}, 1), waiting: map[holdfast.Key]bool{}}
	s.mu.Lock()
	s.watchers[w] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()

	changed(holdfast.Key{}) // what was written before is not told of
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.news:
		}
		for _, k := range w.take() {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			changed(k)
		}
	}
}

// A watcher holds what was not told yet. Adding to it never blocks.
type watcher struct {
	news chan struct{} // has room for one: there is something to take

	mu      sync.Mutex // guards all below
	keys    []holdfast.Key
	waiting map[holdfast.Key]bool // the same as a set
	all     bool                  // too many: anything may have changed
}

func (w *watcher) add(k holdfast.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.all || w.waiting[k]:
		return
	case len(w.keys) == maxHints:
		w.keys, w.all = nil, true
		clear(w.waiting)
	default:
		w.keys = append(w.keys, k)
		w.waiting[k] = true
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []holdfast.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := w.keys
	if w.all {
		keys = []holdfast.Key{{}}
	}
	w.keys, w.all = nil, false
	clear(w.waiting)
	return keys
}
