package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// guestEnv is a client without a session that knows of these dead.
func guestEnv(dead ...string) *Env {
	return &Env{Now: 1, Wall: func() int64 { return 1 }, Dead: func(s string) bool { return slices.Contains(dead, s) }}
}

func guest(session string, since int64, enter bool) *Guest {
	return &Guest{Claim: record.Claim{Session: session, Nr: 1, Slots: 1, Since: since}, Enter: enter}
}

// Guests that are to be entered go in one write, in the order of their requests, and learn where
// they are. A claim that nobody asks for any more stays.
func TestGuestsEnter(t *testing.T) {
	n, env := NewName(nil), guestEnv()
	n.Looked(lockOf("a"), 7, 1, nil, env)
	c, b := guest("c", 2, true), guest("b", 1, true)
	n.Invite(c, env)
	n.Invite(b, env)
	step, _ := n.Next(env)
	if step.Kind != Put || queueOf(step.Write.Next) != "a+ b c" || step.Write.Old != 7 {
		t.Fatalf("the step is %+v", step)
	}
	eff := n.Answered(Outcome{Won: true, Version: 8}, env)
	if len(eff.Guests) != 2 || b.State != GuestWaits || b.Place != 1 || c.Place != 2 || !n.Waits() {
		t.Errorf("b %+v, c %+v", b, c)
	}
	if first, ok := n.First(); !ok || first.Session != "b" {
		t.Errorf("the first is %v", first)
	}
	if n.Dismiss(c); n.Idle() || n.Hosts("c") {
		t.Error("a guest is not forgotten")
	}
	n.Dismiss(b)
	if step, _ := n.Next(env); step.Kind != Idle || !step.Forget {
		t.Errorf("then the step is %+v", step)
	}
}

// A guest that somebody has broken before its write was answered is not written again, though a
// look that shows the record without it overtakes the answer.
func TestGuestBrokenBeforeAnswer(t *testing.T) {
	n, env, g := NewName(nil), guestEnv(), guest("g", 1, true)
	n.Looked(lockOf("a"), 7, 1, nil, env)
	n.Invite(g, env)
	if step, _ := n.Next(env); step.Kind != Put || queueOf(step.Write.Next) != "a+ g" {
		t.Fatalf("the step is %+v", step)
	}
	env.Now = 3
	n.Saw(lockOf("a"), 9, 3, env)
	eff := n.Answered(Outcome{Won: true, Version: 8, Sent: 2}, env)
	if g.State != GuestGone || len(eff.Guests) != 1 {
		t.Errorf("the guest is %+v, and %d are reported", g, len(eff.Guests))
	}
	if step, _ := n.Next(env); step.Kind == Put {
		t.Errorf("it is written again: %+v", step)
	}
}

// What a look shows of a guest, and whether the guest hears of it.
func TestGuestsLook(t *testing.T) {
	for _, test := range []struct {
		queue string
		state GuestState
		place int
		told  bool
	}{
		{"a g", GuestWaits, 1, true},
		{"a b g", GuestWaits, 2, false},
		{"a x b g", GuestWaits, 2, false},
		{"a b c g", GuestWaits, 3, true},
		{"g", GuestHolds, 0, true},
		{"a b", GuestGone, 0, true},
		{"", GuestGone, 0, true},
	} {
		n, env, g := NewName(nil), guestEnv("x"), guest("g", 1, false)
		n.Looked(lockOf("a", "b", "g"), 7, 1, nil, env)
		if n.Invite(g, env); g.State != GuestWaits || g.Place != 2 {
			t.Fatalf("at first it is %+v", g)
		}
		eff := n.Looked(lockOf(strings.Fields(test.queue)...), 8, 2, nil, env)
		if g.State != test.state || g.Place != test.place || len(eff.Guests) > 0 != test.told {
			t.Errorf("%q: state %d, place %d, told %v; want %+v", test.queue, g.State, g.Place, len(eff.Guests) > 0, test)
		}
	}
}

// A guest that is in no record is gone after a look that came after it, not by one before.
func TestGuestIsLookedFor(t *testing.T) {
	n, env, g := NewName(nil), guestEnv(), guest("g", 1, false)
	n.Looked(lockOf("a"), 7, 1, nil, env)
	if n.Invite(g, env); g.State != GuestUnseen {
		t.Fatalf("by an earlier look it is %+v", g)
	}
	if step, _ := n.Next(env); step.Kind != Load {
		t.Fatalf("the step is %+v", step)
	}
	n.SawAgain(2, env)
	if g.State != GuestGone {
		t.Errorf("it is %+v", g)
	}
}

// A queue without room refuses a guest.
func TestGuestRefused(t *testing.T) {
	full := lockOf("a")
	for i := range 4096 {
		full.Enqueue(record.Claim{Session: fmt.Sprint(i), Nr: 1, Slots: 1})
	}
	n, env, g := NewName(nil), guestEnv(), guest("g", 1, true)
	n.Looked(full, 7, 1, nil, env)
	n.Invite(g, env)
	if step, eff := n.Next(env); step.Kind != Idle || g.State != GuestRefused || len(eff.Guests) != 1 {
		t.Errorf("the step is %v, the guest %+v", step.Kind, g)
	}
}

// The death of a holder ahead of a guest makes the record follow, as for a claim of one's own.
func TestGuestBehindTheDead(t *testing.T) {
	n, env, g := NewName(nil), guestEnv(), guest("g", 1, false)
	n.Looked(lockOf("a", "g"), 7, 1, nil, env)
	n.Invite(g, env)
	if step, _ := n.Next(env); step.Kind != Idle || step.Forget {
		t.Fatalf("the step is %+v", step)
	}
	if step, _ := n.Next(guestEnv("a")); step.Kind != Put || queueOf(step.Write.Next) != "g+" || step.Write.Notify != "g" {
		t.Errorf("the step is %+v", step)
	}
}

// queueOf is who holds, each with a plus, and who waits.
func queueOf(r record.Lock) string {
	var out []string
	for _, c := range r.Holders {
		out = append(out, c.Session+"+")
	}
	for _, c := range r.Waiters {
		out = append(out, c.Session)
	}
	return strings.Join(out, " ")
}
