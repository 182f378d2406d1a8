package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// ms is an instant so many milliseconds after the first.
func ms(n int) lease.Instant { return lease.Instant(n) * lease.Instant(time.Millisecond) }

// paceEnv is that of a client whose session is "us", at an instant. Sessions that begin with
// a cross are dead.
func paceEnv(at lease.Instant) *Env {
	nr := int64(0)
	return &Env{Now: at, Session: lease.View{ID: "us", Opening: true, Opened: true, Until: 1 << 60, TTL: record.DefaultTTL}, Answers: true,
		Wall: func() int64 { return 1 }, NewClaim: func() int64 { nr++; return nr }, Dead: func(s string) bool { return strings.HasPrefix(s, "+") }}
}

// lockOf is a lock record with the sessions in its queue, of which the first has the lock.
func lockOf(queue ...string) (rec record.Lock) {
	for i, s := range queue {
		c := record.Claim{Session: s, Nr: 1, Slots: 1, TTL: record.DefaultTTL.Milliseconds()}
		if i == 0 {
			c.Token = 1
			rec.Holders = append(rec.Holders, c)
		} else {
			rec.Waiters = append(rec.Waiters, c)
		}
	}
	return rec
}

// waiting is a name with its pace, that has seen such a queue at an instant. We wait in it if
// "us" is one of its sessions.
func waiting(t *testing.T, key string, at lease.Instant, queue ...string) Paced {
	t.Helper()
	n, env := NewName(nil), paceEnv(at)
	if i := slices.Index(queue, "us"); i > 0 {
		put := func() {
			t.Helper()
			if step, _ := n.Next(env); step.Kind != Put {
				t.Fatalf("%v: the step is %d, want a write", queue, step.Kind)
			}
		}
		n.Want(&Request{Slots: 1}, env)
		put() // as if it were free
		n.Answered(Outcome{Version: 1, Record: lockOf(queue[:i]...), Sent: at}, env)
		put()
		n.Answered(Outcome{Won: true, Version: 2, Sent: at}, env)
		n.Next(env)
	}
	p := Paced{Key: key, Name: n, Pace: NewPace(0)}
	p.see(at, 3, queue...)
	if p.Name.Waits() != (slices.Index(queue, "us") > 0) {
		t.Fatalf("%v: waits: %v", queue, p.Name.Waits())
	}
	return p
}

// see has a name follow what its queue is at an instant.
func (p Paced) see(at lease.Instant, v record.Version, queue ...string) (about time.Duration) {
	env := paceEnv(at)
	p.Name.Saw(lockOf(queue...), v, at, env)
	about = p.Pace.Follow(p.Name, env)
	if about > 0 {
		p.Pace.PollAt(at.Add(about))
	}
	return about
}

// crowd is a queue of n live sessions and then us.
func crowd(n int) (queue []string) {
	for i := range n {
		queue = append(queue, fmt.Sprint("s", i))
	}
	return append(queue, "us")
}

// How long after the queue has moved, and how often, a name is polled.
func TestPollEvery(t *testing.T) {
	for _, test := range []struct {
		name     string
		ahead    int // live waiters
		still    time.Duration
		notified bool
		want     time.Duration
	}{
		{"next in line, at first", 0, 0, false, 5500 * time.Microsecond},
		{"next in line, when its turn could have come", 0, 10 * time.Millisecond, false, quickPoll},
		{"next in line, later", 0, 700 * time.Millisecond, false, 100 * time.Millisecond},
		{"next in line, much later", 0, time.Hour, false, 1875 * time.Millisecond},
		{"the tenth, at first", 9, 0, false, 55 * time.Millisecond},
		{"the tenth, later", 9, 700 * time.Millisecond, false, 100 * time.Millisecond},
		{"the thousandth, at first", 999, 0, false, 1875 * time.Millisecond},
		{"next in line, notified, at first", 0, 0, true, calm},
		{"next in line, notified, later", 0, time.Second, true, 500 * time.Millisecond},
		{"next in line, notified, much later", 0, time.Hour, true, 1875 * time.Millisecond},
		{"the tenth, notified, at first", 9, 0, true, calm + 360*time.Millisecond},
		{"the tenth, notified, much later", 9, time.Hour, true, 3 * 1875 * time.Millisecond},
	} {
		p := waiting(t, "a", 0, crowd(test.ahead+1)...)
		env := paceEnv(lease.Instant(test.still))
		env.Notified = test.notified
		if got := p.Pace.every(env); got != test.want {
			t.Errorf("%s: polled every %v, want %v", test.name, got, test.want)
		}
	}
}

