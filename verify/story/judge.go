//go:build linux

package story

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/verify/check"
)

// A Story is what one worker told, and what was done to it.
type Story struct {
	ID     string
	TTL    time.Duration
	Events []Event
	Killed int64      // when it was sent SIGKILL, or 0
	Stops  [][2]int64 // from before SIGSTOP to after SIGCONT
	Sleeps [][2]int64 // of its machine, whose timers stood still then
	Broken bool       // nothing is expected of it but that it is noticed
	// Slowest and Fastest are the rates at which its clock ran, in millionths of true
	// time. 0: right.
	Slowest, Fastest int64
}

const right = 1_000_000

// took is how long d on a clock of a rate may have been in truth.
func took(d time.Duration, rate int64) time.Duration {
	if rate == 0 {
		return d
	}
	return d * right / time.Duration(rate)
}

// A History is an episode as it is judged.
type History struct {
	Stories []*Story
	Rows    map[string]bool // keys of the fenced writes that are in the table
	Healed  int64           // when faults had ended
	Slow    time.Duration   // of the machine
	Title   string          // for people
	Faults  [][2]int64      // when something was broken on purpose
	Notes   []Note          // what was done
}

// A Note is what was done at a time.
type Note struct {
	At   int64  `json:"at"`
	Text string `json:"text"`
}

// A Hold is one grant as its worker saw it.
type Hold struct {
	check.Hold
	of    *Story
	until time.Duration // end of the trust window, by the heartbeats that won
	ends  time.Duration // when it said that it believed, last; 0: never
	lost  time.Duration // when its context ended by loss, or 0
	finds time.Duration // when it heard of a loss by asking, or 0
	why   string
}

// unsure is how much shorter a window may have been than the slowest clock has it.
func (s *Story) unsure() time.Duration {
	window := s.TTL - holdfast.Margin(s.TTL)
	return took(window, s.Slowest) - took(window, s.Fastest)
}

// Lost says whether its worker learnt so.
func (o *Hold) Lost() bool { return o.lost > 0 || o.finds > 0 }

// Holds are all grants.
func (h *History) Holds() (all []*Hold) {
	for _, s := range h.Stories {
		window := took(s.TTL-holdfast.Margin(s.TTL), s.Slowest)
		asked := make(map[int]Event)
		byID := make(map[int]*Hold)
		open := make(map[int]*Hold) // those whose window heartbeats move
		session, begun := "", int64(-1)
		beat := make(map[string]int64)
		of := make(map[*Hold]string)
		for _, e := range s.Events {
			if byID[e.ID] == nil && ofHold(e) {
				continue // see strange
			}
			switch e.What {
			case Beats:
				if beat[e.Name] == 0 && e.Sent > begun {
					session, begun = e.Name, e.Sent // a late answer is of an older one
				}
				beat[e.Name] = max(beat[e.Name], e.Sent)
				for _, o := range open {
					if of[o] == e.Name {
						o.until = time.Duration(beat[e.Name]) + window
					}
				}
			case Trusts:
				for _, o := range open {
					if time.Duration(e.At) <= o.until { // else it is of the session after
						o.until = max(o.until, time.Duration(e.Until))
					}
				}
			case Asks:
				asked[e.ID] = e
			case Granted:
				o := &Hold{of: s, until: max(time.Duration(beat[session])+window, time.Duration(e.Until)), Hold: check.Hold{
					Name: e.Name, Slots: e.Slots, Token: e.Token, Who: fmt.Sprintf("%s/%d", s.ID, e.ID),
					Asked: time.Duration(asked[e.ID].At), Granted: time.Duration(e.At)}}
				byID[e.ID], open[e.ID], of[o] = o, o, session
				all = append(all, o)
			case Lost:
				o := byID[e.ID]
				o.lost, o.why = time.Duration(e.At), e.Text
			case Ends:
				o := byID[e.ID]
				o.ends, o.until = time.Duration(e.At), max(o.until, time.Duration(e.Until))
				delete(open, e.ID)
			case Finds:
				o := byID[e.ID]
				o.finds, o.why = time.Duration(e.At), e.Text
				delete(open, e.ID)
			}
		}
	}
	for _, o := range all {
		// What it said last counts; where it says nothing more, its window does.
		if o.Ended = o.ends; o.ends == 0 {
			o.Ended = o.until
			for _, at := range []time.Duration{o.lost, o.finds, time.Duration(o.of.Killed)} {
				if at > 0 {
					o.Ended = min(o.Ended, at)
				}
			}
		}
		if k := time.Duration(o.of.Killed); k > 0 {
			o.Ended = min(o.Ended, k)
		}
	}
	return all
}

