package memory

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
)

// maxPending is how many notifications wait for a watcher that is slow. When there are
// more, one zero notification stands for all.
const maxPending = 1024

// Watch implements driver.Watcher. Notifications that wait and are alike are sent once.
func (s *Store) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	w := &watcher{who: who, news: make(chan struct{}, 1), waiting: map[driver.Notification]bool{}}
	s.mu.Lock()
	s.watchers[w] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()

	changed(driver.Notification{}) // what was written before is not told of
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

// A watcher holds what has not been delivered yet. Adding to it never blocks.
type watcher struct {
	who  []string      // nil: all
	news chan struct{} // has room for one: there is something to take

	mu            sync.Mutex // guards all below
	notifications []driver.Notification
	waiting       map[driver.Notification]bool // the same as a set
	all           bool                         // too many: anything may have changed
}

func (w *watcher) add(h driver.Notification) {
	if w.who != nil && h.To != driver.Everyone && !slices.Contains(w.who, h.To) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.all || w.waiting[h]:
		return
	case len(w.notifications) == maxPending:
		w.notifications, w.all = nil, true
		clear(w.waiting)
	default:
		w.notifications = append(w.notifications, h)
		w.waiting[h] = true
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []driver.Notification {
	w.mu.Lock()
	defer w.mu.Unlock()
	notifications := w.notifications
	if w.all {
		notifications = []driver.Notification{{}}
	}
	w.notifications, w.all = nil, false
	clear(w.waiting)
	return notifications
}
