// Package check judges histories of locks: what holders saw, and every version
// of every record that a store went through. It knows the promises and the
// format of the records, and shares no code with the library it judges.
//
//	C1 Tokens    every token once; a grant that ended before an attempt began has the smaller one
//	C2 Windows   conflicting holders never believe at one instant
//	C3 Register  a fenced resource never takes an older write behind a newer one
//	C4 RWLock    grants and ends are those of one readers-writer lock with tokens
//	C5 Audit     every step of every record is a legal one
//	C9 Least     a name stays shut for as long as its holder had it kept, however the hold ended
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A Violation is a broken promise.
type Violation struct {
	Rule string // C1, C2 …
	Text string
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

func violation(rule, format string, args ...any) Violation {
	return Violation{rule, fmt.Sprintf(format, args...)}
}

// A Hold is one grant as its holder saw it. Times are of one clock that all
// holders share: the simulation's, or that of one host.
type Hold struct {
	Name  string
	Slots int // most holders it tolerates: 1 exclusive, 0 any number
	Token int64
	Who   string // for messages
	// Asked is when the attempt began, Granted when it returned, Ended when its
	// holder stopped believing in it.
	Asked, Granted, Ended time.Duration
	// Void: it was broken without waiting for its holder, so that only the
	// fence protects from it.
	Void bool
	// Shut is until when its name was to stay shut, in any case; 0: not longer than it was held.
	Shut time.Duration
	// Lost: it ended by the death of its process, or a loss, and not in order.
	Lost bool
}

func (h Hold) String() string {
	return fmt.Sprintf("%s slots %d token %d of %s [asked %v, %v to %v)", h.Name, h.Slots, h.Token, h.Who, h.Asked, h.Granted, h.Ended)
}

func byName(holds []Hold) map[string][]Hold {
	names := make(map[string][]Hold)
	for _, h := range holds {
		names[h.Name] = append(names[h.Name], h)
	}
	return names
}

// Tokens checks C1. Grants of one shared claim to several goroutines of a
// process are made in memory and may take their tokens in any order among
// other readers; between conflicting holders the order is strict.
func Tokens(holds []Hold) (found []Violation) {
	for _, hs := range byName(holds) {
		seen := make(map[int64]Hold, len(hs))
		for _, h := range hs {
			if h.Token <= 0 {
				found = append(found, violation("C1", "token is not positive: %v", h))
			}
			if other, ok := seen[h.Token]; ok {
				found = append(found, violation("C1", "one token twice: %v, %v", other, h))
			}
			seen[h.Token] = h
		}
		granted := slices.SortedFunc(slices.Values(hs), func(a, b Hold) int { return cmp.Compare(a.Granted, b.Granted) })
		asked := slices.SortedFunc(slices.Values(hs), func(a, b Hold) int { return cmp.Compare(a.Asked, b.Asked) })
		var highest, exclusive Hold
		for _, h := range asked {
			for len(granted) > 0 && granted[0].Granted < h.Asked {
				if granted[0].Token > highest.Token {
					highest = granted[0]
				}
				if granted[0].Slots == 1 && granted[0].Token > exclusive.Token {
					exclusive = granted[0]
				}
				granted = granted[1:]
			}
			before := highest
			if h.Slots != 1 {
				before = exclusive
			}
			if before.Token > h.Token {
				found = append(found, violation("C1", "token goes back: %v, then %v", before, h))
			}
		}
	}
	return found
}

// Grace checks R9: whoever was lost keeps others out for that much longer.
func Grace(holds []Hold, grace time.Duration) (found []Violation) {
	longer := slices.Clone(holds)
	for i := range longer {
		if longer[i].Lost {
			longer[i].Ended += grace
		}
	}
	for _, v := range Windows(longer) {
		found = append(found, Violation{"R9", "within the grace of " + grace.String() + ": " + v.Text})
	}
	return found
}

// Least checks C9: who had a name kept for a time at least keeps others out for so long.
func Least(holds []Hold) (found []Violation) {
	longer := slices.Clone(holds)
	for i := range longer {
		longer[i].Ended = max(longer[i].Ended, longer[i].Shut)
	}
	for _, v := range Windows(longer) {
		found = append(found, Violation{"C9", "before its time: " + v.Text})
	}
	return found
}

// Windows checks C2: at no instant do more holders believe in a name than any
// of them tolerates.
func Windows(holds []Hold) (found []Violation) {
	type event struct {
		at    time.Duration
		start bool
		hold  int
	}
	for _, hs := range byName(holds) {
		var events []event
		for i, h := range hs {
			if !h.Void && h.Ended > h.Granted {
				events = append(events, event{h.Granted, true, i}, event{h.Ended, false, i})
			}
		}
		slices.SortFunc(events, func(a, b event) int {
			switch {
			case a.at != b.at:
				return cmp.Compare(a.at, b.at)
			case a.start == b.start:
				return 0
			case a.start:
				return 1
			}
			return -1
		})
		inside := make(map[int]bool)
		for _, e := range events {
			if !e.start {
				delete(inside, e.hold)
				continue
			}
			inside[e.hold] = true
			first := -1
			for i := range inside {
				if n := hs[i].Slots; n != 0 && len(inside) > n && (first < 0 || i < first) {
					first = i
				}
			}
			if first >= 0 {
				found = append(found, violation("C2", "%d holders at %v where %v tolerates %d; the last is %v", len(inside), e.at, hs[first], hs[first].Slots, hs[e.hold]))
			}
		}
	}
	return found
}