// Bad is a broken promise.
func Bad(rule, format string, args ...any) check.Violation {
	return check.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)}
}

// Judge finds every broken promise in a history.
func (h *History) Judge() (found []check.Violation) {
	all := h.Holds()
	var plain []check.Hold
	for _, o := range all {
		plain = append(plain, o.Hold)
	}
	overlaps := check.Windows(plain)
	found = append(found, overlaps...)
	found = append(found, check.Tokens(plain)...)
	found = append(found, order(plain)...)
	if len(overlaps) == 0 { // else there is no order, and it takes long to see that
		found = append(found, check.RWLock(plain)...)
	}
	for name, accesses := range h.accesses() {
		found = append(found, check.Register(name, accesses)...)
	}
	found = append(found, h.writes(all)...)
	found = append(found, h.notices(all)...)
	found = append(found, h.waits()...)
	found = append(found, h.strange()...)
	return found
}

func ofHold(e Event) bool { return e.What == Lost || e.What == Ends || e.What == Finds }

// strange finds what workers tell of grants that they have not told of.
func (h *History) strange() (found []check.Violation) {
	for _, s := range h.Stories {
		granted := make(map[int]bool)
		for _, e := range s.Events {
			granted[e.ID] = granted[e.ID] || e.What == Granted
			if ofHold(e) && !granted[e.ID] {
				found = append(found, Bad("story", "worker %s tells %q of attempt %d at %v, which was not granted", s.ID, e.What, e.ID, time.Duration(e.At)))
			}
		}
	}
	return found
}

// accesses are the writes to the register of each name, and the reads.
func (h *History) accesses() map[string][]check.Access {
	byName := make(map[string][]check.Access)
	for n, s := range h.Stories {
		puts := make(map[int64]check.Access)
		for _, e := range s.Events {
			switch e.What {
			case Puts:
				puts[e.Value] = check.Access{Client: n, Call: time.Duration(e.At), Value: e.Value, Token: e.Token, Shared: e.Slots != 1, Strict: e.Strict, Unknown: true}
			case Put:
				a := puts[e.Value]
				delete(puts, e.Value)
				if e.Text == "unsent" {
					continue
				}
				a.Return, a.Unknown, a.Refused = time.Duration(e.At), e.Text == "ambiguous", e.Text == "refused"
				byName[e.Name] = append(byName[e.Name], a)
			case Reads:
				byName[e.Name] = append(byName[e.Name], check.Access{Client: n, Call: time.Duration(e.Sent), Return: time.Duration(e.At), Read: true, Value: e.Value})
			}
		}
		for _, e := range s.Events { // it was killed meanwhile
			if a, ok := puts[e.Value]; ok && e.What == Puts {
				byName[e.Name] = append(byName[e.Name], a)
			}
		}
	}
	return byName
}

// Names is how many histories of one name there are that are worth the word: of
// three sessions or more, and of twelve grants, ends, writes and reads or more.
func (h *History) Names() (n int) {
	sessions, operations := make(map[string]map[*Story]bool), make(map[string]int)
	for _, s := range h.Stories {
		for _, e := range s.Events {
			switch e.What {
			case Granted, Ends, Finds, Put, Reads:
				if operations[e.Name]++; sessions[e.Name] == nil {
					sessions[e.Name] = make(map[*Story]bool)
				}
				sessions[e.Name][s] = true
			}
		}
	}
	for name, of := range sessions {
		if len(of) >= 3 && operations[name] >= 12 {
			n++
		}
	}
	return n
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
			found = append(found, Bad("C1", "the token does not grow: %v, then %v", before, h))
		}
		if h.Token > last[h.Name].Token {
			last[h.Name] = h
		}
	}
	return found
}

// writes checks the fenced writes: none was committed after a later holder that
// excludes its own had the lock, and none that was confirmed is missing.
func (h *History) writes(all []*Hold) (found []check.Violation) {
	slots := make(map[string]int)
	for _, o := range all {
		slots[fmt.Sprint(o.Name, o.Token)] = o.Slots
	}
	for _, s := range h.Stories {
		for _, e := range s.Events {
			switch {
			case e.What == Committed && !strings.Contains(e.Text, " ") && !h.Rows[e.Text]:
				found = append(found, Bad("durable", "the write %s was confirmed and is not there", e.Text))
			case e.What != Commits || !h.Rows[e.Text]:
				continue
			}
			for _, o := range all {
				if o.Name == e.Name && o.Token > e.Token && int64(o.Granted) < e.At && (o.Slots == 1 || e.Slots == 1) {
					found = append(found, Bad("fence", "the write %s under token %d of %q was committed %v or more after %v had been granted",
						e.Text, e.Token, e.Name, time.Duration(e.At)-o.Granted, o.Hold))
				}
			}
		}
	}
	return found
}

