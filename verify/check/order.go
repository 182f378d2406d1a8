package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// Order checks P5 where the audit of records cannot see it: a claim that holds
// is handed on inside its process, and may not serve those who asked for it
// long after another process had begun to wait. grace is how late a process may
// learn that another one waits, and how long its own may then still follow: who
// finds out late gives its own a turn from then on.
func Order(steps []Step, holds []Hold, grace time.Duration) (found []Violation) {
	type span struct{ from, to time.Duration }
	type wait struct {
		id
		span
	}
	const forever = time.Duration(1 << 62)
	waits := make(map[string][]wait)
	tenures := make(map[string]map[id]claim)
	queued := make(map[string]map[id]time.Duration)
	for _, s := range steps {
		if s.Key.Space != driver.Names {
			continue
		}
		name := s.Key.Name
		l, err := readLock(s.Value, s.Version)
		if err != nil {
			continue
		}
		now := make(map[id]time.Duration)
		for _, c := range l.Waiters {
			from, ok := queued[name][c.id()]
			if !ok {
				from = s.At
			}
			now[c.id()] = from
		}
		for c, from := range queued[name] {
			if _, ok := now[c]; !ok {
				waits[name] = append(waits[name], wait{c, span{from, s.At}})
			}
		}
		queued[name] = now
		for _, h := range l.Holders {
			if tenures[name] == nil {
				tenures[name] = make(map[id]claim)
			}
			if _, ok := tenures[name][h.id()]; !ok {
				tenures[name][h.id()] = h
			}
		}
	}
	for name, left := range queued {
		for c, from := range left {
			waits[name] = append(waits[name], wait{c, span{from, forever}})
		}
	}
	known := make(map[string]map[id]time.Duration) // when a process first believed in a claim
	for _, h := range holds {
		for c, t := range tenures[h.Name] {
			if h.Token != t.Token {
				continue
			}
			if known[h.Name] == nil {
				known[h.Name] = make(map[id]time.Duration)
			}
			known[h.Name][c] = h.Granted
		}
	}
	holds = slices.SortedFunc(slices.Values(holds), func(a, b Hold) int { return cmp.Compare(a.Granted, b.Granted) })
	turns := make(map[id]time.Duration) // when the first was served that came late
	for _, h := range holds {
		for c, t := range tenures[h.Name] {
			since, ok := known[h.Name][c]
			if !ok || h.Token <= t.Token || h.Token >= t.Token+t.tokens() {
				continue
			}
			for _, w := range waits[h.Name] {
				if w.session == t.Session || max(w.from, since)+grace >= h.Asked || h.Granted >= w.to {
					continue
				}
				if _, ok := turns[c]; !ok {
					turns[c] = h.Granted
				}
				if h.Slots != 1 || h.Granted > turns[c]+grace {
					found = append(found, violation("P5", "%v, and claim %v had been waiting since %v", h, w.id, w.from))
				}
			}
		}
	}
	return found
}
