package memory

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
)

// maxHints is how many hints wait for a watcher that is slow. When there are
// more, one zero hint stands for all.
const maxHints = 1024

// Watch implements driver.Watcher. Hints that wait and are alike are told once.
func (s *Store) Watch(ctx context.Context, who []string, changed func(driver.Hint)) error {
	w := &watcher{who: who, news: make(chan struct{}, 1), waiting: map[driver.Hint]bool{}}
	s.mu.Lock()
	s.watchers[w] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()

	changed(driver.Hint{}) // what was written before is not told of
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.news:
		}
		for _, h := range w.take() {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			changed(h)
		}
	}
}

// A watcher holds what was not told yet. Adding to it never blocks.
type watcher struct {
	who  []string      // nil: all
	news chan struct{} // has room for one: there is something to take

	mu      sync.Mutex // guards all below
	hints   []driver.Hint
	waiting map[driver.Hint]bool // the same as a set
	all     bool                 // too many: anything may have changed
}

func (w *watcher) add(h driver.Hint) {
	if w.who != nil && h.Wake != driver.Everyone && !slices.Contains(w.who, h.Wake) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.all || w.waiting[h]:
		return
	case len(w.hints) == maxHints:
		w.hints, w.all = nil, true
		clear(w.waiting)
	default:
		w.hints = append(w.hints, h)
		w.waiting[h] = true
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []driver.Hint {
	w.mu.Lock()
	defer w.mu.Unlock()
	hints := w.hints
	if w.all {
		hints = []driver.Hint{{}}
	}
	w.hints, w.all = nil, false
	clear(w.waiting)
	return hints
}
