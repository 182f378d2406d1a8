package explore

import (
	"fmt"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

type act func(i int, what string, fault bool, f func(x *shell))

// Next calls emit with every world that can follow, and what leads to it.
func (s Setup) Next(w *World, emit func(what string, fault bool, v *World)) {
	act := func(i int, what string, fault bool, f func(x *shell)) {
		v := w.with(i)
		v.bad = ""
		x := &shell{Setup: s, w: v, i: i}
		if i >= 0 {
			x.c = v.Clients[i]
		}
		f(x)
		if v.bad == "" {
			v.bad = s.wrong(w, v)
		}
		emit(what, fault, v)
	}
	for i, c := range w.Clients {
		who := string(rune('A' + i))
		if c.Crashed && w.Restarts > 0 {
			act(i, who+" starts again", true, func(x *shell) { x.restart() })
		}
		if c.Gone || c.Alone {
			continue
		}
		s.writes(w, i, who, act)
		s.users(w, i, who, act)
		s.sets(w, i, who, act)
		s.shutdowns(w, i, who, act)
		for n := range c.Queues {
			s.reads(w, i, n, who, act)
		}
		s.time(w, i, who, act)
		if w.Crashes > 0 {
			act(i, who+" crashes", true, func(x *shell) {
				x.w.Crashes--
				x.retire()
				x.w.Clients[i].Crashed = true
			})
		}
	}
	s.surroundings(w, act)
	for k, o := range w.Late {
		act(-1, fmt.Sprintf("%c's late %s%s arrives (%d)", 'A'+o.From, o.Kind, s.of(o), k+1), true, func(x *shell) {
			o := x.w.Late[k]
			x.w.Late = slices.Delete(x.w.Late, k, k+1)
			x.w.apply(s, o)
		})
	}
	if !s.Still {
		act(-1, "a tick", false, func(x *shell) { x.w.Now += tick })
	}
}

// reads are the reads of a lock record: the load that a step asks for, and those of a client
// that polls, or that is woken by a notification, which may be late.
func (s Setup) reads(w *World, i, n int, who string, act act) {
	c, q := w.Clients[i], &w.Clients[i].Queues[n]
	if q.Out == core.Load {
		act(i, who+" loads"+s.called(n), false, func(x *shell) {
			x.at(n).q.Out = core.Idle
			x.perform(x.q.Name.Looked(x.lock().Record, x.lock().Version, x.w.Now, nil, x.env()))
			x.q.Name.Loaded(true, x.env())
			x.reconcile()
		})
	}
	_, v := q.Name.Record()
	for _, t := range w.Told {
		if t.To == i && t.Name == n && t.Version != v && (q.Name.Known() || !q.Reconciling) {
			act(i, who+" is notified"+s.called(n), false, func(x *shell) {
				load, eff := x.at(n).q.Name.SawStale(t.Record, t.Version, nil, x.env())
				if x.perform(eff); !load {
					x.enqueue()
				}
			})
		}
	}
	blocked := func() bool {
		return !q.Reconciling && q.Name.Waits() && q.Name.Blocked((&shell{Setup: s, w: w, i: i, c: c}).env())
	}
	if (q.Name.Waits() || q.Name.Known() && q.Write != nil) && (v != w.Locks[n].Version || q.Write != nil || blocked()) {
		act(i, who+" polls"+s.called(n), false, func(x *shell) {
			_, was := x.at(n).q.Name.Record()
			x.perform(x.q.Name.Saw(x.lock().Record, x.lock().Version, x.w.Now, x.env()))
			if _, now := x.q.Name.Record(); now != was || x.q.Name.Blocked(x.env()) {
				x.enqueue()
			}
		})
	}
}

// surroundings are what happens without the clients.
func (s Setup) surroundings(w *World, act act) {
	if w.Set < len(s.NewTTLs) {
		act(-1, fmt.Sprintf("the TTL of the store becomes %d", s.NewTTLs[w.Set]), false, func(x *shell) { x.w.Set++ })
	}
	if s.Leap > 0 && w.Leapt == 0 {
		act(-1, "the store's clock leaps", true, func(x *shell) { x.w.Leapt = tick / 4 * lease.Instant(s.Leap) })
	}
	for n := range w.Locks {
		if w.Losses > 0 && w.Locks[n].Before != nil {
			act(-1, "the store loses the last write"+s.called(n), true, func(x *shell) {
				x.w.Losses--
				x.w.Locks[n].lose()
			})
		}
	}
	s.breaker(w, act)
	s.sweeps(w, act)
}

// called is a name as the label of an action has it, if there are several names.
func (s Setup) called(name int) string {
	if s.names() == 1 {
		return ""
	}
	return fmt.Sprintf(" of %d", name)
}

// of is the name of a write as the label of an action has it.
func (s Setup) of(o *op) string {
	if o.Kind != ofName {
		return ""
	}
	return s.called(o.Name)
}

// writes are what can happen to the writes under way: one arrives, is answered, or never is.
func (s Setup) writes(w *World, i int, who string, act act) {
	c := w.Clients[i]
	for _, o := range slices.Concat(c.writes(), []*op{c.Beat, c.Verdict}) {
		if o == nil {
			continue
		}
		what := who + "'s " + o.Kind.String() + s.of(o)
		at := func(c *client) **op { return [...]**op{&c.Queues[o.Name].Write, &c.Beat, &c.Verdict}[o.Kind] }
		if !o.Applied {
			act(i, what+" arrives", false, func(x *shell) { *at(x.c) = x.w.apply(s, o) })
		} else {
			act(i, what+" is answered", false, func(x *shell) { *at(x.c) = nil; x.answer(o, false) })
		}
		if w.Ambiguous > 0 {
			act(i, what+" is never answered", true, func(x *shell) {
				x.w.Ambiguous--
				*at(x.c) = nil
				x.late(o)
				x.answer(o, true)
			})
		}
	}
}

// users are what the goroutines of a client do.
func (s Setup) users(w *World, i int, who string, act act) {
	if s.Sets != nil {
		return
	}
	for k, u := range w.Clients[i].Users {
		who := fmt.Sprintf("%s.%d", who, k)
		switch {
		case u.State == idle && u.Rounds > 0:
			act(i, who+" asks", false, func(x *shell) { x.request(k, false) })
		case u.State == waiting && w.Cancels > 0:
			act(i, who+" gives up", true, func(x *shell) {
				x.w.Cancels--
				_, was, eff := x.at(u.Name).q.Name.Cancel(u.Request, x.env())
				if !was {
					x.w.bad = "a goroutine that waits is not in line"
				}
				x.c.Users[k].end()
				x.perform(eff)
			})
		case u.State == holding:
			act(i, who+" releases", false, func(x *shell) { x.release(k) })
			if c := w.Clients[i]; i == 0 && s.Detach > 0 && c.Detached == 0 && c.Beat == nil {
				act(i, who+" leaves its hold alone", false, func(x *shell) {
					x.c.Session.Detach(ticks(s.Detach))
					x.c.Detached, x.c.Again = 1, true
				})
			}
		case u.State == stopping:
			act(i, who+" stops", false, func(x *shell) {
				x.w.Break.Stopped = x.w.Now
				x.release(k)
			})
		}
	}
}

func (x *shell) release(k int) {
	u := x.c.Users[k]
	nr, eff := x.at(u.Name).q.Name.Release(u.Token, x.env())
	v := &x.c.Users[k]
	if v.end(); nr != 0 {
		v.State, v.Claim = leaving, u.Claim
	}
	x.perform(eff)
}

// restart starts a crashed client again.
func (x *shell) restart() {
	x.w.Restarts--
	x.w.Clients[x.i] = x.anew(1)
}

// time is what passing time brings: heartbeats, the end of a window, observations of sessions.
func (s Setup) time(w *World, i int, who string, act act) {
	c := w.Clients[i]
	beat := func() { act(i, who+" sends a heartbeat", false, func(x *shell) { x.beat() }) }
	if s.Still {
		if c.Session != nil && c.Beat == nil && (c.Again || !c.Session.Opened() && c.Session.Opening() || c.unsettled()) {
			beat()
		}
		return
	}
	if c.Session != nil && c.Session.Opened() && !c.Session.Trusted(w.Now) {
		act(i, who+"'s window is over", false, func(x *shell) { x.lose("") })
	} else if c.Session != nil && c.Session.Opening() && c.Beat == nil && (c.Again || w.Now > c.Beaten) && s.busy(c) {
		if c.Session.TooLate(w.Now) {
			act(i, who+"'s session has not opened", false, func(x *shell) { x.lose("no answer") })
		} else {
			beat()
		}
	}
	for n, q := range c.Queues {
		if q.Timer != lease.Never && w.Now >= q.Timer {
			act(i, who+"'s timer fires"+s.called(n), false, func(x *shell) {
				x.at(n).q.Timer = lease.Never
				x.perform(x.q.Name.Tick(x.env()))
			})
		}
	}
	if c.Verdict != nil {
		return
	}
	seen := map[string]bool{}
	(&shell{Setup: s, w: w, i: i, c: c}).ahead(func(session string) {
		if !seen[session] {
			seen[session] = true
			act(i, who+" observes "+session, false, func(x *shell) { x.observe(session) })
		}
	})
}

// unsettled says whether a heartbeat has to find out what became of a claim.
func (c *client) unsettled() bool {
	return slices.ContainsFunc(c.Queues, func(q queue) bool { return q.Name.Ambiguous() || q.Name.Vanished() })
}

// wants says whether a goroutine has not had all that it wanted.
func (c *client) wants() bool {
	return slices.ContainsFunc(c.Users, func(u user) bool { return u.State != idle || u.Rounds > 0 }) ||
		slices.ContainsFunc(c.Sets, func(st set) bool { return st.State != setIdle || st.Rounds > 0 })
}

// busy says whether a client has business left.
func (s Setup) busy(c *client) bool {
	if c.unsettled() || slices.ContainsFunc(c.Queues, func(q queue) bool { return q.Reconciling || q.Write != nil }) {
		return true
	}
	return c.wants()
}
