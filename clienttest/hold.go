package clienttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// hold is a request for names under an id that ends in n.
func hold(n int, names ...string) holdfast.HoldRequest {
	return holdfast.HoldRequest{ID: fmt.Sprintf("%032x", n), Names: names, TTL: midTTL, Client: "ci", Owner: holdfast.Owner{Host: "runner", User: "ci"}, Labels: map[string]string{"job": "7"}}
}

// waits is the request of a hold that waits.
func waits(r holdfast.HoldRequest) holdfast.HoldRequest {
	r.Wait = true
	return r
}

// enter enters a hold, which has to succeed.
func (h *clients) enter(c *holdfast.Client, r holdfast.HoldRequest) holdfast.Hold {
	h.Helper()
	got, err := c.Enter(h.ctx, r)
	if err != nil {
		h.Fatal(err)
	}
	return got
}

// follow follows a hold until it is held, or over, and then until the end of the case.
func (h *clients) follow(c *holdfast.Client, id string) <-chan holdfast.HoldResult {
	ch := make(chan holdfast.HoldResult, 1)
	ctx, cancel := context.WithCancel(h.ctx)
	done := make(chan struct{})
	h.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		told := false
		for got, err := range c.Follow(ctx, "ci", id) {
			if !told && (got.Held || err != nil) {
				told = true
				ch <- holdfast.HoldResult{ID: id, Hold: got, Err: err}
			}
		}
	}()
	return ch
}

// followed waits until a hold that is followed has been granted.
func (h *clients) followed(ch <-chan holdfast.HoldResult, within time.Duration) holdfast.Hold {
	h.Helper()
	select {
	case r := <-ch:
		if r.Err != nil {
			h.Fatal(r.Err)
		}
		return r.Hold
	case <-time.After(within):
		h.Fatalf("the hold was not granted within %v: %+v", within, h.dump())
	}
	return holdfast.Hold{}
}

// ended checks how a hold has ended.
func (h *clients) ended(what string, err error, why holdfast.HoldEnd) {
	h.Helper()
	var over *holdfast.OverError
	if !errors.Is(err, holdfast.ErrLost) || !errors.As(err, &over) || over.Why != why {
		h.Errorf("%s: %v, want %s", what, err, why)
	}
}

