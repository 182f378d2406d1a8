package clienttest

import (
	"context"
	"encoding/json"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// clockHoles are about clocks.
var clockHoles = []holeCase{
	{
		name:  "clocks are wrong",
		holes: "G7 H14",
		rule:  "whatever clock is wrong, a holder that beats keeps its lock, and one that is dead does not",
		need:  aged,
		runs: each(underWrongClocks, storeLeaps(time.Hour), storeLeaps(-time.Hour),
			ownerIsAhead(time.Hour), ownerIsAhead(-time.Hour)),
	},
	{
		name:  "age of nothing",
		holes: "S13",
		rule:  "a heartbeat that is nothing old, or less, is not one that is too old",
		need:  aged,
		runs: each(func(h *clients, age time.Duration) {
			underWrongClocks(h, func(*clients) ages { return func(time.Duration) time.Duration { return age } })
		}, 0, -1, -time.Hour),
	},
	{
		name:  "margin",
		holes: "S9",
		rule:  "heartbeats may be lost for two thirds of the TTL, and then there is still a margin between the end of a holder and the next",
		runs: once(func(h *clients) {
			a, way := h.join()
			b, _ := h.join()
			l := h.take(a, time.Second)
			if trusted, most := time.Until(l.Deadline()), holdfast.DefaultTTL-holdfast.Margin(holdfast.DefaultTTL); trusted > most {
				h.Errorf("a lock is trusted for %v, want %v at most: a waiter counts the whole TTL, by another clock", trusted, most)
			}
			ended := endOf(l)
			queued := h.queue(1, b, "a")
			keep(way, wire.IsBeat, always)
			time.Sleep(2 * holdfast.DefaultTTL / 3)
			way.SetMeet(nil)
			time.Sleep(2 * holdfast.DefaultTTL)
			h.holds(l)
			way.Off.Store(true)
			h.holds(h.granted(queued, time.Minute))
			if margin := time.Since(<-ended); margin < holdfast.Margin(holdfast.DefaultTTL) {
				h.Errorf("another has the lock %v after its holder has let go, want %v at least", margin, holdfast.Margin(holdfast.DefaultTTL))
			}
		}),
	},
	{
		name:  "HasLock is current",
		holes: "S12",
		rule:  "HasLock goes by the clock, though no timer has run yet that would say so",
		runs: each(func(h *clients, _ int) {
			a, way := h.join()
			ctx, cancel := context.WithCancel(h.ctx)
			e := a.Election("a")
			returned := make(chan error, 1)
			go func() { returned <- e.Run(ctx, nil) }()
			time.Sleep(time.Second)
			way.Off.Store(true)
			l, leads := e.HasLock()
			if !leads {
				h.Fatal("it does not lead")
			}
			end := l.Deadline()
			time.Sleep(time.Until(end) - time.Nanosecond)
			if _, leads := e.HasLock(); !leads {
				h.Error("it does not lead before its time is over")
			}
			time.Sleep(time.Nanosecond)
			if _, leads := e.HasLock(); leads {
				h.Errorf("it leads by a lock that is trusted until %v, and it is %v", end, time.Now())
			}
			cancel()
			<-returned
		}, make([]int, 20)...), // which timer of one instant runs first is chance
	},
}

// ages returns what becomes of an age; nil: it stays the same.
type ages func(age time.Duration) time.Duration

// underWrongClocks puts clocks wrong. Then a holder beats for long while a client waits, and dies:
// it must keep its lock until then, and no longer.
func underWrongClocks(h *clients, wrong func(h *clients) ages) {
	a, wayA := h.join()
	b, wayB := h.join()
	c, wayC := h.join()
	l := h.take(a, time.Second)
	queued := h.queue(1, b, "a")
	time.Sleep(2 * time.Second)
	aged := wrong(h)
	wayB.SetAged(aged)
	wayC.SetAged(aged)
	for range 8 {
		h.refused(c) // a client that only asks once is no better a judge
		time.Sleep(holdfast.DefaultTTL / 2)
		h.holds(l)
	}
	wayA.Off.Store(true)
	h.holds(h.granted(queued, holdfast.DefaultTTL+2*time.Second))
	h.lost(l)
}

func storeLeaps(by time.Duration) func(*clients) ages {
	return func(*clients) ages {
		at := time.Now()
		return func(age time.Duration) time.Duration {
			if age > time.Since(at) { // it was written before
				age = max(0, age+by)
			}
			return age
		}
	}
}

func ownerIsAhead(by time.Duration) func(*clients) ages {
	return func(h *clients) ages {
		before := h.record("a")
		var rec map[string]any
		if err := json.Unmarshal(before.Value, &rec); err != nil {
			h.Fatal(err)
		}
		rec["holders"].([]any)[0].(map[string]any)["since"] = time.Now().Add(by).UnixMicro()
		value, err := json.Marshal(rec)
		if err != nil {
			h.Fatal(err)
		}
		h.write(driver.Names.Key("a"), before.Version, value)
		return nil
	}
}
