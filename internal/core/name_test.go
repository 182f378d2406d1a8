package core

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A release whose write was seen by another look before its answer was lost is confirmed by
// the next look, though that shows nothing new. It would wait for its session's end.
func TestSeenBeforeItFails(t *testing.T) {
	n, nr := NewName(nil), int64(0)
	env := &Env{Now: 1, Session: lease.View{ID: "s", Opening: true, Opened: true, Until: 1 << 60, TTL: record.DefaultTTL}, Answers: true, Wall: func() int64 { return 1 },
		NewClaim: func() int64 { nr++; return nr }, Dead: func(string) bool { return false }}
	next := func(want Kind) Step {
		t.Helper()
		step, _ := n.Next(env)
		if step.Kind != want {
			t.Fatalf("the next step is %d, want %d", step.Kind, want)
		}
		return step
	}
	n.Want(&Request{Slots: 1}, env)
	next(Put)
	eff := n.Answered(Outcome{Won: true, Version: 101, Sent: 1}, env)
	if len(eff.Granted) != 1 {
		t.Fatal("not granted")
	}
	token := eff.Granted[0].Token
	next(Idle)
	if leaves, _ := n.Release(token, env); leaves != 1 {
		t.Fatalf("claim %d leaves", leaves)
	}
	next(Put)
	n.Saw(record.Lock{}, 102, 2, env) // because of a notification
	n.Answered(Outcome{Err: errors.New("no answer"), Sent: 2}, env)
	next(Pause)
	n.Rested()
	next(Load)
	n.Looked(record.Lock{}, 102, 3, nil, env)
	n.Loaded(true, env)
	if _, eff := n.Next(env); len(eff.Gone) != 1 || eff.Gone[0].Void {
		t.Errorf("the release is not confirmed: %+v", eff.Gone)
	}
}

// A client that loses to writes of a crowd again and again pauses for longer than one that loses
// to those of a few, or whose record stays as it is, as behind a locked row. Hundreds that go on at
// once let each other in too rarely, and a few that pause for long give way to who does not.
func TestPauseInACrowd(t *testing.T) {
	for _, c := range []struct {
		what    string
		waiters int
		same    bool // the record stays as it is
		longest time.Duration
	}{
		{"a crowd", 64, false, 2 * time.Second},
		{"thirty", 30, false, 500 * time.Millisecond},
		{"a few", 14, false, 250 * time.Millisecond},
		{"a locked row", 64, true, 250 * time.Millisecond},
	} {
		there := lockOf(strings.Fields("a" + strings.Repeat(" b", c.waiters))...)
		n, nr, longest := NewName(nil), int64(0), time.Duration(0)
		env := &Env{Now: 1, Session: lease.View{ID: "s", Opening: true, Opened: true, Until: 1 << 60, TTL: record.DefaultTTL}, Answers: true, Wall: func() int64 { return 1 },
			NewClaim: func() int64 { nr++; return nr }, Dead: func(string) bool { return false }}
		n.Want(&Request{Slots: 1}, env)
		for lost, version := 0, record.Version(7); lost < 12; {
			step, _ := n.Next(env)
			sent := env.Now
			env.Now = env.Now.Add(400 * time.Millisecond)
			switch step.Kind {
			case Put:
				if lost++; !c.same {
					version++
				}
				n.Answered(Outcome{Version: version, Record: there, Same: c.same && lost > 1, Sent: sent}, env)
			case Pause:
				longest = max(longest, step.Most)
				n.Rested()
			case Load:
				n.Looked(there, version, sent, nil, env)
				n.Loaded(true, env)
			default:
				t.Fatalf("step %d after %d lost writes", step.Kind, lost)
			}
		}
		if longest != c.longest {
			t.Errorf("%s: the longest pause is %v, want %v", c.what, longest, c.longest)
		}
	}
}

// A claim that a crash of the store has taken out of the queue, and that a write which was late
// brings back, is ours as before: it is neither asked for again nor removed when the next heartbeat
// is confirmed. The removal of one that had been granted gave the lock to two.
func TestVanishedComesBack(t *testing.T) {
	other := record.Claim{Session: "h", Nr: 1, Slots: 1, Token: 10, TTL: record.DefaultTTL.Milliseconds()}
	ours := record.Claim{Session: "s", Nr: 1, Slots: 1, TTL: record.DefaultTTL.Milliseconds()}
	granted := ours
	granted.Token = 103
	for _, test := range []struct {
		name  string
		back  record.Lock
		holds bool
	}{
		{"granted", record.Lock{Holders: []record.Claim{granted}}, true},
		{"in the queue", record.Lock{Holders: []record.Claim{other}, Waiters: []record.Claim{ours}}, false},
	} {
		n, nr := NewName(nil), int64(0)
		env := &Env{Now: 1, Session: lease.View{ID: "s", Opening: true, Opened: true, Until: 1 << 60, TTL: record.DefaultTTL}, Answers: true, Wall: func() int64 { return 1 },
			NewClaim: func() int64 { nr++; return nr }, Dead: func(string) bool { return false }}
		next := func(when string, want Kind) {
			t.Helper()
			if step, _ := n.Next(env); step.Kind != want {
				t.Fatalf("%s: the step %s is %+v, want %d", test.name, when, step, want)
			}
		}
		n.Want(&Request{Slots: 1}, env)
		next("of a request", Put)
		n.Answered(Outcome{Version: 100, Record: record.Lock{Holders: []record.Claim{other}}, Sent: 1}, env)
		next("after it lost", Put)
		n.Answered(Outcome{Won: true, Version: 101, Sent: 1}, env)
		next("in the queue", Idle)
		if eff := n.Saw(record.Lock{}, 102, 2, env); !eff.Beat {
			t.Fatalf("%s: the claim has vanished, and no heartbeat is sent", test.name)
		}
		next("when the claim has vanished", Idle)
		if eff := n.Saw(test.back, 103, 3, env); len(eff.Granted) == 1 != test.holds {
			t.Fatalf("%s: granted %+v", test.name, eff.Granted)
		}
		n.Beaten(env)
		next("after the heartbeat", Idle)
	}
}

