package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A hold is a lock that a worker was given.
type hold struct {
	check.Hold
	life  *life
	lock  *holdfast.Lock
	inSet bool // it ends with others, which may have been given back in order
	ended bool // guarded by w.mu
}

// granted notes a lock that was just returned, and watches its end.
func (l *life) granted(lock *holdfast.Lock, asked time.Duration) *hold {
	return l.grantedOf(lock, asked, false)
}

func (l *life) grantedOf(lock *holdfast.Lock, asked time.Duration, set bool) *hold {
	w := l.w
	h := &hold{life: l, lock: lock, inSet: set}
	h.Hold = check.Hold{Name: lock.Name(), Slots: lock.Slots(), Token: lock.Token(), Who: l.name, Asked: asked, Granted: w.now()}
	w.logf("%s has %q slots %d token %d until %v", l.name, h.Name, h.Slots, h.Token, time.Until(lock.Deadline()))
	believed, allowed := time.Until(lock.Deadline()), l.edge.left()
	err := lock.Err()
	if err == nil && believed > allowed {
		w.broken("C2", "%s believes in %q for %v, and its beats allow %v", l.name, h.Name, believed, allowed)
	}
	w.mu.Lock()
	w.holds = append(w.holds, h)
	if l.dead || err != nil {
		h.endLocked()
	}
	w.mu.Unlock()
	ctx := lock.Context()
	context.AfterFunc(ctx, func() {
		late := -l.edge.left()
		cause := context.Cause(ctx)
		w.mu.Lock()
		h.Lost = h.Lost || !h.ended && errors.Is(cause, holdfast.ErrLost) && !h.inSet
		w.mu.Unlock()
		h.end()
		w.logf("%s: %q token %d ends: %v", l.name, h.Name, h.Token, cause)
		if late > l.slack() && err == nil && errors.Is(cause, holdfast.ErrLost) && !l.crashed() {
			w.broken("C6", "%s was told of the loss of %q %v after its window had ended", l.name, h.Name, late)
		}
		if lock.Err() == nil {
			w.broken("C6", "%s: the context of %q has ended, and Err is nil", l.name, h.Name)
		}
	})
	return h
}

func (h *hold) end() {
	h.life.w.mu.Lock()
	defer h.life.w.mu.Unlock()
	h.endLocked()
}

func (h *hold) endLocked() {
	if !h.ended {
		h.ended, h.Ended = true, h.life.w.now()
	}
}

// good asks, as one does in front of an act, whether the lock is still held.
func (h *hold) good() bool {
	w := h.life.w
	err := h.lock.Err()
	w.mu.Lock()
	dead, ended := h.life.dead, h.ended
	w.mu.Unlock()
	switch {
	case dead:
		return false
	case err != nil:
		w.mu.Lock()
		h.Lost = h.Lost || !h.ended && errors.Is(err, holdfast.ErrLost) && !h.inSet
		h.endLocked()
		w.mu.Unlock()
		return false
	case ended:
		w.broken("C6", "%s: %q token %d was lost and is held again", h.life.name, h.Name, h.Token)
		return false
	case h.life.edge.left() <= 0:
		w.broken("C6", "%s: Err of %q token %d is nil %v after its window has ended", h.life.name, h.Name, h.Token, -h.life.edge.left())
	}
	return true
}

// release gives the lock back, and checks what that tells.
func (h *hold) release(r *rand.Rand) {
	w := h.life.w
	was := h.lock.Err()
	h.end()
	ctx, cancel := context.WithTimeout(context.Background(), 1+time.Duration(r.Int64N(int64(w.plan.maxTTL))))
	defer cancel()
	err := h.lock.Release(ctx)
	w.logf("%s releases %q token %d: %v", h.life.name, h.Name, h.Token, err)
	switch {
	case h.life.crashed():
	case errors.Is(was, holdfast.ErrLost) && !errors.Is(err, holdfast.ErrLost):
		w.broken("C6", "%s: %q was lost (%v), and Release says %v", h.life.name, h.Name, was, err)
	case h.lock.Err() == nil:
		w.broken("C6", "%s: %q is released, and Err is nil", h.life.name, h.Name)
	}
}

