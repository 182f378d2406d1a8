package clienttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// lossCases are about processes that die, or seem to.
var lossCases = []clientCase{
	{
		name: "silence",
		rule: "a holder that is cut off has lost its lock before another is granted it, and another has it after a TTL (P1, P2, P6)",
		run: func(h *clients) {
			holder, p := h.process(&holdfast.Options{TTL: shortTTL})
			l := h.acquire(holder, "a")
			work := l.Context()
			ended := endOf(l)
			queued := h.queue(1, h.client(longTTL), "a")
			p.Partition(true)
			cut := time.Now()
			next := h.grantedAt(queued, shortTTL+shortTTL/2+h.soon)
			if l.Err() == nil {
				h.Fatal("two believe that they hold it")
			}
			select {
			case at := <-ended:
				if !at.Before(next.at) {
					h.Errorf("the context of the first ended %v after the second had the lock", at.Sub(next.at))
				}
			case <-time.After(time.Second):
				h.Error("the context of the first goes on")
			}
			// Its last heartbeat was at most a third of a TTL before.
			if took := next.at.Sub(cut); took < shortTTL/2 || took > shortTTL+h.soon {
				h.Errorf("taken over after %v, with a TTL of %v", took, shortTTL)
			}
			h.is("the cause", context.Cause(work), holdfast.ErrLost)
			want := fmt.Sprintf(`"a" (token %d) lost: no heartbeat answered for `, l.Token())
			if got := l.Err().Error(); !strings.HasPrefix(got, want) {
				h.Errorf("Err is %q, want %s…", got, want)
			}
			if next.lock.Token() <= l.Token() {
				h.Errorf("token %d after %d", next.lock.Token(), l.Token())
			}
			p.Partition(false)
			for range 2 {
				h.is("Release of a lost lock", l.Release(h.ctx), holdfast.ErrLost)
			}
			if err := next.lock.Err(); err != nil || len(h.show("a").Holders) != 1 {
				h.Errorf("the release of a lost lock harmed the next: %v, %+v", err, h.show("a"))
			}
			_, err := h.record("a").Fence("a", l.Token(), 0)
			h.is("fence of the lost lock", err, holdfast.ErrLost)
			h.release(next.lock)
			h.eventually(shortTTL+h.soon, "the first may take it again", func() bool {
				again, err := holder.TryAcquire(h.ctx, "a")
				return err == nil && again.Release(h.ctx) == nil
			})
		},
	},
	{
		name: "dead in the queue",
		rule: "many dead ahead cost one TTL together, not one each (P6)",
		run: func(h *clients) {
			var processes []*faultstore.Process
			for i := range 5 {
				c, p := h.process(&holdfast.Options{TTL: midTTL}) // the first lives until the last is in line
				processes = append(processes, p)
				if i == 0 {
					h.acquire(c, "a")
				} else {
					h.queue(i, c, "a")
				}
			}
			queued := h.queue(5, h.client(longTTL), "a")
			for _, p := range processes {
				p.Crash()
			}
			h.release(h.granted(queued, midTTL+min(midTTL, h.soon)))
			h.free("a")
		},
	},
	{
		name: "come late",
		rule: "who comes after a death does not wait a whole TTL where the store's clock tells the age (P6)",
		run: func(h *clients) {
			holder, p := h.process(&holdfast.Options{TTL: midTTL})
			h.acquire(holder, "a")
			p.Crash()
			time.Sleep(midTTL)
			const poll = 1250 * time.Millisecond
			limit := midTTL/3 + poll + min(time.Second, h.soon)
			if busy.Stretch() > 1 { // a mark has to stand for half of it
				limit = midTTL/2 + poll + min(busy.Times(time.Second), h.soon)
			}
			if h.record("a").Age < 0 {
				limit = midTTL + poll + h.soon
			}
			h.release(h.granted(h.ask(h.client(longTTL), "a"), limit))
			h.free("a")
		},
	},
	{
		name: "tries find the dead",
		rule: "clients that only ask once, each for itself, do not stand before a dead holder for ever (P8)",
		need: aged,
		run: func(h *clients) {
			holder, p := h.process(&holdfast.Options{TTL: shortTTL})
			h.acquire(holder, "a")
			p.Crash()
			h.eventually(2*shortTTL+h.soon, "a try gets the lock", func() bool {
				c := h.open(h.store, &holdfast.Options{TTL: shortTTL})
				defer c.Close()
				l, err := c.TryAcquire(h.ctx, "a")
				if err != nil && !errors.Is(err, holdfast.ErrHeld) {
					h.Fatal(err)
				}
				time.Sleep(20 * time.Millisecond)
				return err == nil && l.Release(h.ctx) == nil
			})
			h.free("a")
		},
	},
	{
		name: "a try takes over",
		rule: "a try takes over from a holder that has been silent for its TTL in the same call: within half a TTL where the store's clock tells that, else within a TTL (P6)",
		run: func(h *clients) {
			holder, p := h.process(&holdfast.Options{TTL: midTTL})
			h.acquire(holder, "a", holdfast.Reason("backup"))
			c := h.client(midTTL)
			began := time.Now()
			_, err := c.TryAcquire(h.ctx, "a")
			h.is("a try while the holder lives", err, holdfast.ErrHeld)
			if took := time.Since(began); took > h.soon {
				h.Errorf("refused after %v", took)
			}
			want := fmt.Sprintf("TTL %v): backup", midTTL)
			if h.record("a").Age >= 0 {
				want = " ago, " + want
			}
			if !strings.Contains(err.Error(), want) {
				h.Errorf("the refusal is %q, want %q in it", err, want)
			}
			p.Crash()
			time.Sleep(midTTL)
			watch := midTTL
			if h.record("a").Age >= 0 {
				watch = midTTL / 2
			}
			began = time.Now()
			l, err := c.TryAcquire(h.ctx, "a")
			if took := time.Since(began); err != nil || took > watch+midTTL/8+min(busy.Times(time.Second), h.soon) {
				h.Fatalf("a try after the holder's death: %v after %v, want the lock within %v", err, took, watch)
			}
			h.release(l)
			h.free("a")
		},
	},
	{
		name: "suspicion",
		rule: "a holder that is late is marked, answers with a heartbeat, and keeps its lock",
		run: func(h *clients) {
			ttl := 2 * shortTTL // trusted for three quarters of it or more, marked after a half
			beats := make(chan time.Time, 100)
			holder, p := h.process(&holdfast.Options{TTL: ttl, Trace: &holdfast.Trace{
				Heartbeat: func(_ context.Context, e holdfast.Event) {
					if e.Err == nil {
						beats <- time.Now()
					}
				},
			}})
			l := h.acquire(holder, "a")
			queued := h.queue(1, h.client(longTTL), "a")
			<-beats
			<-beats
			p.Pause()
			var cl holdfast.Claim
			h.eventually(ttl, "the holder is suspected", func() bool { cl = h.show("a").Holders[0]; return cl.Suspected })
			p.Resume()
			if cl.SuspectedBy == "" || cl.BeatAge >= 0 && (cl.BeatAge < ttl/3 || cl.BeatAge > ttl) {
				h.Errorf("suspected by %q with a heartbeat %v old", cl.SuspectedBy, cl.BeatAge)
			}
			h.eventually(h.soon, "the mark is cleared", func() bool { return !h.show("a").Holders[0].Suspected })
			time.Sleep(ttl)
			if err := l.Err(); err != nil || len(queued) > 0 {
				h.Errorf("the holder answered and did not keep its lock: %v", err)
			}
			h.release(l)
			h.release(h.granted(queued, h.soon))
		},
	},
	{
		name: "a pause",
		rule: "a process that stood still for too long has lost its locks when it goes on, and says why (P2)",
		run: func(h *clients) {
			holder, p := h.process(&holdfast.Options{TTL: shortTTL})
			l := h.acquire(holder, "a")
			p.Pause()
			next := h.granted(h.ask(h.client(longTTL), "a"), shortTTL+shortTTL/2+h.soon)
			p.Resume()
			h.is("Err", l.Err(), holdfast.ErrLost)
			h.release(next)
			h.eventually(h.soon+shortTTL, "it goes on with a new session", func() bool {
				again, err := holder.TryAcquire(h.ctx, "a")
				return err == nil && again.Release(h.ctx) == nil
			})
			h.is("Err of the old lock", l.Err(), holdfast.ErrLost)
		},
	},
	{
		name: "sweep after crashes",
		rule: "Sweep leaves nothing of processes that crashed: no claims, no sessions, no rows (P8)",
		run: func(h *clients) {
			ttl := max(holdfast.MinTTL, shortTTL-500*time.Millisecond)
			var processes []*faultstore.Process
			var died []*holdfast.Client
			for i := range 3 {
				c, p := h.process(&holdfast.Options{TTL: ttl})
				processes, died = append(processes, p), append(died, c)
				h.acquire(c, fmt.Sprint("lock ", i))
				h.acquire(c, "shared", holdfast.Shared())
			}
			for i, c := range died {
				h.queue(i+1, c, "shared")
			}
			for _, p := range processes {
				p.Crash()
			}
			h.eventually(5*ttl+h.soon, "nothing is left", func() bool {
				if _, err := h.look().Sweep(h.ctx); err != nil {
					h.Fatal(err)
				}
				time.Sleep(50 * time.Millisecond)
				return len(h.keys(driver.Names))+len(h.keys(driver.Sessions)) == 0
			})
			h.release(h.acquire(h.client(longTTL), "shared"))
		},
	},
	{
		name: "lazy releases",
		rule: "a release that the database lost in a crash is found again by the session that lives",
		need: func(s driver.Store) bool { _, ok := s.(faultstore.Restorer); return ok },
		run: func(h *clients) {
			bus := faultstore.NewBus(h.store, 1, faultstore.Faults{})
			h.Cleanup(bus.Close)
			c := h.clientOf(bus.Process("holder"), &holdfast.Options{TTL: midTTL})
			keep := h.acquire(c, "kept")
			var names []string
			for i := range 20 {
				names = append(names, fmt.Sprint("lock ", i))
				h.release(h.acquire(c, names[i]))
				h.empty(names[i])
			}
			bus.CrashStore()
			if n := len(h.keys(driver.Names)); n < 2 {
				h.Fatalf("%d names hold something after the crash: it lost nothing", n)
			}
			for _, n := range names {
				h.eventually(midTTL, "what had been released is free", func() bool { return len(h.record(n).Value) == 0 })
			}
			if err := keep.Err(); err != nil {
				h.Errorf("what was held is not any more: %v", err)
			}
			h.release(keep)
		},
	},
}

func aged(s driver.Store) bool {
	k := driver.Key{Space: driver.Audits, Name: "has the store a clock"}
	o, err := s.CompareAndSwap(context.Background(), []driver.Write{{Key: k, Old: driver.IfEmpty}})
	return err == nil && o[0].Record.Age >= 0
}
