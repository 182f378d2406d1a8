package record

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// lockLine is a lock record written as "a+ b": a holds, b waits.
func lockLine(s string) (r Lock) {
	for i, f := range strings.Fields(s) {
		id, holds := strings.CutSuffix(f, "+")
		c := Claim{Session: id, Nr: 1, Slots: 1}
		if !holds {
			r.Waiters = append(r.Waiters, c)
			continue
		}
		c.Token = Token(100 + i)
		r.Holders = append(r.Holders, c)
	}
	return r
}

func queueOf(r Lock) string {
	var out []string
	for _, c := range r.Holders {
		out = append(out, c.Session+"+")
	}
	for _, c := range r.Waiters {
		out = append(out, c.Session)
	}
	return strings.Join(out, " ")
}

// What a hold "h" writes, given the records of its names; "x" is dead.
func TestPlanHold(t *testing.T) {
	for _, test := range []struct {
		records []string
		wait    bool
		want    string // what is written
		missing int
		back    bool
	}{
		{[]string{""}, false, "0: h+", -1, false},
		{[]string{"h+"}, false, "", -1, false},
		{[]string{"a+"}, false, "", 0, false},
		{[]string{"a+"}, true, "0: a+ h", 0, false},
		{[]string{"a+ b"}, true, "0: a+ b h", 0, false},
		{[]string{"a+ h"}, true, "", 0, false},
		{[]string{"a+ h b"}, false, "0: a+ b", 0, false},
		{[]string{"x+ h"}, true, "0: h+", -1, false},
		{[]string{"x+"}, false, "0: h+", -1, false},
		{[]string{"x+ a h"}, true, "0: a+ h", 0, false},
		{[]string{"", ""}, true, "0: h+; 1: h+", -1, false},
		{[]string{"", "a+", ""}, true, "0: h+; 1: a+ h", 1, false},
		{[]string{"h+", "a+", "h+"}, true, "1: a+ h; 2: ", 1, true},
		{[]string{"h+", "a+", "h+ b"}, true, "1: a+ h; 2: b+", 1, true},
		{[]string{"h+", "a+ h", ""}, true, "", 1, false},
		{[]string{"h+", "h+", ""}, true, "2: h+", -1, false},
		{[]string{"h+", "a+", ""}, false, "0: ", 1, true},
		{[]string{"", "a+", "a+ h"}, false, "2: a+", 1, false},
		{[]string{"a+ h", "a+ h"}, true, "1: a+", 0, false},
	} {
		var names []HoldName
		for i, s := range test.records {
			names = append(names, HoldName{Name: fmt.Sprint(i), Claim: Claim{Session: "h", Nr: 1, Slots: 1}, Record: lockLine(s), Version: 7})
		}
		plan := PlanHold(names, test.wait, func(s string) bool { return s == "x" }, 1)
		var got []string
		for _, w := range plan.Writes {
			got = append(got, fmt.Sprintf("%d: %s", w.Index, queueOf(w.Write.Next)))
			if w.Write.Old != 7 {
				t.Errorf("%q: it follows version %d", test.records, w.Write.Old)
			}
			if gives := w.Write.Next.Gives(); gives == w.Write.Lazy {
				t.Errorf("%q: %s is lazy: %v", test.records, queueOf(w.Write.Next), w.Write.Lazy)
			}
		}
		if s := strings.Join(got, "; "); s != test.want || plan.Missing != test.missing || plan.Back != test.back {
			t.Errorf("%q, wait %v: writes %q, missing %d, back %v; want %q, %d, %v", test.records, test.wait, s, plan.Missing, plan.Back, test.want, test.missing, test.back)
		}
		for i, s := range test.records {
			if queueOf(names[i].Record) != queueOf(lockLine(s)) {
				t.Errorf("%q became %q in place", s, queueOf(names[i].Record))
			}
		}
	}
}

// A queue without room refuses a hold, and what it has is given back.
func TestPlanHoldFull(t *testing.T) {
	full := lockLine("a+")
	for i := range 4096 {
		full.Enqueue(Claim{Session: fmt.Sprint(i), Nr: 1, Slots: 1})
	}
	names := []HoldName{{Name: "0", Claim: Claim{Session: "h", Nr: 1, Slots: 1}, Record: lockLine("h+")}, {Name: "1", Claim: Claim{Session: "h", Nr: 2, Slots: 1}, Record: full}}
	plan := PlanHold(names, true, func(string) bool { return false }, 1)
	if !plan.Full || plan.Missing != 1 || len(plan.Writes) != 1 || plan.Writes[0].Index != 0 || queueOf(plan.Writes[0].Write.Next) != "" {
		t.Errorf("full %v, missing %d, %d writes", plan.Full, plan.Missing, len(plan.Writes))
	}
}

