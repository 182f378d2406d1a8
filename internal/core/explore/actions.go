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
			v.bad = s.judge(v)
		}
		emit(what, fault, v)
	}
	for i, c := range w.Clients {
		if c.Gone {
			continue
		}
		who := string(rune('A' + i))
		s.writes(w, i, who, act)
		s.users(w, i, who, act)
		if c.Out == core.Load {
			act(i, who+" loads", false, func(x *shell) {
				x.c.Out = core.Idle
				x.perform(x.c.Name.Looked(x.w.Lock, x.w.LockV, x.w.Now, nil, x.env()))
				x.c.Name.Loaded(true, x.env())
				x.drive()
			})
		}
		// It looks because it waits, or because of a notification, which may be late.
		if _, v := c.Name.Record(); (c.Name.Waits() || c.Name.Known() && c.Write != nil) && (v != w.LockV || c.Write != nil) {
			act(i, who+" polls", false, func(x *shell) {
				_, was := x.c.Name.Record()
				x.perform(x.c.Name.Saw(x.w.Lock, x.w.LockV, x.w.Now, x.env()))
				if _, now := x.c.Name.Record(); now != was || x.c.Name.Blocked(x.env()) {
					x.kick()
				}
			})
		}
		s.time(w, i, who, act)
		if w.Crashes > 0 {
			act(i, who+" crashes", true, func(x *shell) { x.w.Crashes--; x.retire() })
		}
	}
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
			act(i, who+" releases", false, func(x *shell) {
				nr, eff := x.c.Name.Release(u.Token, x.env())
				v := &x.c.Users[k]
				if *v = (user{Rounds: u.Rounds - 1}); nr != 0 {
					v.State, v.Claim = leaving, u.Claim
				}
				x.perform(eff)
			})
		}
	}
}

// time is what comes with it: heartbeats, the end of a window, looks at sessions.
func (s Setup) time(w *World, i int, who string, act act) {
	c := w.Clients[i]
	beat := func() { act(i, who+" sends a heartbeat", false, func(x *shell) { x.beat() }) }
	if s.Still {
		if c.Session != nil && c.Beat == nil && (c.Again || !c.Session.Opened() && c.Session.Opening() || c.Name.Debt() || c.Name.Doubt()) {
			beat()
		}
		return
	}
	if c.Session != nil && c.Session.Opened() && !c.Session.Trusted(w.Now) {
		act(i, who+"'s window is over", false, func(x *shell) { x.session(x.c.Session.Lose("", nil, x.w.Now)) })
	} else if c.Session != nil && c.Session.Opening() && c.Beat == nil && (c.Again || w.Now > c.Beaten) && s.busy(c) {
		if c.Session.TooLate(w.Now) {
			act(i, who+"'s session has not opened", false, func(x *shell) { x.session(x.c.Session.Lose("no answer", nil, x.w.Now)) })
		} else {
			beat()
		}
	}
	if !c.Name.Waits() || c.Verdict != nil {
		return
	}
	seen := map[string]bool{}
	(&shell{Setup: s, w: w, i: i, c: c}).ahead(func(session string) {
		if !seen[session] {
			seen[session] = true
			act(i, who+" looks at "+session, false, func(x *shell) { x.observe(session) })
		}
	})
}

func (x *shell) ahead(f func(session string)) { x.c.Name.Ahead(x.env(), f) }

// busy says whether a client has business left.
func (s Setup) busy(c *client) bool {
	if c.Driving || c.Name.Debt() || c.Write != nil || c.Name.Doubt() {
		return true
	}
	return slices.ContainsFunc(c.Users, func(u user) bool { return u.State != idle || u.Rounds > 0 })
}
