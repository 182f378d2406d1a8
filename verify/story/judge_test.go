//go:build linux

package story

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/verify/check"
)

// What is looked for is found: each history breaks one promise, or none.
func TestJudge(t *testing.T) {
	const ttl = 1000 // ms; the window is 750
	at := func(ms int64, e Event) Event {
		e.At = ms * int64(time.Millisecond)
		e.Sent *= int64(time.Millisecond)
		return e
	}
	beat := func(ms int64) Event { return at(ms, Event{What: Beats, Name: "s", Sent: ms - 1}) }
	ask := func(ms int64, id, slots int) Event { return at(ms, Event{What: Asks, ID: id, Name: "x", Slots: slots}) }
	grant := func(ms int64, id, slots int, token int64) Event {
		return at(ms, Event{What: Granted, ID: id, Name: "x", Slots: slots, Token: token})
	}
	tell := func(ms int64, what string, id int) Event { return at(ms, Event{What: what, ID: id, Name: "x"}) }
	write := func(ms int64, what string, id int, token int64, key string) Event {
		return at(ms, Event{What: what, ID: id, Name: "x", Slots: 1, Token: token, Text: key})
	}
	put := func(ms, token, value int64) Event {
		return at(ms, Event{What: Puts, Name: "x", Slots: 1, Token: token, Value: value})
	}
	read := func(ms, value int64) Event { return at(ms, Event{What: Reads, Name: "x", Sent: ms - 1, Value: value}) }
	over := at(9000, Event{What: Closed})
	one := func(id int, from, to, token int64) []Event {
		return []Event{ask(from-1, id, 1), grant(from, id, 1, token), tell(to, Ends, id)}
	}
	for _, c := range []struct {
		name   string
		rule   string // that is broken
		first  []Event
		second []Event
		killed int64 // when the first was killed
		wakes  int64 // when the machine of the first does, which fell asleep at 600
		rows   []string
	}{
		{name: "one after the other", first: one(1, 10, 20, 5), second: one(1, 21, 30, 6)},
		{name: "at once", rule: "C2", first: one(1, 10, 30, 5), second: one(1, 21, 30, 6)},
		{name: "a token twice", rule: "C1", first: one(1, 10, 20, 5), second: one(1, 21, 30, 5)},
		{name: "a smaller token", rule: "C1", first: one(1, 10, 20, 5), second: one(1, 21, 30, 4)},
		{name: "readers", first: []Event{ask(9, 1, 0), grant(10, 1, 0, 5), tell(50, Ends, 1)}, second: []Event{ask(9, 1, 0), grant(11, 1, 0, 4), tell(40, Ends, 1)}},
		{name: "killed, and the next at once", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5)}, killed: 20, second: one(1, 21, 30, 6)},
		{name: "the next before it was killed", rule: "C2", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5)}, killed: 22, second: one(1, 21, 30, 6)},
		{name: "lost, then the next", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(755, Lost, 1), tell(756, Finds, 1)}, second: one(1, 1010, 1030, 6)},
		{name: "the next within its window", rule: "C2", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(755, Lost, 1), tell(756, Finds, 1)}, second: one(1, 700, 730, 6)},
		{name: "lost before its window was over", rule: "C6", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(500, Lost, 1), tell(501, Finds, 1)}},
		{name: "believes longer than its window", rule: "C6", first: one(1, 10, 800, 5)},
		{name: "its window moves", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), beat(400), tell(1100, Ends, 1)}},
		{name: "told late", rule: "C6", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(1100, Lost, 1), tell(1101, Finds, 1)}},
		{name: "told a second after it woke", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(2700, Lost, 1), tell(2701, Finds, 1)}, wakes: 1500},
		{name: "told late after it woke", rule: "C6", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(2800, Lost, 1), tell(2801, Finds, 1)}, wakes: 1500},
		{name: "not told", rule: "C6", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(800, Finds, 1)}},
		{name: "no answer", rule: "P6", first: []Event{ask(9, 1, 1)}},
		{name: "a fenced write", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), write(15, Commits, 1, 5, "k"), write(16, Committed, 1, 5, "k"), tell(20, Ends, 1)}, second: one(1, 21, 30, 6), rows: []string{"k"}},
		{name: "a fenced write behind a later holder", rule: "fence", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(20, Ends, 1), write(25, Commits, 1, 5, "k")}, second: one(1, 21, 30, 6), rows: []string{"k"}},
		{name: "one that was refused", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(20, Ends, 1), write(25, Commits, 1, 5, "k")}, second: one(1, 21, 30, 6)},
		{name: "what is read was put", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), put(12, 5, 77), at(15, Event{What: Put, Name: "x", Value: 77, Text: "taken"}), tell(20, Ends, 1)}, second: []Event{read(22, 77)}},
		{name: "what was put is not read", rule: "C3", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), put(12, 5, 77), at(15, Event{What: Put, Name: "x", Value: 77, Text: "taken"}), tell(20, Ends, 1)}, second: []Event{read(22, 0)}},
		{name: "killed before it had an answer, and not taken", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), put(12, 5, 77)}, killed: 20, second: []Event{read(22, 0)}},
		{name: "killed before it had an answer, and taken", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), put(12, 5, 77)}, killed: 20, second: []Event{read(22, 0), read(24, 77)}},
		{name: "killed before it had an answer, taken and undone", rule: "C3", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), put(12, 5, 77)}, killed: 20, second: []Event{read(22, 77), read(24, 0)}},
		{name: "a confirmed write is gone", rule: "durable", first: []Event{ask(9, 1, 1), grant(10, 1, 1, 5), write(15, Commits, 1, 5, "k"), write(16, Committed, 1, 5, "k"), tell(20, Ends, 1)}},
	} {
		h := &History{Rows: make(map[string]bool)}
		for i, events := range [][]Event{c.first, c.second} {
			s := &Story{ID: string(rune('a' + i)), TTL: ttl * time.Millisecond, Events: slices.Concat([]Event{beat(1)}, events, []Event{over})}
			if i == 0 {
				s.Killed = c.killed * int64(time.Millisecond)
				if c.wakes > 0 {
					s.Sleeps = [][2]int64{{600 * int64(time.Millisecond), c.wakes * int64(time.Millisecond)}}
				}
			} else if len(events) > 0 {
				s.Events = slices.Insert(s.Events, 1, beat(events[0].At/int64(time.Millisecond)-1))
			}
			h.Stories = append(h.Stories, s)
		}
		for _, key := range c.rows {
			h.Rows[key] = true
		}
		found := h.Judge()
		if c.rule == "" && len(found) > 0 || c.rule != "" && !broken(found, c.rule) {
			t.Errorf("%s: found %v, want %q", c.name, found, c.rule)
		}
	}
}

func broken(found []check.Violation, rule string) bool {
	return slices.ContainsFunc(found, func(v check.Violation) bool { return v.Rule == rule })
}

// A name that nobody holds though somebody waits is noticed.
func TestFreeButAwaited(t *testing.T) {
	at := func(ms int64, what string, id int) Event {
		return Event{At: ms * int64(time.Millisecond), What: what, ID: id, Name: "x", Slots: 1}
	}
	h := &History{Healed: int64(100 * time.Millisecond), Stories: []*Story{
		{ID: "a", TTL: time.Second, Events: []Event{{At: 1, Sent: 1, What: Beats, Name: "s"}, at(10, Asks, 1), at(20, Granted, 1), at(50, Ends, 1)}},
		{ID: "b", TTL: time.Second, Events: []Event{{At: 1, Sent: 1, What: Beats, Name: "s"}, at(15, Asks, 1), at(300, Granted, 1), at(310, Ends, 1)}},
	}}
	if got, where := h.Gap(); got != 200*time.Millisecond {
		t.Errorf("got %v (%s), want 200ms of the time since 100ms", got, where)
	}
}
