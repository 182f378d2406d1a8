package clienttest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// takeoverHoles are about locks that are taken over, and what is on its way at that time.
var takeoverHoles = []holeCase{
	{
		name:  "live lock is not stolen",
		holes: "G1 H4",
		rule:  "a holder whose heartbeat comes after it was judged, and before it is declared dead, keeps its lock",
		need:  aged,
		runs: once(func(h *clients) {
			held, judge, way := h.misjudged(func() { time.Sleep(beat + time.Second) })
			var tombstones atomic.Int64
			before(way, wire.IsTombstone, func() { tombstones.Add(1) })
			h.refused(judge)
			if tombstones.Load() == 0 {
				h.Fatal("nobody was taken for dead")
			}
			time.Sleep(2 * holdfast.DefaultTTL)
			h.holds(held)
		}),
	},
	{
		name:  "stalled takeover",
		holes: "S2 H4",
		rule:  "a takeover that stalls while the holder goes on, and then continues, takes nothing from it",
		need:  aged,
		runs: once(func(h *clients) {
			held, judge, way := h.misjudged(func() {})
			tombstone := keep(way, wire.IsTombstone, 1)
			h.refused(judge)
			time.Sleep(beat + time.Second)
			tombstone.lose(h)
			time.Sleep(2 * holdfast.DefaultTTL)
			h.holds(held)
		}),
	},
	{
		name:  "release harms no stranger",
		holes: "G2",
		rule:  "a late release does not remove the present holder, whether its sender has repeated it or has died",
		runs: each(func(h *clients, dies bool) {
			a, way := h.join()
			b, _ := h.join()
			l := h.take(a, time.Second)
			n := 1
			if dies {
				n = always
			}
			release := keep(way, wire.IsClaim, n)
			ctx, cancel := context.WithTimeout(h.ctx, time.Second)
			defer cancel()
			if err := l.Release(ctx); (err != nil) != dies {
				h.Errorf("Release: %v", err)
			}
			way.Off.Store(dies)
			next := h.take(b, time.Minute)
			release.lose(h)
			h.holds(next)
		}, false, true),
	},
	{
		name:  "heartbeat of the dead",
		holes: "G3 S4",
		rule:  "a heartbeat that comes after its sender was declared dead refreshes nobody, also when its tombstone has gone",
		runs: once(func(h *clients) {
			a, way := h.join()
			b, _ := h.join()
			l := h.take(a, time.Second)
			beats := keep(way, wire.IsBeat, always)
			next := h.take(b, time.Minute)
			h.lost(l)
			beats.lose(h)
			rows := h.sweep()
			if r := h.load(beats.writes[0].Key); len(r.Value) > 0 || rows > 0 && r.Version != 0 {
				h.Fatalf("the tombstone is still there: %s", r.Value)
			}
			beats.lose(h)
			h.holds(next)
		}),
	},
	{
		name:  "takeover dies half-way",
		holes: "S1",
		rule:  "after a process that takes a lock over has died between its steps, the next goes on from there, at once",
		runs: once(func(h *clients) {
			h.halfTaken()
			c, _ := h.join()
			h.holds(h.try(c, "a"))
		}),
	},
	{
		name:  "nothing is left of a takeover",
		holes: "G5",
		rule:  "what is left of a takeover that died between its steps is swept",
		runs: once(func(h *clients) {
			h.halfTaken()
			h.sweep()
			for _, space := range []driver.Space{driver.Names, driver.Sessions} {
				if names := h.keys(space); len(names) > 0 {
					h.Errorf("left over: %s %q", space, names)
				}
			}
		}),
	},
	{
		name:  "removed twice",
		holes: "H6",
		rule:  "of two processes that find a holder dead one takes the lock, and what the other has sent takes away nothing of it",
		runs: once(func(h *clients) {
			a, wayA := h.join()
			b := h.client(0)
			c, wayC := h.join()
			l := h.take(a, time.Second)
			late := keep(wayC, func(w driver.Write) bool { return wire.IsTombstone(w) || follows(w) }, always)
			ctx, cancel := context.WithTimeout(h.ctx, time.Minute)
			defer cancel()
			gaveUp := h.askFor(ctx, c, "a")
			wayA.Off.Store(true)
			time.Sleep(holdfast.DefaultTTL + 5*time.Second)
			next := h.take(b, time.Minute)
			late.lose(h)
			h.holds(next)
			<-gaveUp
			time.Sleep(2 * holdfast.DefaultTTL)
			h.holds(next)
			h.lost(l)
		}),
	},
}

// misjudged returns a holder that beats, and a client that takes it for dead at its next
// look, since the store's clock, which measures ages, has leapt twice. looked is called
// between that look and what follows from it.
func (h *clients) misjudged(looked func()) (held *holdfast.Lock, judge *holdfast.Client, way *wire.Wire) {
	a, _ := h.join()
	judge, way = h.join()
	held = h.take(a, time.Second)
	way.SetAged(func(age time.Duration) time.Duration { return age + time.Hour })
	h.refused(judge) // and has asked it for a heartbeat
	way.SetLooked(func(k driver.Key) {
		if k.Space == driver.Sessions {
			way.SetAged(nil)
			way.SetLooked(nil)
			looked()
		}
	})
	return held, judge, way
}

// halfTaken is a lock whose holder has died. The process that declared it dead has died, too,
// while its claim was on the way to the store.
func (h *clients) halfTaken() (claim *late) {
	a, wayA := h.join()
	h.take(a, time.Second)
	wayA.Off.Store(true)
	time.Sleep(holdfast.DefaultTTL)
	b, wayB := h.join()
	wayB.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
		if wire.IsTombstone(writes[0]) {
			claim = keep(wayB, follows, always)
		}
		return send()
	})
	if _, err := b.TryAcquire(h.ctx, "a"); !errors.Is(err, faultstore.ErrFault) || claim == nil {
		h.Fatalf("it was not half taken over: %v", err)
	}
	wayB.Off.Store(true)
	return claim
}
