package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// longestAlone is the longest that a hold without a process keeps a name, or one that keeps it
// shut for a time at least. To extend a hold doubles its time at most.
func (w *world) longestAlone() time.Duration {
	if !w.plan.alone && !w.plan.least {
		return 0
	}
	if w.plan.extends {
		return 6 * w.plan.maxTTL
	}
	return 4 * w.plan.maxTTL
}

// leaveAlone takes a lock that no process keeps: it is believed in until the time that
// AcquireFor has given, or until somebody gives it back by its token, whatever becomes of
// the process that took it.
func (l *life) leaveAlone(ctx context.Context, r *rand.Rand, name string, opts []holdfast.Option) {
	w, asked := l.w, l.w.now()
	d := holdfast.MinTTL + time.Duration(r.Int64N(int64(2*w.plan.maxTTL)))
	early, after := r.IntN(2) == 0, time.Duration(r.Int64N(int64(d)))
	claim, err := l.client.AcquireFor(ctx, name, d, opts...)
	if err != nil {
		w.logf("%s does not take %q for %v: %v", l.name, name, d, err)
		return
	}
	now := w.now()
	h := &hold{life: l, ended: true}
	h.Hold = check.Hold{Name: name, Slots: claim.Slots, Token: claim.Token, Who: l.name + " for " + d.String(), Asked: asked,
		Granted: now, Ended: now + time.Until(claim.Ends)}
	w.logf("%s has %q slots %d token %d alone for %v, until %v", l.name, name, h.Slots, h.Token, d, h.Ended)
	switch left := h.Ended - now; {
	case left < 0:
		h.Ended = now
	case left > d+10*time.Millisecond:
		w.broken("C2", "%s has %q for %v, and it ends in %v", l.name, name, d, left)
	case left < d-d/10-time.Second && !l.crashed() && w.plan.pauses+w.plan.sleeps+w.plan.partitions == 0 && w.plan.faults.Lose+w.plan.faults.LoseReply == 0:
		w.logf("%s: only %v are left of %v", l.name, left, d)
	}
	w.mu.Lock()
	w.holds = append(w.holds, h)
	w.mu.Unlock()
	if !early {
		if w.plan.extends {
			l.extend(h, d, after)
		}
		return
	}
	l.sleep(after)
	w.write(h, 0)
	w.mu.Lock()
	h.Ended = min(h.Ended, w.now())
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 1+time.Duration(r.Int64N(int64(w.plan.maxTTL))))
	defer cancel()
	w.logf("%s gives back %q by token %d: %v", l.name, name, h.Token, l.client.ReleaseToken(ctx, name, h.Token))
}

// extending is the key of a context of writes that extend a hold, and are no heartbeats.
type extending struct{}

// extend has a lock that no process keeps end d later than it would, if the store answers in time.
func (l *life) extend(h *hold, d, after time.Duration) {
	w := l.w
	l.sleep(after)
	asked := w.now()
	left := h.Ended - asked
	if left <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.plan.maxTTL)
	defer cancel()
	claim, err := l.client.ExtendToken(context.WithValue(ctx, extending{}, true), h.Name, h.Token, left+d)
	now := w.now()
	ends := now + time.Until(claim.Ends)
	w.logf("%s extends %q token %d by %v, until %v: %v", l.name, h.Name, h.Token, d, ends, err)
	switch {
	case err != nil || now >= h.Ended: // it is believed in for as long as before
	case ends > now+left+d+10*time.Millisecond:
		w.broken("C2", "%s extends %q to %v, and it ends in %v", l.name, h.Name, left+d, ends-now)
	default:
		w.mu.Lock()
		h.Ended = max(h.Ended, ends)
		w.mu.Unlock()
	}
}

// acquiredAt is the key of a context under which the client notes when a lock was granted.
type acquiredAt struct{}

// holdLeast takes a lock that keeps its name shut for a time at least, also when it is released
// at once or its process has died.
func (l *life) holdLeast(ctx context.Context, r *rand.Rand, name string, busy time.Duration, overrun bool, opts []holdfast.Option) {
	w, asked := l.w, l.w.now()
	d := holdfast.MinTTL + time.Duration(r.Int64N(int64(2*w.plan.maxTTL)))
	var granted time.Duration
	ctx = context.WithValue(ctx, acquiredAt{}, &granted)
	lock, err := l.client.Acquire(ctx, name, append(opts, holdfast.MinHold(d))...)
	if err != nil {
		w.logf("%s does not take %q for at least %v: %v", l.name, name, d, err)
		return
	}
	h := l.granted(lock, asked)
	w.logf("%s keeps %q for %v from %v on", l.name, name, d, granted)
	if !w.plan.breaks {
		sure := d - time.Duration(float64(d)*w.plan.drift) - min(w.plan.leap, holdfast.Margin(d))
		w.mu.Lock()
		h.Shut = granted + sure
		w.mu.Unlock()
	}
	h.use(lock.Context(), r, busy, overrun)
	h.release(r)
}

// tryOnce is a process of its own that asks once, uses what it gets, and ends.
func (l *life) tryOnce(ctx context.Context, r *rand.Rand, name string, busy time.Duration, opts []holdfast.Option) {
	w, asked := l.w, l.w.now()
	ttl := w.plan.ttls[l.p.nr]
	c := w.client(l.edge, l.p.nr, ttl)
	lock, err := c.TryAcquire(ctx, name, opts...)
	if err != nil {
		w.logf("%s asks once for %q: %v", l.name, name, err)
		if errors.Is(err, holdfast.ErrReleased) || errors.Is(err, holdfast.ErrLost) && !w.plan.breaks {
			w.broken("P7", "%s: a try ends with %v", l.name, err)
		}
	} else {
		h := l.granted(lock, asked)
		h.use(lock.Context(), r, busy, false)
		h.release(r)
	}
	w.logf("%s, that asked once, closes: %v", l.name, c.Close())
}