// use works under a lock for about as long as d.
func (h *hold) use(ctx context.Context, r *rand.Rand, d time.Duration, overrun bool) {
	w, l := h.life.w, h.life
	shared := h.Slots != 1
	if r.IntN(2) == 0 && h.good() {
		w.write(h, time.Duration(0))
	}
	if w.plan.labels {
		if err := h.lock.SetLabels(map[string]string{"token": strconv.FormatInt(h.Token, 10)}); err != nil && h.good() {
			w.broken("P7", "%s: the labels of %q, which is held, do not change: %v", l.name, h.Name, err)
		}
	}
	var c *counter
	var before int64
	if !shared && h.good() {
		c, before = w.count(h.Name)
	}
	if r.IntN(3) == 0 { // a write that was sent and is slow
		delay := time.Duration(r.Int64N(int64(w.plan.maxTTL)))
		w.writes.Go(func() { w.write(h, delay) })
		d += time.Millisecond
	}
	if overrun {
		l.sleep(d)
	} else {
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-l.ctx.Done():
		}
		t.Stop()
	}
	if c != nil && h.good() {
		w.mu.Lock()
		c.value, c.adds = before+1, c.adds+1
		w.mu.Unlock()
	}
	if overrun && !l.crashed() {
		w.write(h, 0) // without asking
	}
	w.read(l, h.Name)
}

// A counter is kept by read, pause and write, under exclusive locks only.
type counter struct{ value, adds int64 }

func (w *world) count(name string) (*counter, int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.counters[name]
	if c == nil {
		c = &counter{}
		w.counters[name] = c
	}
	return c, c.value
}

// A resource is a value behind a fence, twice: one that keeps the highest
// tokens, and one in the same database as the lock.
type resource struct {
	fence     holdfast.TokenGate
	last      int64
	value     [2]int64
	file, row []check.Access
}

func (w *world) resource(name string) *resource {
	r := w.resources[name]
	if r == nil {
		r = &resource{}
		w.resources[name] = r
	}
	return r
}

// write sends a fenced write that arrives after a delay.
func (w *world) write(h *hold, delay time.Duration) {
	w.mu.Lock()
	w.seq++
	call := w.seq
	w.mu.Unlock()
	time.Sleep(delay)

	w.mu.Lock()
	res := w.resource(h.Name)
	w.seq++
	a := check.Access{Client: int(w.seq), Call: call, Return: w.seq, Value: int64(w.seq), Token: h.Token, Shared: h.Slots != 1, Strict: true}
	a.Refused = res.fence.Admit(a.Token, a.Shared) != nil
	if !a.Refused {
		res.value[0] = a.Value
	}
	if len(res.file) < maxHistory {
		res.file = append(res.file, a)
	}
	w.mu.Unlock()

	var next int64
	w.fence(driver.Key{Space: driver.Names, Name: h.Name}, func(rec driver.Record) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		var err error
		next, err = rec.Fence(h.Name, a.Token, res.last)
		if a.Refused, a.Strict = err != nil, false; a.Refused {
			w.accessed(res, a)
		}
		return err == nil
	}, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		res.value[1], res.last = a.Value, next
		w.accessed(res, a)
	})
}

// accessed notes an access to the row behind a fence that ends now; w.mu is held.
func (w *world) accessed(res *resource, a check.Access) {
	w.seq++
	a.Return = w.seq
	if len(res.row) < maxHistory {
		res.row = append(res.row, a)
	}
}

// maxHistory bounds what porcupine has to search.
const maxHistory = 24

func (w *world) read(l *life, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	res := w.resource(name)
	w.seq++
	a := check.Access{Client: int(w.seq), Call: w.seq, Return: w.seq, Read: true, Value: res.value[0]}
	if len(res.file) < maxHistory {
		res.file = append(res.file, a)
	}
	a.Value = res.value[1]
	if len(res.row) < maxHistory {
		res.row = append(res.row, a)
	}
}
