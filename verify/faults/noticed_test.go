//go:build linux

package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/check"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// What is looked for is found: each history breaks one promise, or none.
func TestJudge(t *testing.T) {
	const ttl = 1000 // ms; the window is 750
	at := func(ms int64, e event) event {
		e.At = ms * int64(time.Millisecond)
		e.Sent *= int64(time.Millisecond)
		return e
	}
	beat := func(ms int64) event { return at(ms, event{What: beats, Name: "s", Sent: ms - 1}) }
	ask := func(ms int64, id, slots int) event { return at(ms, event{What: asks, ID: id, Name: "x", Slots: slots}) }
	grant := func(ms int64, id, slots int, token int64) event {
		return at(ms, event{What: granted, ID: id, Name: "x", Slots: slots, Token: token})
	}
	tell := func(ms int64, what string, id int) event { return at(ms, event{What: what, ID: id, Name: "x"}) }
	write := func(ms int64, what string, id int, token int64, key string) event {
		return at(ms, event{What: what, ID: id, Name: "x", Slots: 1, Token: token, Text: key})
	}
	over := at(9000, event{What: closed})
	one := func(id int, from, to, token int64) []event {
		return []event{ask(from-1, id, 1), grant(from, id, 1, token), tell(to, ends, id)}
	}
	for _, c := range []struct {
		name   string
		rule   string // that is broken
		first  []event
		second []event
		killed int64 // when the first was killed
		rows   []string
	}{
		{name: "one after the other", first: one(1, 10, 20, 5), second: one(1, 21, 30, 6)},
		{name: "at once", rule: "C2", first: one(1, 10, 30, 5), second: one(1, 21, 30, 6)},
		{name: "a token twice", rule: "C1", first: one(1, 10, 20, 5), second: one(1, 21, 30, 5)},
		{name: "a smaller token", rule: "C1", first: one(1, 10, 20, 5), second: one(1, 21, 30, 4)},
		{name: "readers", first: []event{ask(9, 1, 0), grant(10, 1, 0, 5), tell(50, ends, 1)}, second: []event{ask(9, 1, 0), grant(11, 1, 0, 4), tell(40, ends, 1)}},
		{name: "killed, and the next at once", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5)}, killed: 20, second: one(1, 21, 30, 6)},
		{name: "the next before it was killed", rule: "C2", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5)}, killed: 22, second: one(1, 21, 30, 6)},
		{name: "lost, then the next", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(755, lost, 1), tell(756, finds, 1)}, second: one(1, 1010, 1030, 6)},
		{name: "the next within its window", rule: "C2", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(755, lost, 1), tell(756, finds, 1)}, second: one(1, 700, 730, 6)},
		{name: "lost before its window was over", rule: "C6", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(500, lost, 1), tell(501, finds, 1)}},
		{name: "believes longer than its window", rule: "C6", first: one(1, 10, 800, 5)},
		{name: "its window moves", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), beat(400), tell(1100, ends, 1)}},
		{name: "told late", rule: "C6", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(1100, lost, 1), tell(1101, finds, 1)}},
		{name: "not told", rule: "C6", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(800, finds, 1)}},
		{name: "no answer", rule: "P6", first: []event{ask(9, 1, 1)}},
		{name: "a fenced write", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), write(15, commits, 1, 5, "k"), write(16, committed, 1, 5, "k"), tell(20, ends, 1)}, second: one(1, 21, 30, 6), rows: []string{"k"}},
		{name: "a fenced write behind a later holder", rule: "fence", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(20, ends, 1), write(25, commits, 1, 5, "k")}, second: one(1, 21, 30, 6), rows: []string{"k"}},
		{name: "one that was refused", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), tell(20, ends, 1), write(25, commits, 1, 5, "k")}, second: one(1, 21, 30, 6)},
		{name: "a confirmed write is gone", rule: "durable", first: []event{ask(9, 1, 1), grant(10, 1, 1, 5), write(15, commits, 1, 5, "k"), write(16, committed, 1, 5, "k"), tell(20, ends, 1)}},
	} {
		h := &history{rows: make(map[string]bool)}
		for i, events := range [][]event{c.first, c.second} {
			s := &story{id: string(rune('a' + i)), ttl: ttl * time.Millisecond, events: slices.Concat([]event{beat(1)}, events, []event{over})}
			if i == 0 {
				s.killed = c.killed * int64(time.Millisecond)
			} else if len(events) > 0 {
				s.events = slices.Insert(s.events, 1, beat(events[0].At/int64(time.Millisecond)-1))
			}
			h.stories = append(h.stories, s)
		}
		for _, key := range c.rows {
			h.rows[key] = true
		}
		found := h.judge()
		if c.rule == "" && len(found) > 0 || c.rule != "" && !broken(found, c.rule) {
			t.Errorf("%s: found %v, want %q", c.name, found, c.rule)
		}
	}
}