// How often it is polled at most, by the TTL of the session.
func TestSlowestPoll(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		0: record.DefaultTTL / 8, record.MinTTL: time.Second, 8 * time.Second: time.Second, 12 * time.Second: 1500 * time.Millisecond, time.Hour: 2 * time.Second,
	} {
		if got := (&Env{Session: lease.View{TTL: ttl}}).slowest(); got != want {
			t.Errorf("TTL %v: every %v, want %v", ttl, got, want)
		}
	}
}

// The pace of a queue is learned from how it moves: it may fall at once, and grows slowly.
func TestPaceIsLearned(t *testing.T) {
	type move struct {
		at    int // milliseconds
		ahead int // live waiters then
	}
	const year2026 = 1_767_225_600_000_000
	for _, test := range []struct {
		name  string
		token func(i int) record.Token // of the i-th move
		clock bool                     // the store says how old records are
		moves []move
		want  time.Duration
	}{
		{"not seen to move", nil, false, []move{{0, 9}, {1000, 9}}, firstPace},
		{"one in 4 ms", nil, false, []move{{0, 9}, {4, 8}}, 4 * time.Millisecond},
		{"four in 8 ms", nil, false, []move{{0, 9}, {8, 5}}, 2 * time.Millisecond},
		{"a millisecond at least", nil, false, []move{{0, 9}, {1, 5}}, time.Millisecond},
		{"one was slow", nil, false, []move{{0, 9}, {4, 8}, {500, 7}}, 6 * time.Millisecond},
		{"all are slow", nil, false, []move{{0, 9}, {100, 8}, {200, 7}, {300, 6}}, firstPace * 27 / 8},
		{"all are seen late", func(i int) record.Token { return record.Token(year2026 + 5000*i) }, true, []move{{0, 9}, {100, 8}, {200, 7}, {300, 6}}, 5 * time.Millisecond},
		{"tokens are counted from a time", func(i int) record.Token { return record.Token(year2026 + i) }, false, []move{{0, 9}, {100, 8}, {200, 7}, {300, 6}}, firstPace * 27 / 8},
		{"tokens are counted, ages are known", func(i int) record.Token { return record.Token(i) }, true, []move{{0, 9}, {100, 8}, {200, 7}, {300, 6}}, firstPace * 27 / 8},
		{"tokens are no times", func(i int) record.Token { return record.Token(i) }, false, []move{{0, 9}, {100, 8}, {200, 7}, {300, 6}}, firstPace * 27 / 8},
	} {
		p := waiting(t, "a", ms(test.moves[0].at), crowd(test.moves[0].ahead+1)...)
		for i, m := range test.moves[1:] {
			queue := crowd(10)[9-m.ahead:]
			env := paceEnv(ms(m.at))
			rec := lockOf(queue...)
			if rec.Holders[0].Token = record.Token(1 + i); test.token != nil {
				rec.Holders[0].Token = test.token(i)
			}
			if test.clock {
				p.Pace.Clock(record.Version(rec.Holders[0].Token), time.Millisecond)
			}
			p.Name.Saw(rec, record.Version(4+i), env.Now, env)
			p.Pace.Follow(p.Name, env)
		}
		if got := p.Pace.Quick(); got != test.want {
			t.Errorf("%s: a move takes %v, want %v", test.name, got, test.want)
		}
	}
}