// A grant to another session is notified to it.
func TestHoldNotifies(t *testing.T) {
	n := HoldName{Name: "0", Claim: Claim{Session: "h", Nr: 1}, Record: lockLine("h+ a b"), Version: 7}
	w, ok := n.Left(Session{}, func(string) bool { return false }, 1)
	if !ok || w.Notify != "a" || queueOf(w.Next) != "a+ b" || w.Lazy {
		t.Errorf("notifies %q of %q", w.Notify, queueOf(w.Next))
	}
	if _, ok := (&HoldName{Claim: Claim{Session: "h"}, Record: lockLine("a+")}).Left(Session{}, nil, 1); ok {
		t.Error("it has nothing there, and writes")
	}
}

// The claims of a hold that was broken leave their audit entries, and the others go with them.
func TestHoldLeavesAudit(t *testing.T) {
	hold := Session{Owner: &Owner{Host: "runner"}, Revoked: []Revocation{{Name: "a", Nr: 1, By: Owner{Host: "bastion"}, Reason: "why", At: 5}}}
	for name, breaks := range map[string]int{"a": 1, "b": 0} {
		n := HoldName{Name: name, Claim: Claim{Session: "h", Nr: 1}, Record: lockLine("h+"), Version: 7}
		w, _ := n.Left(hold, func(string) bool { return false }, 1)
		if len(w.Next.Breaks) != breaks || len(w.Next.Holders) != 0 {
			t.Fatalf("%s: %d breaks, %d holders", name, len(w.Next.Breaks), len(w.Next.Holders))
		}
		if breaks == 1 {
			if b := w.Next.Breaks[0]; b.Token != 100 || b.Was.Host != "runner" || b.Was.Session != "h" || b.By.Host != "bastion" || b.Reason != "why" || b.At != 5 {
				t.Errorf("the entry is %+v", b)
			}
		}
	}
}

// What the record of a hold says, and what its release leaves of it.
func TestHoldRecord(t *testing.T) {
	const second = int64(time.Second / time.Microsecond)
	live := Session{TTL: 4000, Grace: 2000, Beat: 3, At: 100 * second, Names: []string{"a"}, Client: "ci", Suspected: &Suspicion{By: "a"}}
	dead, broken, foreign := live, live, live
	dead.Dead, dead.Why = 1, "silent"
	broken.Revoked = []Revocation{{Name: "a", Nr: 1}}
	foreign.Names = nil
	for _, test := range []struct {
		rec    Session
		absent bool
		want   HoldState
	}{{live, false, HoldLives}, {dead, false, HoldDead}, {broken, false, HoldBroken}, {foreign, false, HoldForeign}, {Session{}, true, HoldUnknown}} {
		if got := test.rec.Hold(test.absent); got != test.want {
			t.Errorf("%+v is %d, want %d", test.rec, got, test.want)
		}
	}
	next := live.Renewed("n", Clocks{Wall: 101 * second, Boot: "b", Up: time.Second})
	if next.Beat != 4 || next.Nonce != "n" || next.At != 101*second || next.Suspected != nil || next.Boot != "" || next.Client != "ci" || live.Suspected == nil {
		t.Errorf("renewed: %+v", next)
	}
	if d := live.DetachedFor(time.Hour, Clocks{Boot: "b", Up: time.Second}); !d.Detached || d.Duration()-Margin(d.Duration()) < time.Hour || d.Boot != "b" {
		t.Errorf("detached: %+v", d)
	}
	for _, test := range []struct {
		name  string
		rec   Session
		age   time.Duration
		at    int64
		grace int64
	}{
		{"in time", live, time.Second, 101, 0},
		{"late by the store's clock", live, 3500 * time.Millisecond, 101, 2000},
		{"late by the wall clock", live, -1, 104, 2000},
		{"broken", broken, time.Second, 101, 2000},
	} {
		tomb := test.rec
		if !tomb.ReleaseHold(test.age, "me", Clocks{Wall: test.at * second}) || tomb.Grace != test.grace || tomb.Dead == 0 || tomb.Suspected != nil {
			t.Errorf("%s: %+v", test.name, tomb)
		}
		if want := tomb.Hold(false); want != HoldReleased && want != HoldBroken || tomb.ReleaseHold(0, "me", Clocks{}) {
			t.Errorf("%s: its tombstone is %d, or is written again", test.name, want)
		}
	}
	var none Session
	if none.ReleaseHold(-1, "me", Clocks{Wall: 1}); none.Duration() != DefaultTTL || none.Hold(false) != HoldReleased {
		t.Errorf("the tombstone of nothing is %+v", none)
	}
}

// A claim of the hold's session under another number is not the hold's.
func TestPlanHoldOfOneNumber(t *testing.T) {
	n := HoldName{Name: "a", Claim: Claim{Session: "h", Nr: 2, Slots: 1}, Record: lockLine("h+"), Version: 7}
	plan := PlanHold([]HoldName{n}, true, func(string) bool { return false }, 1)
	if len(plan.Writes) != 1 || plan.Missing >= 0 {
		t.Fatalf("%+v", plan)
	}
	if next := plan.Writes[0].Write.Next; queueOf(next) != "h+" || next.Holders[0].Nr != 2 {
		t.Errorf("%+v", next)
	}
}