func broken(found []check.Violation, rule string) bool {
	return slices.ContainsFunc(found, func(v check.Violation) bool { return v.Rule == rule })
}

// A name that nobody holds though somebody waits is noticed.
func TestGap(t *testing.T) {
	at := func(ms int64, what string, id int) event {
		return event{At: ms * int64(time.Millisecond), What: what, ID: id, Name: "x", Slots: 1}
	}
	h := &history{healed: int64(100 * time.Millisecond), stories: []*story{
		{id: "a", ttl: time.Second, events: []event{{At: 1, Sent: 1, What: beats, Name: "s"}, at(10, asks, 1), at(20, granted, 1), at(50, ends, 1)}},
		{id: "b", ttl: time.Second, events: []event{{At: 1, Sent: 1, What: beats, Name: "s"}, at(15, asks, 1), at(300, granted, 1), at(310, ends, 1)}},
	}}
	if got, where := h.gap(); got != 200*time.Millisecond {
		t.Errorf("got %v (%s), want 200ms of the time since 100ms", got, where)
	}
}

// Real workers that break a promise are noticed: one that goes on believing when
// its window is over, and one that writes without the fence.
func TestNoticed(t *testing.T) {
	for _, c := range []struct {
		kind  string
		start func(testing.TB, *servers.Options) *servers.Server
	}{{"postgres", servers.Postgres}, {"mysql", servers.MySQL}} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			s := c.start(t, nil)
			must(t, account(t.Context(), s))
			l := &lane{kind: c.kind, server: s}
			noticed(t, l, "C2", []string{"-broken", "believes"}, func(e *episode, p *process) {
				e.await("it holds the lock", func() bool { return p.has(granted, 0) })
				p.proxy.Blackhole(true, true)
				e.sleep(3 * e.ttl)
				p.proxy.Blackhole(false, false)
			})
			noticed(t, l, "fence", []string{"-broken", "no fence", "-freeze", "transaction"}, func(e *episode, p *process) {
				from := life.Now()
				e.await("it stops itself", func() bool { return state(p.cmd.Process.Pid) == 'T' })
				still := life.Now()
				e.await("somebody else has the lock", func() bool { return e.workers[0].has(granted, still) })
				e.resume(p, from)
			})
		})
	}
}

func noticed(t *testing.T, l *lane, rule string, flags []string, during func(e *episode, p *process)) {
	t.Helper()
	slow, err := life.Slowness(t.TempDir())
	must(t, err)
	e := newEpisode(t, l, *seed)
	e.start("0", "-names", "one/x", "-lanes", "1")
	p := e.start("1", append([]string{"-names", "one/x", "-lanes", "1"}, flags...)...)
	p.broken = true
	during(e, p)
	r := e.conclude(slow)
	if !broken(r.Found, rule) {
		t.Errorf("%v: found %v, want %s", flags, r.Found, rule)
		e.dump()
	}
}