// A client that sleeps past its turn learns from its grant how quickly the queue has moved. Otherwise
// it would sleep as long again.
func TestPaceIsLearnedFromGrant(t *testing.T) {
	const start = 1_767_225_600_000_000
	p := waiting(t, "a", 0, crowd(6)...)
	see := func(at int, token record.Token, queue ...string) {
		env, rec := paceEnv(ms(at)), lockOf(queue...)
		rec.Holders[0].Token = token
		p.Pace.Clock(start, time.Millisecond)
		p.Name.Saw(rec, record.Version(token), env.Now, env)
		p.Pace.Follow(p.Name, env)
	}
	see(200, start, crowd(6)[1:]...)
	if got := p.Pace.Quick(); got != firstPace*3/2 {
		t.Fatalf("a move takes %v", got)
	}
	see(1000, start+25_000, "us")
	if got, want := p.Pace.Quick(), 5*time.Millisecond; got != want {
		t.Errorf("five moves in 25 ms by the store's clock, seen much later: a move takes %v, want %v", got, want)
	}
}

// However late a crowd was before, it polls by how quickly its queue has moved on last: it does
// not stay late.
func TestLateCrowdRecovers(t *testing.T) {
	p := waiting(t, "a", 0, crowd(60)...)
	at := 0
	for ahead := 58; ahead >= 40; ahead-- {
		took := 200
		if ahead == 40 {
			took = 20
		}
		at += took
		p.see(ms(at), record.Version(100-ahead), crowd(60)[59-ahead:]...)
	}
	if got, want := p.Pace.every(paceEnv(ms(at))), 41*20*time.Millisecond*11/20; got != want {
		t.Errorf("after holds that took 200 ms and one of 20 ms the 41st polls after %v, want %v", got, want)
	}
}

// When a name is read of which a notification for everyone has come, in milliseconds from
// then; -1: not because of that.
func TestNotifiedAt(t *testing.T) {
	for _, test := range []struct {
		name   string
		queue  []string
		readAt int // before; -1: not at all
		want   int
	}{
		{"next in line", []string{"a", "us"}, -1, 0},
		{"the third", []string{"a", "b", "c", "us"}, -1, 6},
		{"the dead do not count", []string{"a", "+b", "c", "us"}, -1, 3},
		{"far away", crowd(100), -1, 180},
		{"it is read earlier", []string{"a", "b", "c", "us"}, 1, -1},
		{"it is read later", []string{"a", "b", "c", "us"}, 7, 6},
		{"waits for nothing", []string{"a"}, -1, -1},
	} {
		p := waiting(t, "a", 0, test.queue...)
		if test.readAt >= 0 {
			p.Pace.ReadAt(ms(100 + test.readAt))
		}
		want := lease.Never
		if test.want >= 0 {
			want = ms(100 + test.want)
		}
		if got := p.Pace.NotifiedAt(p.Name, paceEnv(ms(100))); got != want {
			t.Errorf("%s: read at %d, want %d", test.name, got, want)
		}
	}
}

// Whether a name is loaded although a stale read shows nothing new.
func TestLoads(t *testing.T) {
	for _, test := range []struct {
		name string
		last int // when it was last loaded, in seconds after the queue moved
		at   int // now
		want bool
	}{
		{"within a TTL", 0, 15, false},
		{"after a TTL", 0, 16, true},
		{"in a long wait, within a seventh of it", 200, 230, false},
		{"in a long wait, after a seventh of it", 200, 234, true},
		{"after four TTLs", 7000, 7061, true},
	} {
		p := waiting(t, "a", 0, "a", "us")
		env := paceEnv(ms(1000 * test.last))
		p.Name.SawAgain(env.Now, env)
		if got := p.Pace.Loads(p.Name, paceEnv(ms(1000*test.at))); got != test.want {
			t.Errorf("%s: loaded: %v, want %v", test.name, got, test.want)
		}
	}
	if !(*Pace)(nil).Loads(NewName(nil), paceEnv(0)) {
		t.Error("a name that was never read is not loaded")
	}
}

