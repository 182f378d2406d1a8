package sim

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/state"
)

// A repository is what a state key stands for: two halves, which a writer changes
// one after the other, and a cache of what readers have made of them.
type repository struct {
	mu    sync.Mutex
	now   halves
	was   []halves          // all that it ever was, in order
	since []time.Duration   // when it became so
	cache map[string]halves // by key
}

// halves are equal when a write is whole.
type halves struct{ a, b int }

func (w *world) repository() *repository {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.repo == nil {
		w.repo = &repository{was: []halves{{}}, since: []time.Duration{0}, cache: map[string]halves{}}
	}
	return w.repo
}

// change makes one change, if the writer may still make it: it is alive, and its
// context has not ended at that instant.
func (r *repository) change(l *life, work context.Context, do func(*halves)) bool {
	if work.Err() != nil || l.crashed() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	do(&r.now)
	r.was, r.since = append(r.was, r.now), append(r.since, l.w.now())
	return true
}

// during says whether the repository ever was so between an instant and now.
func (r *repository) during(h halves, from time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.was) - 1; i >= 0; i-- {
		if r.was[i] == h {
			return true
		}
		if r.since[i] < from { // it was so when the call began, and no longer before
			return false
		}
	}
	return false
}

// useState writes, or reads by way of the cache, as the package state says that
// one should. What is read from the cache must be what stood there at some moment
// of the call.
func (l *life) useState(ctx context.Context, r *rand.Rand) {
	w := l.w
	repo := w.repository()
	s := state.On(l.client, "state")
	if r.IntN(3) == 0 {
		next, pause := r.IntN(1<<30), w.busy(r)
		err := s.Write(ctx, func(work context.Context) error {
			if repo.change(l, work, func(h *halves) { h.a = next }) {
				l.sleep(pause)
				repo.change(l, work, func(h *halves) { h.b = next })
			}
			return nil
		})
		w.logf("%s writes %d: %v", l.name, next, err)
		return
	}
	began, pause := w.now(), w.busy(r)/10
	ctx, cancel := context.WithTimeout(ctx, 2*w.plan.maxTTL) // a look is one call, which may hang
	defer cancel()
	before, err := s.Key(ctx)
	if err != nil {
		w.logf("%s asks for the key: %v", l.name, err)
		return
	}
	repo.mu.Lock()
	cached, ok := repo.cache[before.ID]
	got := repo.now
	repo.mu.Unlock()
	if ok && !before.Writing {
		w.logf("%s reads %v by key %s", l.name, cached, before.ID)
		if !repo.during(cached, began) {
			w.broken("K", "%s reads %v by key %s, which was not so since %v; it is %v", l.name, cached, before.ID, began, got)
		}
		return
	}
	a := got.a // a reader is no transaction either
	l.sleep(pause)
	repo.mu.Lock()
	b := repo.now.b
	repo.mu.Unlock()
	after, err := s.Key(ctx)
	if err != nil || before.Writing || after.Writing || !before.Equal(after) || l.crashed() {
		w.logf("%s does not cache by key %s: %v", l.name, before.ID, err)
		return
	}
	w.logf("%s caches %v by key %s", l.name, halves{a, b}, before.ID)
	repo.mu.Lock()
	repo.cache[before.ID] = halves{a, b}
	repo.mu.Unlock()
}
