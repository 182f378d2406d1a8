package explore

import (
	"fmt"
	"slices"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// A set is a goroutine that acquires several names, all or none. It has a user for each of
// them, its members.
type set struct {
	State  setState
	Rounds int
	Set    *core.Set // nil: it acquires nothing
}

type setState int8

const (
	setIdle  setState = iota
	setTries          // the names that it does not hold
	setWaits          // for one of them
	setWhole
	setStops // one of its locks was lost, and its work goes on until it has noticed
)

// members are the users of a set, in the order of its names.
func (s Setup) members(i, set int) (users []int) {
	first := 0
	for k, names := range s.Sets[i] {
		if k == set {
			for m := range names {
				users = append(users, first+m)
			}
		}
		first += len(names)
	}
	return users
}

// setOf is the set of a user; nil: it wants a single lock.
func (x *shell) setOf(user int) *set {
	for k := range x.c.Sets {
		if slices.Contains(x.members(x.i, k), user) {
			return &x.c.Sets[k]
		}
	}
	return nil
}

// sets are what the goroutines that acquire sets do.
func (s Setup) sets(w *World, i int, who string, act act) {
	c := w.Clients[i]
	for k, st := range c.Sets {
		its := fmt.Sprintf("%s's set %s", who, s.Sets[i][k])
		members := s.members(i, k)
		switch st.State {
		case setIdle:
			if st.Rounds > 0 {
				act(i, its+" begins", false, func(x *shell) { x.setBegins(k) })
			}
		case setTries, setWaits:
			if !slices.ContainsFunc(members, func(m int) bool { return c.Users[m].State == waiting }) {
				act(i, its+" goes on", false, func(x *shell) { x.setGoesOn(k) })
			} else if w.Cancels > 0 {
				act(i, its+" gives up", true, func(x *shell) { x.setGivesUp(k) })
			}
		case setWhole:
			act(i, its+" is released", false, func(x *shell) { x.setEnds(k) })
		case setStops:
			act(i, its+" stops", false, func(x *shell) { x.setEnds(k) })
		}
	}
}

// setBegins begins to collect.
func (x *shell) setBegins(k int) {
	st := &x.c.Sets[k]
	var names []string
	for _, m := range x.members(x.i, k) {
		names = append(names, nameOf(x.c.Users[m].Name))
	}
	st.Set = core.NewSet(names, x.Tries, 0, x.w.Now)
	x.setRound(k)
}

// member is the user of a set at a name.
func (x *shell) member(k int, name string) int {
	members := x.members(x.i, k)
	return members[slices.IndexFunc(members, func(m int) bool { return x.c.Users[m].Name == numberOf(name) })]
}

// setRound tries the names that are missing.
func (x *shell) setRound(k int) {
	st := &x.c.Sets[k]
	names, _ := st.Set.Missing(x.w.Now)
	if st.State = setTries; len(names) == 0 {
		st.State = setWhole
		return
	}
	for _, name := range names {
		if m := x.member(k, name); !x.c.Gone {
			x.setWants(m, true)
		}
	}
}

func (x *shell) setWants(m int, try bool) {
	if s := x.c.Users[m].State; s != idle {
		x.w.bad = fmt.Sprintf("a set wants a name again where it %s", s)
	}
	x.request(m, try)
}

// setGoesOn notes what became of the requests of a set, and does what follows.
func (x *shell) setGoesOn(k int) {
	st := &x.c.Sets[k]
	for _, m := range x.members(x.i, k) {
		u := &x.c.Users[m]
		switch {
		case u.Request == nil:
		case u.State == refused || u.State == unanswered:
			if st.State == setWaits {
				x.setEnds(k)
				return
			}
			st.Set.Failed(nameOf(u.Name), u.State == refused)
			*u = user{Name: u.Name}
		default:
			st.Set.Got(nameOf(u.Name))
			u.Request = nil
		}
	}
	if st.State == setTries {
		step := st.Set.Next(x.w.Now)
		for _, name := range step.Back {
			x.leaves(x.member(k, name))
		}
		switch step.Kind {
		case core.SetFail:
			x.setEnds(k)
			return
		case core.SetWait:
			st.State = setWaits
			x.setWants(x.member(k, step.Name), x.Tries)
			return
		}
	}
	for _, m := range x.members(x.i, k) {
		if u := x.c.Users[m]; u.State == lost || u.State == stopping {
			if !st.Set.Lost(nameOf(u.Name), u.State == stopping) {
				x.setEnds(k)
				return
			}
			x.leaves(m)
		}
	}
	x.setRound(k)
}

// setGivesUp ends the context of a set that is being collected.
func (x *shell) setGivesUp(k int) {
	x.w.Cancels--
	for _, m := range x.members(x.i, k) {
		if u := x.c.Users[m]; u.State == waiting && !x.c.Gone {
			_, was, eff := x.at(u.Name).q.Name.Cancel(u.Request, x.env())
			if !was {
				x.w.bad = "a goroutine that waits is not in line"
			}
			x.c.Users[m] = user{Name: u.Name}
			x.perform(eff)
		}
	}
	x.setEnds(k)
}

// setEnds gives back all that a set holds.
func (x *shell) setEnds(k int) {
	x.c.Sets[k] = set{Rounds: x.c.Sets[k].Rounds - 1}
	for _, m := range x.members(x.i, k) {
		x.leaves(m)
	}
}

// leaves gives back what a member holds, and waits for nothing.
func (x *shell) leaves(m int) {
	switch u := x.c.Users[m]; {
	case x.c.Gone:
	case u.State == holding || u.State == stopping:
		if b := &x.w.Break; u.State == stopping && u.Claim == (core.ClaimID{Session: b.Session, Nr: b.Nr}) {
			b.Stopped = x.w.Now
		}
		x.release(m)
		x.c.Users[m] = user{Name: u.Name}
	case u.State != waiting:
		x.c.Users[m] = user{Name: u.Name}
	}
}

// setLost ends belief in all locks of a set once one of them is lost.
func (x *shell) setLost(st *set) {
	if st.State != setWhole {
		return
	}
	st.State = setStops
	for k := range x.c.Users {
		if u := &x.c.Users[k]; u.State == holding && x.setOf(k) == st {
			u.State = stopping
		}
	}
}

// wrongSet says what is wrong with a set.
func (s Setup) wrongSet(c *client, st *set, members []int) string {
	waits := false
	for _, m := range members {
		state := c.Users[m].State
		switch {
		case st.State == setIdle && state != idle:
			return "a set that has ended is held in part"
		case st.State == setWhole && state != holding:
			return "a set is held in part"
		case st.State == setWaits && waits && state != idle && state != lost:
			return "a set keeps what lies above the name that it waits for"
		}
		waits = waits || c.Users[m].Request != nil
	}
	return ""
}
