package core

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// What a round of the poll loop reads. All that waits was last seen at 0 and is polled 5.5 ms
// later if it is next in line, and 55 ms later if nine are before it.
func TestNextRound(t *testing.T) {
	nine := crowd(10)
	for _, test := range []struct {
		name     string
		queues   map[string][]string
		notified map[string]int // when a name is read, in milliseconds
		at       int
		due      []string
		sessions []string
		close    []string
		next     int // in microseconds; -1: never
		over     bool
	}{
		{"nothing", nil, nil, 0, nil, nil, nil, -1, true},
		{"waits for nothing", map[string][]string{"a": {"h"}}, nil, 0, nil, nil, nil, -1, true},
		{"not yet", map[string][]string{"a": {"h", "us"}}, nil, 3, nil, []string{"h"}, []string{"h"}, 5500, false},
		{"due", map[string][]string{"a": {"h", "us"}}, nil, 6, []string{"a"}, []string{"h"}, []string{"h"}, -1, false},
		{"what is nearly due comes along", map[string][]string{"a": {"h", "us"}, "b": nine}, nil, 53, []string{"a", "b"}, append([]string{"h"}, nine[:10]...), []string{"h"}, -1, false},
		{"what is not due for long does not", map[string][]string{"a": {"h", "us"}, "b": nine}, nil, 10, []string{"a"}, append([]string{"h"}, nine[:10]...), []string{"h"}, 55_000, false},
		{"and nothing does when nothing is due", map[string][]string{"b": nine}, nil, 53, nil, nine[:10], nil, 55_000, false},
		{"a notification", map[string][]string{"b": nine}, map[string]int{"b": 1}, 2, []string{"b"}, nine[:10], nil, -1, false},
		{"a notification brings no other along", map[string][]string{"a": {"h", "us"}, "b": nine}, map[string]int{"b": 1}, 5, []string{"b"}, append([]string{"h"}, nine[:10]...), []string{"h"}, 5500, false},
		{"a notification that is to be followed later", map[string][]string{"b": nine}, map[string]int{"b": 9}, 2, nil, nine[:10], nil, 9000, false},
		{"where nothing waits", map[string][]string{"a": {"h"}}, map[string]int{"a": 1}, 1, []string{"a"}, nil, nil, -1, false},
		{"who is behind us, dead or met before", map[string][]string{"a": {"h", "+x", "w", "us", "z"}, "b": {"w", "h", "us"}}, nil, 0, nil, []string{"h", "w"}, []string{"h", "w"}, 11_000, false},
	} {
		var names []Paced
		for key, queue := range test.queues {
			p := waiting(t, key, 0, queue...)
			if at, ok := test.notified[key]; ok {
				p.Pace.ReadAt(ms(at))
			}
			names = append(names, p)
		}
		r := NextRound(slices.Values(names), paceEnv(ms(test.at)))
		slices.Sort(r.Due)
		slices.Sort(r.Sessions)
		slices.Sort(r.Close)
		slices.Sort(test.sessions)
		next := lease.Never
		if test.next >= 0 {
			next = lease.Instant(test.next) * lease.Instant(time.Microsecond)
		}
		if !slices.Equal(r.Due, test.due) || !slices.Equal(r.Sessions, test.sessions) || !slices.Equal(r.Close, test.close) || r.next != next || r.Waits == test.over {
			t.Errorf("%s: due %v, sessions %v, close %v, next %v, waits %v", test.name, r.Due, r.Sessions, r.Close, r.next, r.Waits)
		}
	}
}

// How long the store may take to look for a write, in milliseconds after it was last seen to
// move. What is next in line is due after 5.5.
func TestAwait(t *testing.T) {
	alone := map[string][]string{"a": {"h", "us"}}
	for _, test := range []struct {
		name      string
		queues    map[string][]string
		change    func(*Env)
		observeAt int // when the failure detector needs a session; -1: never
		kernel    bool
		at        int
		want      time.Duration
		every     time.Duration
	}{
		{"next in line", alone, nil, -1, false, 6, awaitFor, quickLook},
		{"next in line, later", alone, nil, -1, false, 100, awaitFor, 10 * time.Millisecond},
		{"not due", alone, nil, -1, false, 3, 0, 0},
		{"the second", map[string][]string{"a": {"h", "w", "us"}}, nil, -1, false, 20, 0, 0},
		{"another name waits", map[string][]string{"a": {"h", "us"}, "b": crowd(9)}, nil, -1, false, 6, 0, 0},
		{"it is far from moving", alone, nil, -1, false, 250, 0, 0},
		{"a process ahead may be seen to die", alone, nil, -1, true, 6, proofPoll, quickLook},
		{"a session is needed later", alone, nil, 30, false, 6, 24 * time.Millisecond, quickLook},
		{"a session is needed at once", alone, nil, 7, false, 6, 0, 0},
		{"notifications come", alone, func(e *Env) { e.Notified = true }, -1, false, 1000, 0, 0},
		{"the store cannot", alone, func(e *Env) { e.Awaits = false }, -1, false, 6, 0, 0},
	} {
		env := paceEnv(ms(test.at))
		env.Awaits = true
		if test.change != nil {
			test.change(env)
		}
		var names []Paced
		for key, queue := range test.queues {
			names = append(names, waiting(t, key, 0, queue...))
		}
		r := NextRound(slices.Values(names), env)
		observeAt := lease.Never
		if test.observeAt >= 0 {
			observeAt = ms(test.observeAt)
		}
		one := names[0]
		if len(r.Due) > 0 {
			one = names[slices.IndexFunc(names, func(p Paced) bool { return p.Key == r.Due[0] })]
		}
		r.still = ms(1000) // that the sessions are read is another matter
		if got, want := NewPolls(false).Await(r, one, observeAt, test.kernel, env), (Await{test.every, test.want}); got != want {
			t.Errorf("%s: the store looks every %v for %v, want %v for %v", test.name, got.Every, got.Limit, want.Every, want.Limit)
		}
		one.Pace = nil // the wait has ended since the round began
		if got := NewPolls(false).Await(r, one, observeAt, test.kernel, env); got != (Await{}) {
			t.Errorf("%s: where the wait has ended the store looks every %v for %v", test.name, got.Every, got.Limit)
		}
	}
}

