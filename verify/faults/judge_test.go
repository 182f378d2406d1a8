//go:build linux

package faults

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A story is what one worker told, and what was done to it.
type story struct {
	id     string
	ttl    time.Duration
	events []event
	killed int64      // when it was sent SIGKILL, or 0
	stops  [][2]int64 // from before SIGSTOP to after SIGCONT
	broken bool       // nothing is expected of it but that it is noticed
}

// A history is an episode as it is judged.
type history struct {
	stories []*story
	rows    map[string]bool // keys of the fenced writes that are in the table
	healed  int64           // when faults had ended
	slow    time.Duration   // of the machine
}

// A hold is one grant as its worker saw it.
type hold struct {
	check.Hold
	of    *story
	until time.Duration // end of the trust window, by the heartbeats that won
	ends  time.Duration // when it said that it believed, last; 0: never
	lost  time.Duration // when its context ended by loss, or 0
	finds time.Duration // when it heard of a loss by asking, or 0
	why   string
}

// holds are all grants.
func (h *history) holds() (all []*hold) {
	for _, s := range h.stories {
		window := s.ttl - holdfast.Margin(s.ttl)
		asked := make(map[int]event)
		byID := make(map[int]*hold)
		open := make(map[int]*hold) // those whose window heartbeats move
		session := ""
		beat := make(map[string]int64)
		of := make(map[*hold]string)
		for _, e := range s.events {
			switch e.What {
			case beats:
				if beat[e.Name] == 0 {
					session = e.Name // a late answer is of an older one
				}
				beat[e.Name] = max(beat[e.Name], e.Sent)
				for _, o := range open {
					if of[o] == e.Name {
						o.until = time.Duration(beat[e.Name]) + window
					}
				}
			case asks:
				asked[e.ID] = e
			case granted:
				o := &hold{of: s, until: time.Duration(beat[session]) + window, Hold: check.Hold{
					Name: e.Name, Slots: e.Slots, Token: e.Token, Who: fmt.Sprintf("%s/%d", s.id, e.ID),
					Asked: time.Duration(asked[e.ID].At), Granted: time.Duration(e.At)}}
				byID[e.ID], open[e.ID], of[o] = o, o, session
				all = append(all, o)
			case lost:
				byID[e.ID].lost, byID[e.ID].why = time.Duration(e.At), e.Text
			case ends:
				byID[e.ID].ends = time.Duration(e.At)
				delete(open, e.ID)
			case finds:
				byID[e.ID].finds, byID[e.ID].why = time.Duration(e.At), e.Text
				delete(open, e.ID)
			}
		}
	}
	for _, o := range all {
		// What it said last counts; where it says nothing more, its window does.
		if o.Ended = o.ends; o.ends == 0 {
			o.Ended = o.until
			for _, at := range []time.Duration{o.lost, o.finds, time.Duration(o.of.killed)} {
				if at > 0 {
					o.Ended = min(o.Ended, at)
				}
			}
		}
		if k := time.Duration(o.of.killed); k > 0 {
			o.Ended = min(o.Ended, k)
		}
	}
	return all
}

func bad(rule, format string, args ...any) check.Violation {
	return check.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)}
}

// judge finds every broken promise in a history.
func (h *history) judge() (found []check.Violation) {
	all := h.holds()
	var plain []check.Hold
	for _, o := range all {
		plain = append(plain, o.Hold)
	}
	found = append(found, check.Windows(plain)...)
	found = append(found, check.Tokens(plain)...)
	found = append(found, order(plain)...)
	found = append(found, h.writes(all)...)
	found = append(found, h.notices(all)...)
	found = append(found, h.waits()...)
	return found
}

// order checks that tokens grow with the holds that exclude each other.
func order(holds []check.Hold) (found []check.Violation) {
	last, exclusive := make(map[string]check.Hold), make(map[string]check.Hold)
	for _, h := range slices.SortedFunc(slices.Values(holds), func(a, b check.Hold) int { return cmp.Compare(a.Granted, b.Granted) }) {
		if h.Ended <= h.Granted {
			continue // it never believed
		}
		before := exclusive[h.Name]
		if h.Slots == 1 {
			before = last[h.Name]
			exclusive[h.Name] = h
		}
		if before.Token >= h.Token {
			found = append(found, bad("C1", "the token does not grow: %v, then %v", before, h))
		}
		if h.Token > last[h.Name].Token {
			last[h.Name] = h
		}
	}
	return found
}