// Counters checks that no increment was lost of counters that locks guard: no
// value was put there twice. Pauses between a look at the lock and the write are
// what no lock can mend.
func (h *History) Counters() (found []check.Violation, n int) {
	who := make(map[string]string)
	for _, s := range h.Stories {
		for _, e := range s.Events {
			if e.What != Counted {
				continue
			}
			n++
			this := fmt.Sprint(e.Name, " ", e.Token)
			if other := who[this]; other != "" {
				found = append(found, Bad("counter", "%s was counted by %s and by %s at %v: an increment is lost", this, other, s.ID, time.Duration(e.At)))
			}
			who[this] = s.ID
		}
	}
	return found, n
}

// notices checks what a holder learnt: that it holds, within its window only;
// that it does not, before anybody else could; and never too early.
func (h *History) notices(all []*Hold) (found []check.Violation) {
	for _, o := range all {
		if o.of.Broken {
			continue
		}
		switch {
		case o.ends > o.until:
			found = append(found, Bad("C6", "%v believed %v after its window had ended", o.Hold, o.ends-o.until))
		case strings.Contains(o.why, "stood still"): // it must not trust its own clock then
		case o.finds > 0 && o.finds < o.until-o.of.unsure()-50*time.Millisecond-h.Slow: // its own clock began a little earlier than our stamp
			found = append(found, Bad("C6", "%v was lost %v before its window was over: %s", o.Hold, o.until-o.finds, o.why))
		case o.finds > 0 && o.lost == 0:
			found = append(found, Bad("C6", "%v was lost, and its context did not say so", o.Hold))
		}
		if o.lost == 0 {
			continue
		}
		by, margin := o.until, took(holdfast.Margin(o.of.TTL), o.of.Slowest)
		for _, stop := range o.of.Stops {
			if time.Duration(stop[0]) <= by+margin {
				by = max(by, time.Duration(stop[1]))
			}
		}
		for _, slept := range o.of.Sleeps { // it looks at its clock once a second, whatever its timers say
			if time.Duration(slept[0]) <= by+margin {
				by = max(by, time.Duration(slept[1])+took(time.Second, o.of.Slowest))
			}
		}
		if late := o.lost - by - margin - h.Slow; late > 0 {
			found = append(found, Bad("C6", "%v heard of its loss only %v after its window; TTL %v, slowness of the machine %v",
				o.Hold, o.lost-by, o.of.TTL, h.Slow))
		}
	}
	return found
}

// waits checks that every wait ended, and every process.
func (h *History) waits() (found []check.Violation) {
	for _, s := range h.Stories {
		if s.Killed > 0 {
			continue
		}
		waiting := make(map[int]Event)
		ended := false
		for _, e := range s.Events {
			switch e.What {
			case Asks:
				waiting[e.ID] = e
			case Granted, Refused:
				delete(waiting, e.ID)
			case Closed:
				ended = true
			}
		}
		for _, e := range waiting {
			found = append(found, Bad("P6", "worker %s asked for %q (slots %d) at %v and has no answer", s.ID, e.Name, e.Slots, time.Duration(e.At)))
		}
		if !ended && len(waiting) == 0 {
			found = append(found, Bad("P6", "worker %s has not ended", s.ID))
		}
	}
	return found
}

// Gap is the longest that a name was held by nobody after the faults had ended,
// though someone waited for it.
func (h *History) Gap() (longest time.Duration, where string) {
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
	for _, s := range h.Stories {
		asked := make(map[int]Event)
		for _, e := range s.Events {
			switch e.What {
			case Asks:
				asked[e.ID] = e
			case Granted, Refused:
				add(e.Name, asked[e.ID].At, e.At, edge{wait: 1})
				delete(asked, e.ID)
			}
		}
		for _, e := range asked {
			if s.Killed > 0 {
				add(e.Name, e.At, s.Killed, edge{wait: 1})
			}
		}
	}
	for _, o := range h.Holds() {
		add(o.Name, int64(o.Granted), int64(o.Ended), edge{holds: 1})
	}
	for name, es := range edges {
		slices.SortFunc(es, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
		var since int64
		wait, holds, idle := 0, 0, false
		for _, e := range es {
			if idle {
				if d := time.Duration(e.at - max(since, h.Healed)); d > longest {
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
