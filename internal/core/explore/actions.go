package explore

import (
	"fmt"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core"
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
		if c.Out == core.Load {
			act(i, who+" loads", false, func(x *shell) {
				x.c.Out = core.Idle
				x.perform(x.c.Name.Looked(x.w.Lock, x.w.LockV, x.w.Now, nil, x.env()))
				x.c.Name.Loaded(true, x.env())
				x.reconcile()
			})
		}
		s.polls(w, i, who, act)
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
	for k := range w.Late {
		act(-1, fmt.Sprintf("%c's late %s arrives (%d)", 'A'+w.Late[k].From, w.Late[k].Kind, k+1), true, func(x *shell) {
			o := x.w.Late[k]
			x.w.Late = slices.Delete(x.w.Late, k, k+1)
			x.w.apply(s, o)
		})
	}
	if !s.Still {
		act(-1, "a tick", false, func(x *shell) { x.w.Now += tick })
	}
}

// polls are looks at the record of a client that waits, or that a notification, which may be
// late, wakes up.
func (s Setup) polls(w *World, i int, who string, act act) {
	c := w.Clients[i]
	_, v := c.Name.Record()
	blocked := func() bool {
		return !c.Reconciling && c.Name.Waits() && c.Name.Blocked((&shell{Setup: s, w: w, i: i, c: c}).env())
	}
	if (c.Name.Waits() || c.Name.Known() && c.Write != nil) && (v != w.LockV || c.Write != nil || blocked()) {
		act(i, who+" polls", false, func(x *shell) {
			_, was := x.c.Name.Record()
			x.perform(x.c.Name.Saw(x.w.Lock, x.w.LockV, x.w.Now, x.env()))
			if _, now := x.c.Name.Record(); now != was || x.c.Name.Blocked(x.env()) {
				x.enqueue()
			}
		})
	}
}

// surroundings are what clients have no hand in.
func (s Setup) surroundings(w *World, act act) {
	if w.Set < len(s.NewTTLs) {
		act(-1, fmt.Sprintf("the TTL of the store becomes %d", s.NewTTLs[w.Set]), false, func(x *shell) { x.w.Set++ })
	}
	if s.Leap > 0 && w.Leapt == 0 {
		act(-1, "the store's clock leaps", true, func(x *shell) { x.w.Leapt = tick / 4 * core.Instant(s.Leap) })
	}
	s.breaker(w, act)
}

// writes are those under way: one arrives, is answered, or never is.
func (s Setup) writes(w *World, i int, who string, act act) {
	c := w.Clients[i]
	for k, o := range []*op{c.Write, c.Beat, c.Verdict} {
		if o == nil {
			continue
		}
		what := who + "'s " + o.Kind.String()
		at := func(c *client) **op { return [...]**op{&c.Write, &c.Beat, &c.Verdict}[k] }
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
	for k, u := range w.Clients[i].Users {
		who := fmt.Sprintf("%s.%d", who, k)
		switch {
		case u.State == idle && u.Rounds > 0:
			act(i, who+" asks", false, func(x *shell) { x.want(k, s.Users[i][k]) })
		case u.State == waiting && w.Cancels > 0:
			act(i, who+" gives up", true, func(x *shell) {
				x.w.Cancels--
				_, was, eff := x.c.Name.Cancel(u.Request, x.env())
				if !was {
					x.w.bad = "a goroutine that waits is not in line"
				}
				x.c.Users[k] = user{Rounds: u.Rounds - 1}
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
	nr, eff := x.c.Name.Release(u.Token, x.env())
	v := &x.c.Users[k]
	if *v = (user{Rounds: u.Rounds - 1}); nr != 0 {
		v.State, v.Claim = leaving, u.Claim
	}
	x.perform(eff)
}

// restart has a client that has crashed begin anew.
func (x *shell) restart() {
	x.w.Restarts--
	c := fresh()
	c.Opened, c.Last = x.c.Opened, x.c.Last
	for range x.Users[x.i] {
		c.Users = append(c.Users, user{Rounds: 1})
	}
	x.w.Clients[x.i] = c
}

// time is what comes with it: heartbeats, the end of a window, observations of sessions.
func (s Setup) time(w *World, i int, who string, act act) {
	c := w.Clients[i]
	beat := func() { act(i, who+" sends a heartbeat", false, func(x *shell) { x.beat() }) }
	if s.Still {
		if c.Session != nil && c.Beat == nil && (c.Again || !c.Session.Opened() && c.Session.Opening() || c.Name.Ambiguous() || c.Name.Vanished()) {
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
	if c.Timer != core.Never && w.Now >= c.Timer {
		act(i, who+"'s timer fires", false, func(x *shell) {
			x.c.Timer = core.Never
			x.perform(x.c.Name.Tick(x.env()))
		})
	}
	if !c.Name.Waits() || c.Verdict != nil {
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

func (x *shell) ahead(f func(session string)) { x.c.Name.Ahead(x.env(), f) }

// busy says whether a client has business left.
func (s Setup) busy(c *client) bool {
	if c.Reconciling || c.Name.Ambiguous() || c.Write != nil || c.Name.Vanished() {
		return true
	}
	return slices.ContainsFunc(c.Users, func(u user) bool { return u.State != idle || u.Rounds > 0 })
}