// writes checks the fenced writes: none was committed after a later holder that
// excludes its own had the lock, and none that was confirmed is missing.
func (h *history) writes(all []*hold) (found []check.Violation) {
	slots := make(map[string]int)
	for _, o := range all {
		slots[fmt.Sprint(o.Name, o.Token)] = o.Slots
	}
	for _, s := range h.stories {
		for _, e := range s.events {
			switch {
			case e.What == committed && !strings.Contains(e.Text, " ") && !h.rows[e.Text]:
				found = append(found, bad("durable", "the write %s was confirmed and is not there", e.Text))
			case e.What != commits || !h.rows[e.Text]:
				continue
			}
			for _, o := range all {
				if o.Name == e.Name && o.Token > e.Token && int64(o.Granted) < e.At && (o.Slots == 1 || e.Slots == 1) {
					found = append(found, bad("fence", "the write %s under token %d of %q was committed %v or more after %v had been granted",
						e.Text, e.Token, e.Name, time.Duration(e.At)-o.Granted, o.Hold))
				}
			}
		}
	}
	return found
}

// notices checks what a holder was told: that it holds, within its window only;
// that it does not, before anybody else could; and never too early.
func (h *history) notices(all []*hold) (found []check.Violation) {
	for _, o := range all {
		if o.of.broken {
			continue
		}
		switch {
		case o.ends > o.until:
			found = append(found, bad("C6", "%v believed %v after its window had ended", o.Hold, o.ends-o.until))
		case o.finds > 0 && o.finds < o.until-50*time.Millisecond-h.slow: // its own clock began a little earlier than our stamp
			found = append(found, bad("C6", "%v was lost %v before its window was over: %s", o.Hold, o.until-o.finds, o.why))
		case o.finds > 0 && o.lost == 0:
			found = append(found, bad("C6", "%v was lost, and its context did not say so", o.Hold))
		}
		if o.lost == 0 {
			continue
		}
		by := o.until
		for _, stop := range o.of.stops {
			if time.Duration(stop[0]) <= by+holdfast.Margin(o.of.ttl) {
				by = max(by, time.Duration(stop[1]))
			}
		}
		if late := o.lost - by - holdfast.Margin(o.of.ttl) - h.slow; late > 0 {
			found = append(found, bad("C6", "%v heard of its loss only %v after its window; TTL %v, slowness of the machine %v",
				o.Hold, o.lost-by, o.of.ttl, h.slow))
		}
	}
	return found
}

// waits checks that every wait ended, and every process.
func (h *history) waits() (found []check.Violation) {
	for _, s := range h.stories {
		if s.killed > 0 {
			continue
		}
		waiting := make(map[int]event)
		ended := false
		for _, e := range s.events {
			switch e.What {
			case asks:
				waiting[e.ID] = e
			case granted, refused:
				delete(waiting, e.ID)
			case closed:
				ended = true
			}
		}
		for _, e := range waiting {
			found = append(found, bad("P6", "worker %s asked for %q (slots %d) at %v and has no answer", s.id, e.Name, e.Slots, time.Duration(e.At)))
		}
		if !ended && len(waiting) == 0 {
			found = append(found, bad("P6", "worker %s has not ended", s.id))
		}
	}
	return found
}

// gap is the longest that a name was held by nobody after the faults had ended,
// though someone waited for it.
func (h *history) gap() (longest time.Duration, where string) {
	type edge struct {
		at          int64
		wait, holds int
	}
	edges := make(map[string][]edge)
	add := func(name string, from, to int64, e edge) {
		if to > from {
			e.at = from
			edges[name] = append(edges[name], e)
			e.at, e.wait, e.holds = to, -e.wait, -e.holds
			edges[name] = append(edges[name], e)
		}
	}
	for _, s := range h.stories {
		asked := make(map[int]event)
		for _, e := range s.events {
			switch e.What {
			case asks:
				asked[e.ID] = e
			case granted, refused:
				add(e.Name, asked[e.ID].At, e.At, edge{wait: 1})
				delete(asked, e.ID)
			}
		}
		for _, e := range asked {
			if s.killed > 0 {
				add(e.Name, e.At, s.killed, edge{wait: 1})
			}
		}
	}
	for _, o := range h.holds() {
		add(o.Name, int64(o.Granted), int64(o.Ended), edge{holds: 1})
	}
	for name, es := range edges {
		slices.SortFunc(es, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
		var since int64
		wait, holds, idle := 0, 0, false
		for _, e := range es {
			if idle {
				if d := time.Duration(e.at - max(since, h.healed)); d > longest {
					longest, where = d, fmt.Sprintf("%q from %v to %v", name, time.Duration(since), time.Duration(e.at))
				}
			}
			wait, holds = wait+e.wait, holds+e.holds
			if now := wait > 0 && holds == 0; now != idle {
				idle, since = now, e.at
			} else if !now {
				idle = false
			}
		}
	}
	return longest, where
}