// When the sessions ahead are read. They were to be read at second 10, every 200 ms.
func TestSessionsAreRead(t *testing.T) {
	for _, test := range []struct {
		name      string
		polled    bool
		stale     bool
		at        int // milliseconds
		observeAt int // when the failure detector needs one; -1: never
		want      bool
	}{
		{"long before", true, false, 9000, -1, false},
		{"a little before, alone", false, false, 9950, -1, false},
		{"a little before, along with a name", true, false, 9950, -1, true},
		{"a little before, each at its own cost", true, true, 9950, -1, false},
		{"at the time, alone", false, false, 10_000, -1, false},
		{"at the time, along with a name", true, true, 10_000, -1, true},
		{"late", false, false, 10_100, -1, true},
		{"the failure detector needs them", false, false, 9000, 9000, true},
		{"it will", false, false, 9000, 9001, false},
	} {
		r := &Round{Sessions: []string{"s"}, near: true, polled: test.polled, slowest: time.Second, ttl: record.DefaultTTL, next: lease.Never}
		p := NewPolls(test.stale)
		p.SessionsAt(ms(10_000))
		observeAt := lease.Never
		if test.observeAt >= 0 {
			observeAt = ms(test.observeAt)
		}
		sessions, about := p.Sessions(r, observeAt, ms(test.at))
		if (len(sessions) > 0) != test.want || (about > 0) != test.want {
			t.Errorf("%s: read %v, again after %v", test.name, sessions, about)
		}
	}
}

// About how long it takes from one read of the sessions to the next.
func TestSessionsAreReadEvery(t *testing.T) {
	for _, test := range []struct {
		name                  string
		near, notified, stale bool
		first, second, last   time.Duration
	}{
		{"near", true, false, false, 200 * time.Millisecond, 300 * time.Millisecond, time.Second},
		{"far", false, false, false, 200 * time.Millisecond, 300 * time.Millisecond, 4 * time.Second},
		{"near, notified", true, true, false, 200 * time.Millisecond, 300 * time.Millisecond, time.Second},
		{"far, notified: the waiters that are near read for all", false, true, false, time.Second, 300 * time.Millisecond, 4 * time.Second},
		{"near, by stale reads", true, false, true, 200 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second},
		{"far, by stale reads", false, false, true, time.Second, 4 * time.Second, 4 * time.Second},
	} {
		r := &Round{Sessions: []string{"s"}, near: test.near, notified: test.notified, slowest: time.Second, ttl: record.DefaultTTL, next: lease.Never}
		p, at := NewPolls(test.stale), lease.Instant(0)
		var every []time.Duration
		for range 12 {
			sessions, about := p.Sessions(r, lease.Never, at)
			if (len(sessions) > 0) != (len(every) > 0) {
				t.Errorf("%s: read %d: %v", test.name, len(every), sessions)
			}
			every = append(every, about)
			p.SessionsAt(at.Add(about))
			at = p.at.Add(p.every) // late enough, whether or not a name comes along
		}
		if every[0] != test.first || every[1] != test.second || every[11] != test.last {
			t.Errorf("%s: read after %v", test.name, every)
		}
	}
}

// How long the poll loop pauses, and whether it may be woken.
func TestPause(t *testing.T) {
	const now = 1000
	at := func(n int) lease.Instant {
		if n < 0 {
			return lease.Never
		}
		return ms(now + n)
	}
	for _, test := range []struct {
		name                              string
		next, sessions, observeAt, silent int // in milliseconds from now; -1: never
		kernel                            bool
		want                              int
		deaf                              bool
	}{
		{"for a name", 30, -1, -1, -1, false, 30, false},
		{"for the sessions, when they are late", 500, 40, -1, -1, false, 140, false},
		{"for the failure detector", 500, 40, 20, -1, false, 20, false},
		{"for the kernel", 500, -1, -1, -1, true, 20, false},
		{"for nothing", -1, -1, -1, -1, false, 1000, false},
		{"never without a pause", 0, -1, -1, -1, false, 1, false},
		{"while the store does not answer", 30, -1, -1, 70, true, 70, true},
	} {
		p := NewPolls(false)
		r := &Round{next: at(test.next)}
		if test.sessions >= 0 || test.observeAt >= 0 {
			r.Sessions = []string{"s"}
			p.SessionsAt(at(test.sessions))
		}
		p.SilentUntil(at(test.silent))
		pause, wakes := p.Pause(r, at(test.observeAt), test.kernel, at(0))
		if pause != time.Duration(test.want)*time.Millisecond || wakes == test.deaf {
			t.Errorf("%s: %v, may be woken: %v", test.name, pause, wakes)
		}
	}
}

// A store that does not answer is left alone ever longer, a second at most, until it does.
func TestSilentStore(t *testing.T) {
	p := NewPolls(false)
	last := time.Duration(0)
	for i := range 20 {
		about := p.Answered(false)
		if i == 0 && about != firstRest || about < last || about > lastPoll {
			t.Fatalf("pause %d is %v, after %v", i, about, last)
		}
		last = about
	}
	if last != lastPoll || p.Answered(true) != 0 || p.Answered(false) != firstRest {
		t.Errorf("the last pause is %v, and then %v", last, p.rest)
	}
}