// Whoever removes the claim of the dead tells of it once, also where its write was seen before its
// answer, by a notification, and where the answer was lost. It tells nothing of a write that was not
// applied.
func TestEvictedIsTold(t *testing.T) {
	dead := record.Claim{Session: "d", Nr: 1, Slots: 1, Token: 10, TTL: record.DefaultTTL.Milliseconds()}
	ours := record.Claim{Session: "s", Nr: 1, Slots: 1, Token: 102}
	failed := errors.New("no answer")
	for _, test := range []struct {
		name string
		then func(n *Name, env *Env) []*Effects
		told int
	}{
		{"it is answered", func(n *Name, env *Env) []*Effects {
			return []*Effects{n.Answered(Outcome{Won: true, Version: 101, Sent: 2}, env)}
		}, 1},
		{"it is seen before its answer", func(n *Name, env *Env) []*Effects {
			n.Saw(record.Lock{Holders: []record.Claim{ours}}, 101, 2, env)
			return []*Effects{n.Answered(Outcome{Won: true, Version: 101, Sent: 2}, env)}
		}, 1},
		{"its answer is lost", func(n *Name, env *Env) []*Effects {
			n.Answered(Outcome{Err: failed, Sent: 2}, env)
			return []*Effects{n.Saw(record.Lock{Holders: []record.Claim{ours}}, 101, 3, env)}
		}, 1},
		{"its answer is lost, and so is its trace", func(n *Name, env *Env) []*Effects {
			n.Answered(Outcome{Err: failed, Sent: 2}, env)
			return []*Effects{n.Saw(record.Lock{}, 108, 3, env)}
		}, 1},
		{"its answer is lost, and it was not applied", func(n *Name, env *Env) []*Effects {
			n.Answered(Outcome{Err: failed, Sent: 2}, env)
			return []*Effects{n.Saw(record.Lock{Holders: []record.Claim{dead}, Next: 11}, 103, 3, env)}
		}, 0},
		{"its answer is lost, and it is not known", func(n *Name, env *Env) []*Effects {
			n.Answered(Outcome{Err: failed, Sent: 2}, env)
			return []*Effects{n.Saw(record.Lock{Holders: []record.Claim{dead}}, 100, 3, env)}
		}, 0},
		{"its answer is lost, and the record is not readable", func(n *Name, env *Env) []*Effects {
			n.Answered(Outcome{Err: failed, Sent: 2}, env)
			return []*Effects{n.Looked(record.Lock{}, 103, 3, failed, env)}
		}, 0},
		{"it has lost", func(n *Name, env *Env) []*Effects {
			return []*Effects{n.Answered(Outcome{Version: 103, Record: record.Lock{Holders: []record.Claim{dead}, Next: 11}, Sent: 2}, env)}
		}, 0},
	} {
		rooms := &Rooms{}
		n, nr := NewName(rooms), int64(0)
		env := &Env{Now: 1, Session: lease.View{ID: "s", Opening: true, Opened: true, Until: 1 << 60, TTL: record.DefaultTTL}, Answers: true, Wall: func() int64 { return 1 },
			NewClaim: func() int64 { nr++; return nr }, Dead: func(session string) bool { return session == "d" }}
		n.Saw(record.Lock{Holders: []record.Claim{dead}}, 100, 1, env)
		n.Want(&Request{Slots: 1}, env)
		if step, _ := n.Next(env); step.Kind != Put {
			t.Fatalf("%s: the step is %+v", test.name, step)
		}
		env.Now = 3
		var told []record.Eviction
		for _, eff := range test.then(n, env) {
			told = append(told, eff.Evicted...)
		}
		told = append(told, n.SawAgain(4, env).Evicted...)
		n.Rest()
		other := NewName(rooms) // has the room now
		told = append(told, other.Saw(record.Lock{}, 200, 5, env).Evicted...)
		if len(told) != test.told || len(told) > 0 && told[0].Claim.Session != "d" {
			t.Errorf("%s: told of %+v, want %d", test.name, told, test.told)
		}
	}
}
