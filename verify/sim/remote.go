package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A remote is a client of holds: it has no way to the store, and sends requests to the processes,
// which serve it as replicas of a server do. Its requests are lost, doubled and late, and so are
// the answers. It believes in a hold by its own clock alone: for 0.9·(d + TTL) from before it has
// sent the request, where d is what the replica says that it waited before it sent the beat. If the
// answer rests on no beat, it believes until the end that the replica says.
type remote struct {
	w    *world
	r    *rand.Rand
	name string
	rate float64 // of its clock
	life *life   // stands for it where holds are judged
}

// holdPrefix begins the ids of holds, which any process may write for.
const holdPrefix = "401dfa57401dfa57" // no session of a client begins like that

func isHold(session string) bool { return strings.HasPrefix(session, holdPrefix) }

// remoteClient uses holds until the time of faults is over.
func (w *world) remoteClient(nr int) {
	r := rand.New(rand.NewPCG(w.seed, 5000+uint64(nr)))
	c := &remote{w: w, r: r, name: fmt.Sprintf("r%d", nr), rate: 1 + w.plan.drift*float64(r.IntN(3)-1)}
	c.life = &life{w: w, name: c.name}
	for range w.plan.remoteOps {
		time.Sleep(time.Duration(r.Int64N(int64(w.plan.length) / int64(w.plan.remoteOps+1))))
		if w.isHealed() {
			return
		}
		c.operate()
	}
}

func (w *world) isHealed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.healed
}

// An answer is what a replica says of a hold.
type answer struct {
	hold  holdfast.Hold
	valid time.Duration
	err   error
}

// ask sends a request, which a replica serves with do, and waits for the first answer. It reports
// false if none comes in time.
func (c *remote) ask(what string, within time.Duration, do func(ctx context.Context, l *life) (holdfast.Hold, error)) (a answer, ok bool) {
	w, r := c.w, c.r
	healed := w.isHealed()
	copies := 1
	if !healed && r.Float64() < 0.3 {
		copies = 2
	}
	answers := make(chan answer, copies)
	for i := range copies {
		p := w.procs[r.IntN(len(w.procs))]
		there, back := time.Duration(r.Int64N(int64(10*time.Millisecond))), time.Duration(r.Int64N(int64(10*time.Millisecond)))
		lost, unanswered := false, false
		if !healed {
			lost, unanswered = r.Float64() < 0.1, r.Float64() < 0.1
			switch r.IntN(8) {
			case 0:
				there = time.Duration(r.Int64N(int64(2 * w.plan.maxTTL)))
			case 1:
				back = time.Duration(r.Int64N(int64(w.plan.maxTTL)))
			}
		}
		if lost {
			continue
		}
		w.writes.Go(func() {
			time.Sleep(there)
			w.mu.Lock()
			l := p.life
			w.mu.Unlock()
			if l == nil {
				return
			}
			received := l.edge.on.Now()
			h, err := do(l.ctx, l)
			now := l.edge.on.Now()
			a := answer{hold: h, err: err}
			switch {
			case !h.Beat.IsZero():
				a.valid = time.Duration(0.9 * float64(now-received-time.Since(h.Beat)+h.TTL))
			case !h.Ends.IsZero():
				a.valid = max(0, now-received+time.Until(h.Ends))
			}
			w.logf("%s %s of %s, copy %d: held %v, place %d, valid %v, %v", l.name, what, c.name, i, h.Held, h.Position, a.valid, err)
			w.mu.Lock()
			asleep := time.Until(l.woke)
			w.mu.Unlock()
			time.Sleep(max(asleep, 0) + back)
			if !unanswered && !l.crashed() {
				answers <- a
			}
		})
	}
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case a = <-answers:
		return a, true
	case <-t.C:
		return a, false
	}
}

// served bounds what a replica does for a request.
const served = 5 * time.Second

// operate takes a hold, uses it and gives it back.
func (c *remote) operate() {
	w, r := c.w, c.r
	req := holdfast.HoldRequest{ID: fmt.Sprintf("%s%016x", holdPrefix, r.Uint64()), Names: []string{w.name(r)}, TTL: w.ttlOfHold(r), Wait: r.IntN(3) > 0,
		Client: c.name, Owner: holdfast.Owner{Host: c.name}}
	if w.plan.sets && r.IntN(3) == 0 {
		req.Names = append(req.Names, w.name(r))
	}
	switch {
	case w.plan.shared && r.IntN(3) == 0:
		req.Shared = true
	case w.plan.slots && r.IntN(4) == 0:
		req.Slots = 2
	}
	if w.plan.alone && r.IntN(4) == 0 {
		req.For = holdfast.MinTTL + time.Duration(r.Int64N(int64(w.plan.maxTTL)))
	}
	asked := w.now()
	patience := asked + time.Duration(r.Int64N(int64(4*w.plan.maxTTL)))
	if r.IntN(2) == 0 {
		patience = asked + 10*time.Minute
	}
	for {
		sent, wait := w.now(), time.Duration(r.Int64N(int64(req.TTL)))
		a, ok := c.ask("enter", wait+req.TTL, func(ctx context.Context, l *life) (holdfast.Hold, error) { return c.enter(ctx, l, req, wait) })
		switch {
		case ok && a.err == nil && a.hold.Held:
			c.use(req, a, sent, asked)
			return
		case ok && (errors.Is(a.err, holdfast.ErrHeld) || errors.Is(a.err, holdfast.ErrLost)):
			if errors.Is(a.err, holdfast.ErrOtherHold) {
				w.broken("P7", "%s: %v", c.name, a.err)
			}
			return
		case w.now() > patience:
			c.leave(req)
			return
		case w.now() > w.plan.length+w.patience()-served:
			w.broken("P6", "%s still waits for %v", c.name, req.Names)
			return
		}
	}
}