// The record of a crowd is read less often, whoever waits in it.
func TestCrowdIsPolledLess(t *testing.T) {
	for _, test := range []struct {
		waiters int
		want    time.Duration
	}{
		{1, quickPoll},
		{record.Few, quickPoll},
		{record.Few + 40, quickPoll + 40*crowdPoll},
	} {
		queue := []string{"h", "us"}
		for i := range test.waiters - 1 {
			queue = append(queue, fmt.Sprint("b", i))
		}
		p := waiting(t, "a", 0, queue...)
		if got := p.Pace.every(paceEnv(ms(10))); got != test.want {
			t.Errorf("next of %d in line: polled every %v, want %v", test.waiters, got, test.want)
		}
	}
}

// The sessions ahead are read where a queue stands still, and from the beginning where the store
// has no clock.
func TestMovingQueue(t *testing.T) {
	const clock = record.Version(1_764_270_000_000_000)
	quarter := record.DefaultTTL / 4 // and two of the slowest polls
	for _, test := range []struct {
		name  string
		clock record.Version
		polls int // that find it as it was
		still time.Duration
		moves bool
	}{
		{"no clock", 7, 0, time.Millisecond, false},
		{"it has just moved", clock, 0, time.Millisecond, true},
		{"it has just moved, and was polled", clock, 1, time.Millisecond, true},
		{"long enough for one poll", clock, 1, calm + 4*firstPace, false},
		{"not long enough for one poll", clock, 1, calm + 4*firstPace - ms(20).Sub(0), true},
		{"long, and not polled", clock, 0, quarter - ms(20).Sub(0), true},
		{"too long, and not polled", clock, 0, quarter, false},
	} {
		p := waiting(t, "a", 0, "h", "us")
		p.Pace.Clock(test.clock, 0)
		for range test.polls + 1 { // the first finds that it has moved
			p.Pace.Polled(p.Name, 0, paceEnv(0))
		}
		now := lease.Instant(test.still)
		r := NextRound(slices.Values([]Paced{p}), paceEnv(now))
		if r.moves(now) != test.moves {
			t.Errorf("%s: moves %v", test.name, r.moves(now))
		}
		polls := NewPolls(false)
		polls.SessionsAt(now - ms(1000))
		for name, observeAt := range map[string]lease.Instant{"the failure detector needs none": lease.Never, "it needs one": now} {
			due := *polls
			sessions, _ := due.Sessions(r, observeAt, now)
			if want := !test.moves || observeAt != lease.Never; (len(sessions) > 0) != want {
				t.Errorf("%s, %s: read %v", test.name, name, sessions)
			}
		}
		if pause, _ := polls.Pause(r, lease.Never, false, now); test.moves != (pause > minPause) {
			t.Errorf("%s: pauses for %v", test.name, pause)
		}
	}
	// Where no session is to be read, that one would be, later, does not make the pause longer.
	for _, sessions := range [][]string{nil, {"h"}} {
		r := &Round{Waits: true, Sessions: sessions, still: ms(5000), next: lease.Never}
		want := lastPoll
		if sessions != nil {
			want = 5 * time.Second
		}
		if pause, _ := NewPolls(false).Pause(r, lease.Never, false, 0); pause != want {
			t.Errorf("sessions %v: pauses for %v, want %v", sessions, pause, want)
		}
	}
	// Another queue, which stands still.
	a, b := waiting(t, "a", 0, "h", "us"), waiting(t, "b", 0, "h", "us")
	a.Pace.Clock(clock, 0)
	for _, names := range [][]Paced{{a, b}, {b, a}} {
		if r := NextRound(slices.Values(names), paceEnv(ms(1))); r.moves(ms(1)) {
			t.Error("one of two queues stands still, and both move")
		}
	}
}