// holdCases are about locks that no process keeps.
var holdCases = []clientCase{
	{
		name: "enter and leave",
		rule: "Enter of a free name is one call; the same again finds the same claim; Leave is one call, may be repeated, and is final",
		run: func(h *clients) {
			var writes, reads atomic.Int64
			a := h.clientOf(h.handle(), &holdfast.Options{Trace: &holdfast.Trace{StoreCall: func(_ context.Context, e holdfast.Event) {
				if e.Operation == "compare and swap" {
					writes.Add(1)
				} else {
					reads.Add(1)
				}
			}}})
			b := h.client(longTTL)
			calls := func(what string, want int64) {
				if w, r := writes.Swap(0), reads.Swap(0); w != want || r != 0 {
					h.Errorf("%s took %d writes and %d reads, want %d and none", what, w, r, want)
				}
			}
			first := h.enter(a, hold(1, "a"))
			calls("Enter", 1)
			if !first.Held || len(first.Claims) != 1 || first.Claims[0].Token <= 0 || first.TTL != midTTL || first.Beat.IsZero() || first.Position != 0 || first.Client != "ci" {
				h.Fatalf("the hold is %+v", first)
			}
			token := first.Claims[0].Token
			if _, err := h.record("a").Fence("a", token, 0); err != nil {
				h.Errorf("fence: %v", err)
			}
			if cl := h.show("a").Holders; len(cl) != 1 || cl[0].Token != token || cl[0].Owner.Host != "runner" || cl[0].Labels["job"] != "7" || time.Since(cl[0].Granted) > h.soon || cl[0].Dead {
				h.Errorf("shown as %+v", cl)
			}
			for _, c := range []*holdfast.Client{a, b} {
				again := h.enter(c, hold(1, "a"))
				if !again.Held || again.Claims[0].Token != token || !again.Beat.After(first.Beat) && !again.Beat.Equal(first.Beat) {
					h.Errorf("again it is %+v", again)
				}
			}
			writes.Store(0)
			reads.Store(0)
			if r, err := a.Beat(h.ctx, "ci", first.ID); err != nil || r[0].Err != nil || !r[0].Hold.Held || r[0].Hold.Claims[0].Token != token {
				h.Errorf("beat: %+v, %v", r, err)
			}
			queued := h.queue(1, b, "a")
			if err := a.Leave(h.ctx, "ci", first.ID); err != nil {
				h.Fatal(err)
			}
			l := h.granted(queued, h.soon)
			if l.Token() <= token {
				h.Errorf("token %d after %d", l.Token(), token)
			}
			for _, c := range []*holdfast.Client{a, b} {
				if err := c.Leave(h.ctx, "ci", first.ID); err != nil {
					h.Errorf("leave again: %v", err)
				}
				_, err := c.Enter(h.ctx, hold(1, "a"))
				h.ended("Enter after Leave", err, holdfast.HoldReleased)
				r, err := c.Beat(h.ctx, "", first.ID)
				if err != nil {
					h.Fatal(err)
				}
				h.ended("Beat after Leave", r[0].Err, holdfast.HoldReleased)
			}
			h.release(l)
			h.free("a")

			h.enter(a, hold(2, "b"))
			writes.Store(0)
			reads.Store(0)
			if err := a.Leave(h.ctx, "ci", hold(2).ID); err != nil {
				h.Fatal(err)
			}
			calls("Leave", 1)
			h.free("b")
		},
	},
	{
		name: "a hold that does not wait",
		rule: "Enter without Wait is ErrHeld and leaves nothing; an id serves one hold, of one principal; what is wrong is named",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			l := h.acquire(b, "a", holdfast.Reason("release 7"))
			before := h.keys(driver.Sessions)
			_, err := a.Enter(h.ctx, hold(1, "a"))
			var held *holdfast.HeldError
			if !errors.As(err, &held) || len(held.Holders) != 1 || held.Holders[0].Token != l.Token() || held.Holders[0].Reason != "release 7" || held.Self {
				h.Errorf("the error is %v", err)
			}
			_, err = a.Enter(h.ctx, hold(1, "0", "a", "z"))
			h.is("Enter of several", err, holdfast.ErrHeld)
			if after := h.keys(driver.Sessions); !slices.Equal(before, after) {
				h.Errorf("sessions %v, before %v", after, before)
			}
			h.free("0", "z")
			h.release(l)

			h.enter(a, hold(2, "a"))
			for _, c := range []*holdfast.Client{a, b} {
				for field, change := range map[string]func(*holdfast.HoldRequest){
					"names":  func(r *holdfast.HoldRequest) { r.Names = []string{"b"} },
					"mode":   func(r *holdfast.HoldRequest) { r.Shared = true },
					"client": func(r *holdfast.HoldRequest) { r.Client = "eve" },
				} {
					r := hold(2, "a")
					change(&r)
					_, err := c.Enter(h.ctx, r)
					var other *holdfast.OtherHoldError
					if !errors.As(err, &other) || other.Field != field {
						h.Errorf("Enter with another %s: %v", field, err)
					}
				}
				r, err := c.Beat(h.ctx, "eve", hold(2).ID)
				if err != nil {
					h.Fatal(err)
				}
				h.is("Beat of another principal", r[0].Err, holdfast.ErrOtherHold)
				h.is("Leave of another principal", c.Leave(h.ctx, "eve", hold(2).ID), holdfast.ErrOtherHold)
			}
			h.free("b")
			if cl := h.show("a").Holders; len(cl) != 1 {
				h.Errorf("held by %+v", cl)
			}
			if err := b.Leave(h.ctx, "ci", hold(2).ID); err != nil {
				h.Error(err)
			}
			h.free("a")

			for field, r := range map[string]holdfast.HoldRequest{
				"id": {ID: "x", Names: []string{"a"}}, "names": {ID: hold(3).ID}, "ttl": {ID: hold(3).ID, Names: []string{"a"}, TTL: 1},
				"for": {ID: hold(3).ID, Names: []string{"a"}, For: 1}, "slots": {ID: hold(3).ID, Names: []string{"a"}, Slots: -1},
				"reason": {ID: hold(3).ID, Names: []string{"a"}, Reason: strings.Repeat("x", 201)},
				"owner":  {ID: hold(3).ID, Names: []string{"a"}, Owner: holdfast.Owner{Host: strings.Repeat("x", 256)}},
			} {
				_, err := a.Enter(h.ctx, r)
				var bad *holdfast.RequestError
				if !errors.As(err, &bad) || bad.Field != field {
					h.Errorf("a wrong %s: %v", field, err)
				}
			}
			session := h.acquire(b, "c")
			id := h.show("c").Holders[0].Owner.Session
			r, err := a.Beat(h.ctx, "", id, hold(4).ID)
			if err != nil {
				h.Fatal(err)
			}
			h.is("Beat of a program's session", r[0].Err, holdfast.ErrOtherHold)
			h.ended("Beat of nothing", r[1].Err, holdfast.HoldUnknown)
			h.is("Leave of a program's session", a.Leave(h.ctx, "", id), holdfast.ErrOtherHold)
			h.release(session)
			if slices.Contains(h.keys(driver.Sessions), hold(4).ID) {
				h.Error("a beat has made a record")
			}
			if err := a.Leave(h.ctx, "ci", hold(4).ID); err != nil {
				h.Error(err)
			}
			_, err = b.Enter(h.ctx, hold(4, "c"))
			h.ended("Enter that a Leave has overtaken", err, holdfast.HoldReleased)
			h.free("c")
		},
	},
	{
		name: "holds and programs in one line",
		rule: "holds and goroutines wait in one queue, first come first served, whoever serves them",
		run: func(h *clients) {
			a, b, c := h.client(longTTL), h.client(longTTL), h.client(longTTL)
			l := h.acquire(a, "a")
			if got := h.enter(b, waits(hold(1, "a"))); got.Held || got.Position != 1 {
				h.Errorf("it is %+v", got)
			}
			queued := h.queue(2, h.client(longTTL), "a")
			if got := h.enter(c, waits(hold(2, "a"))); got.Position != 3 {
				h.Errorf("it is %+v", got)
			}
			one, two := h.follow(b, hold(1).ID), h.follow(c, hold(2).ID)
			token := l.Token()
			h.release(l)
			got := h.followed(one, h.soon)
			if got.Claims[0].Token <= token {
				h.Errorf("token %d after %d", got.Claims[0].Token, token)
			}
			token = got.Claims[0].Token
			if err := b.Leave(h.ctx, "ci", got.ID); err != nil {
				h.Fatal(err)
			}
			l = h.granted(queued, h.soon)
			if l.Token() <= token {
				h.Errorf("token %d after %d", l.Token(), token)
			}
			h.release(l)
			got = h.followed(two, h.soon)
			if err := a.Leave(h.ctx, "", got.ID); err != nil {
				h.Fatal(err)
			}
			h.free("a")
		},
	},
	{
		name: "break a hold",
		rule: "a hold that was broken is told with its next beat, which is not written; its claim goes when it leaves, with the audit entry, or a TTL after its last beat",
		run: func(h *clients) {
			ops := h.clientOf(h.handle(), &holdfast.Options{Owner: holdfast.Owner{User: "ops", Host: "bastion", PID: 1}})
			a := h.client(longTTL)
			for i, obeys := range []bool{true, false} {
				name := fmt.Sprint("a", i)
				got := h.enter(a, hold(i, name))
				queued := h.queue(1, h.client(longTTL), name)
				broken := make(chan error, 1)
				go func() { broken <- ops.Break(h.ctx, name, got.Claims[0].Token, "ticket 815") }()
				h.eventually(h.soon, "the hold is told that it is broken", func() bool {
					r, err := a.Beat(h.ctx, "ci", got.ID)
					if err != nil || r[0].Err == nil {
						time.Sleep(100 * time.Millisecond) // each beat is a write that the break may lose to
						return false
					}
					h.ended("Beat", r[0].Err, holdfast.HoldBroken)
					var over *holdfast.OverError
					if !errors.As(r[0].Err, &over) || over.Name != name || over.By.User != "ops" || !strings.Contains(over.Reason, "broken by ops@bastion (pid 1): ticket 815") {
						h.Errorf("the error is %v", r[0].Err)
					}
					return true
				})
				_, err := h.look().Enter(h.ctx, hold(i, name))
				h.ended("Enter", err, holdfast.HoldBroken)
				if len(h.show(name).Holders) != 1 || len(h.show(name).Waiters) != 1 {
					h.Error("it went before it has left")
				}
				if obeys {
					if err := h.look().Leave(h.ctx, "ci", got.ID); err != nil {
						h.Fatal(err)
					}
				}
				next := h.grantedAt(queued, midTTL+midTTL/2+h.soon)
				if err := <-broken; err != nil {
					h.Error(err)
				}
				h.release(next.lock)
				if b := h.show(name).Breaks; len(b) != 1 || b[0].Token != got.Claims[0].Token || b[0].By.User != "ops" || b[0].Was.Host != "runner" || b[0].Reason != "ticket 815" {
					h.Errorf("the audit says %+v", b)
				}
				_, err = a.Enter(h.ctx, hold(i, name))
				h.ended("Enter afterwards", err, holdfast.HoldBroken)
				h.free(name)
			}
		},
	},
	{
		name: "another client goes on with a hold",
		rule: "a client that is killed loses no hold and no place that it served: another one goes on with both",
		run: func(h *clients) {
			a, process := h.process(&holdfast.Options{TTL: longTTL})
			b := h.client(longTTL)
			got := h.enter(a, hold(1, "a"))
			h.enter(a, waits(hold(2, "a")))
			queued := h.queue(2, b, "a")
			h.enter(a, waits(hold(3, "a")))
			for _, id := range []string{got.ID, hold(2).ID, hold(3).ID} {
				h.follow(a, id)
			}
			process.Crash()
			r, err := b.Beat(h.ctx, "ci", got.ID, hold(2).ID, hold(3).ID)
			if err != nil {
				h.Fatal(err)
			}
			for i, place := range []int{0, 1, 3} {
				if r[i].Err != nil || r[i].Hold.Position != place || r[i].Hold.Held != (place == 0) {
					h.Errorf("hold %d goes on as %+v", i+1, r[i])
				}
			}
			if r[0].Hold.Claims[0].Token != got.Claims[0].Token {
				h.Errorf("its token is %d, and was %d", r[0].Hold.Claims[0].Token, got.Claims[0].Token)
			}
			two, three := h.follow(b, hold(2).ID), h.follow(b, hold(3).ID)
			if err := b.Leave(h.ctx, "ci", got.ID); err != nil {
				h.Fatal(err)
			}
			h.followed(two, h.soon)
			if err := b.Leave(h.ctx, "ci", hold(2).ID); err != nil {
				h.Fatal(err)
			}
			h.release(h.granted(queued, h.soon))
			h.followed(three, h.soon)
			if err := b.Leave(h.ctx, "ci", hold(3).ID); err != nil {
				h.Fatal(err)
			}
			h.free("a")
		},
	},
	{
		name: "a hold that is silent",
		rule: "a hold that is not renewed ends after its TTL, and not before; that is final",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			r := hold(1, "a")
			r.TTL = shortTTL
			got := h.enter(a, r)
			queued := h.queue(1, b, "a")
			next := h.grantedAt(queued, 2*shortTTL+h.soon)
			if silent := next.at.Sub(got.Beat); silent < shortTTL {
				h.Errorf("it was declared dead after %v", silent)
			}
			results, err := a.Beat(h.ctx, "ci", got.ID)
			if err != nil {
				h.Fatal(err)
			}
			h.ended("Beat", results[0].Err, holdfast.HoldDied)
			_, err = b.Enter(h.ctx, r)
			h.ended("Enter", err, holdfast.HoldDied)
			h.release(next.lock)

			dead := h.enter(a, holdfast.HoldRequest{ID: hold(2).ID, Names: []string{"b"}, TTL: shortTTL})
			one := h.enter(a, waits(hold(3, "b")))
			ch := h.follow(a, one.ID)
			if got := h.followed(ch, 2*shortTTL+h.soon); got.Beat.Before(dead.Beat) {
				h.Errorf("it rests on a beat of %v", got.Beat)
			}
			if err := a.Leave(h.ctx, "", one.ID); err != nil {
				h.Error(err)
			}
			h.free("a", "b")
		},
	},
	{
		name: "a hold of several names",
		rule: "a hold has all its names or none, waits for the lowest that it does not have, and keeps nothing above it",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			got := h.enter(a, hold(1, "c", "a", "b", "a"))
			if !got.Held || len(got.Claims) != 3 || !slices.Equal(got.Names, []string{"a", "b", "c"}) {
				h.Fatalf("it is %+v", got)
			}
			if again := h.enter(b, hold(1, "a", "b", "c")); !again.Held || again.Claims[2].Token != got.Claims[2].Token {
				h.Errorf("again it is %+v", again)
			}
			if err := b.Leave(h.ctx, "ci", got.ID); err != nil {
				h.Fatal(err)
			}
			h.free("a", "b", "c")

			l := h.acquire(a, "b")
			two := h.enter(b, waits(hold(2, "a", "b", "c")))
			if two.Held || two.Position != 1 || len(two.Claims) != 2 || len(h.show("a").Holders) != 1 {
				h.Errorf("it is %+v", two)
			}
			h.free("c")
			if cl := h.show("b").Waiters; len(cl) != 1 || cl[0].Collecting != "1 of 3" {
				h.Errorf("waiters %+v", cl)
			}
			ch := h.follow(a, two.ID)
			top := h.acquire(b, "c")
			h.release(l)
			h.waiting("c", 1)
			h.release(top)
			if two = h.followed(ch, h.soon); len(two.Claims) != 3 {
				h.Errorf("it is %+v", two)
			}
			if err := a.Leave(h.ctx, "ci", two.ID); err != nil {
				h.Fatal(err)
			}
			h.free("a", "b", "c")
		},
	},
	{
		name: "a hold for a time",
		rule: "for a hold with For nothing beats: it ends after that, not earlier, by Leave, or later if it is extended; who follows it gets its end and no beat",
		run: func(h *clients) {
			a, b := h.client(longTTL), h.client(longTTL)
			r := hold(1, "a")
			r.For = time.Second
			got := h.enter(a, r)
			if !got.Held || !got.Detached || got.Ends.Before(got.Beat.Add(r.For)) {
				h.Errorf("it is %+v", got)
			}
			if cl := h.show("a").Holders; len(cl) != 1 || !cl[0].Detached {
				h.Errorf("shown as %+v", cl)
			}
			for _, c := range []*holdfast.Client{a, b} {
				if seen := h.followed(h.follow(c, got.ID), h.soon); !seen.Detached || !seen.Beat.IsZero() || seen.Ends.After(got.Ends.Add(r.For/10)) {
					h.Errorf("followed, it is %+v, and it was %+v", seen, got)
				}
			}
			if again := h.enter(b, r); !again.Held || !again.Detached || again.Beat.IsZero() || again.Ends.Before(again.Beat.Add(r.For)) {
				h.Errorf("entered again, it is %+v", again)
			}
			if more, err := b.Extend(h.ctx, "ci", got.ID, time.Hour); err != nil || !more.Held || time.Until(more.Ends) < 59*time.Minute {
				h.Errorf("extended: %+v, %v", more, err)
			}
			if beaten, err := b.Beat(h.ctx, "ci", got.ID); err != nil || beaten[0].Err != nil || !beaten[0].Hold.Held || !beaten[0].Hold.Beat.IsZero() {
				h.Errorf("beaten: %+v, %v", beaten, err)
			}
			queued := h.queue(1, b, "a")
			if err := a.Leave(h.ctx, "ci", got.ID); err != nil {
				h.Fatal(err)
			}
			l := h.granted(queued, h.soon)

			r = waits(hold(2, "a"))
			r.For = time.Second
			if got = h.enter(a, r); got.Detached || got.Held {
				h.Errorf("it is %+v", got)
			}
			ch := h.follow(a, got.ID)
			h.release(l)
			if got = h.followed(ch, h.soon); !got.Detached {
				h.Errorf("it is %+v", got)
			}
			next := h.grantedAt(h.ask(b, "a"), 3*time.Second+h.soon)
			if held := next.at.Sub(got.Beat); held < r.For {
				h.Errorf("held for %v", held)
			}
			h.release(next.lock)
			h.free("a")
		},
	},
}