// ttlOfHold draws one.
func (w *world) ttlOfHold(r *rand.Rand) time.Duration {
	return holdfast.MinTTL + time.Duration(r.Int64N(int64(w.plan.maxTTL-holdfast.MinTTL)+1)).Truncate(time.Millisecond)
}

// enter is what a replica does for a request that waits for so long.
func (c *remote) enter(ctx context.Context, l *life, req holdfast.HoldRequest, wait time.Duration) (holdfast.Hold, error) {
	one, cancel := context.WithTimeout(ctx, served)
	h, err := l.client.Enter(one, req)
	cancel()
	if err != nil || h.Held {
		return h, err
	}
	ctx, cancel = context.WithTimeout(ctx, wait)
	defer cancel()
	for next, err := range l.client.Follow(ctx, req.Client, req.ID) {
		if h = next; err != nil || h.Held {
			return h, err
		}
	}
	return h, nil
}

// use believes in a hold while its answers allow that, and then gives it back, or dies.
func (c *remote) use(req holdfast.HoldRequest, a answer, sent, asked time.Duration) {
	w, r := c.w, c.r
	until := func(a answer, sent time.Duration) time.Duration { return sent + time.Duration(float64(a.valid)/c.rate) }
	deadline := until(a, sent)
	begun, over := false, false
	var holds []*hold
	believe := func(h holdfast.Hold) {
		if begun || w.now() >= deadline {
			return
		}
		begun = true
		for _, cl := range h.Claims {
			o := &hold{life: c.life, ended: true}
			o.Hold = check.Hold{Name: cl.Name, Slots: cl.Slots, Token: cl.Token, Who: c.name + " " + req.ID[len(req.ID)-8:], Asked: asked, Granted: w.now(), Ended: deadline}
			w.mu.Lock()
			w.holds = append(w.holds, o)
			w.mu.Unlock()
			holds = append(holds, o)
		}
		w.logf("%s believes in %v until %v", c.name, h.Claims, deadline)
	}
	ends := func(at time.Duration, lost bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, o := range holds {
			o.Ended, o.Lost = min(o.Ended, at), lost
		}
	}
	believe(a.hold)
	work := w.now() + w.busy(r)
	dies := !w.isHealed() && r.IntN(8) == 0
	var counted *counter
	var before int64
	if begun && len(holds) == 1 && holds[0].Slots == 1 {
		counted, before = w.count(holds[0].Name)
	}
	for !over && w.now() < work && (!begun || w.now() < deadline) {
		left := deadline - w.now()
		pause := min(req.TTL/3, work-w.now())
		if left < req.TTL/2 {
			pause = min(pause, 100*time.Millisecond)
		}
		if begun {
			pause = min(pause, left)
		}
		time.Sleep(pause)
		if begun && w.now() >= deadline || w.now() >= work {
			break
		}
		sent := w.now()
		if req.For > 0 {
			if r.IntN(4) > 0 {
				continue
			}
			a, ok := c.ask("extend", req.TTL/3, func(ctx context.Context, l *life) (holdfast.Hold, error) {
				one, cancel := context.WithTimeout(ctx, served)
				defer cancel()
				return l.client.Extend(one, req.Client, req.ID, req.For)
			})
			c.renewed(a, ok, sent, &deadline, &over, begun, until)
		} else {
			a, ok := c.ask("beat", req.TTL/3, func(ctx context.Context, l *life) (holdfast.Hold, error) {
				one, cancel := context.WithTimeout(ctx, served)
				defer cancel()
				res, err := l.client.Beat(one, req.Client, req.ID)
				if err != nil {
					return holdfast.Hold{}, err
				}
				return res[0].Hold, res[0].Err
			})
			c.renewed(a, ok, sent, &deadline, &over, begun, until)
			if ok && a.err == nil && a.hold.Held {
				believe(a.hold)
			}
		}
		w.mu.Lock()
		for _, o := range holds {
			o.Ended = deadline
		}
		w.mu.Unlock()
		if !begun && w.now() >= deadline+2*req.TTL {
			break
		}
	}
	if begun && !over && w.now() < deadline {
		for _, o := range holds {
			w.write(o, 0)
		}
		if w.mu.Lock(); counted != nil && w.now() < deadline {
			counted.value, counted.adds = before+1, counted.adds+1
		}
		w.mu.Unlock()
	}
	ends(w.now(), dies)
	if dies {
		w.logf("%s dies", c.name)
		return
	}
	c.leave(req)
}

// renewed handles the answer to a beat: what has been lost stays so.
func (c *remote) renewed(a answer, ok bool, sent time.Duration, deadline *time.Duration, over *bool, begun bool, until func(answer, time.Duration) time.Duration) {
	switch {
	case begun && c.w.now() >= *deadline || !ok:
	case errors.Is(a.err, holdfast.ErrLost):
		*over = true
	case a.err == nil && a.hold.Held:
		*deadline = max(*deadline, until(a, sent))
	}
}

// leave gives a hold back, or leaves the line.
func (c *remote) leave(req holdfast.HoldRequest) {
	for range 5 {
		a, ok := c.ask("leave", req.TTL, func(ctx context.Context, l *life) (holdfast.Hold, error) {
			one, cancel := context.WithTimeout(ctx, served)
			defer cancel()
			return holdfast.Hold{}, l.client.Leave(one, req.Client, req.ID)
		})
		if ok && a.err == nil {
			return
		}
	}
}
