package record

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// past is a hold that was released, of ten seconds from so many seconds after 1970 on.
func past(token Token, from int64) Hold {
	return Hold{Token: token, Owner: Owner{Host: "h"}, From: from * 1e6, To: (from + 10) * 1e6, Waited: 3e6, End: EndReleased}
}

func tokens(h History) (all []Token) {
	for _, hold := range h.Holds {
		all = append(all, hold.Token)
	}
	return all
}

// What is in a history after accounts were taken in: each hold once, the newest first, and sums
// of those that do not fit.
func TestHistoryMerge(t *testing.T) {
	for _, test := range []struct {
		name     string
		accounts []Account
		most     int
		want     string
		others   Sums
	}{
		{"nothing is off", []Account{{ID: "1", Holds: []Hold{past(1, 1)}, Others: Sums{1, 1, 1}}}, 0, "[]", Sums{}},
		{"the newest first", []Account{{ID: "1", Holds: []Hold{past(1, 1), past(3, 30)}}, {ID: "2", Holds: []Hold{past(2, 20)}}}, 32, "[3 2 1]", Sums{}},
		{"the oldest become sums", []Account{{ID: "1", Holds: []Hold{past(1, 1), past(3, 30)}}, {ID: "2", Holds: []Hold{past(2, 20)}}}, 2, "[3 2]", Sums{1, 10e6, 3e6}},
		{"sums add up", []Account{{ID: "1", Others: Sums{2, 20, 200}}, {ID: "2", Others: Sums{1, 1, 1}}}, 32, "[]", Sums{3, 21, 201}},
		{"an account counts once", []Account{{ID: "1", Others: Sums{2, 20, 200}}, {ID: "2", Others: Sums{1, 1, 1}}, {ID: "1", Others: Sums{2, 20, 200}}}, 32, "[]", Sums{3, 21, 201}},
		{"a hold is listed once", []Account{{ID: "1", Holds: []Hold{past(7, 1)}}, {ID: "2", Holds: []Hold{past(7, 1)}}}, 32, "[7]", Sums{}},
		{"one of a block is its claim", []Account{
			{ID: "1", Holds: []Hold{{Token: 5, N: 10, To: 99e6, End: EndTakenOver}}},
			{ID: "2", Holds: []Hold{{Token: 8, From: 1e6, To: 9e6, End: EndLost}}}}, 32, "[8]", Sums{}},
		{"one of a block that was released is another", []Account{
			{ID: "1", Holds: []Hold{{Token: 5, N: 10, To: 99e6, End: EndTakenOver}}},
			{ID: "2", Holds: []Hold{past(8, 1)}}}, 32, "[8 5]", Sums{}},
	} {
		var h History
		for _, a := range test.accounts {
			h, _ = h.Merge(a, test.most, 1)
			var err error
			if h, err = DecodeHistory(h.Encode()); err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(tokens(h)) != test.want || h.Others != test.others {
			t.Errorf("%s: %v and %+v, want %s and %+v", test.name, tokens(h), h.Others, test.want, test.others)
		}
	}
}

// Two tell of one hold in any order: its client when it stopped believing, who took it over or
// broke it how it ended.
func TestHistoryOfBoth(t *testing.T) {
	a, b := Owner{Host: "a", PID: 1}, Owner{Host: "b", PID: 2}
	client := func(end End) Hold {
		return Hold{Token: 7, Owner: a, From: 1e6, To: 20e6, Waited: 5, End: end, Reason: "backup", Why: "no heartbeat answered"}
	}
	other := func(end End) Hold {
		return Hold{Token: 7, Owner: a, From: 2e6, To: 31e6, Waited: 9, End: end, By: &b, Reason: "backup", Why: "silent"}
	}
	for _, test := range []struct {
		its, others End
		end         End
		by, why     string
	}{
		{EndLost, EndTakenOver, EndTakenOver, "b (pid 2)", "silent"},
		{EndLost, EndBroken, EndBroken, "b (pid 2)", "silent"},
		{EndReleased, EndTakenOver, EndReleased, "", "no heartbeat answered"},
		{EndBroken, EndTakenOver, EndBroken, "", "no heartbeat answered"},
	} {
		for _, swapped := range []bool{false, true} {
			first, second := client(test.its), other(test.others)
			if swapped {
				first, second = second, first
			}
			h, _ := History{}.Merge(Account{ID: "1", Holds: []Hold{first}}, 32, 1)
			h, _ = h.Merge(Account{ID: "2", Holds: []Hold{second}}, 32, 1)
			if len(h.Holds) != 1 {
				t.Fatalf("%s and %s: %d holds", test.its, test.others, len(h.Holds))
			}
			got, by := h.Holds[0], ""
			if got.By != nil {
				by = got.By.String()
			}
			if got.End != test.end || by != test.by || got.Why != test.why || got.From != 1e6 || got.To != 20e6 || got.Waited != 5 {
				t.Errorf("%s and %s (%v): %+v by %q", test.its, test.others, swapped, got, by)
			}
		}
	}
}

// A record stays small whatever is written into it, and nothing that does not fit is forgotten.
func TestHistoryBounds(t *testing.T) {
	nasty := Owner{Host: strings.Repeat("<", 255), User: strings.Repeat("\x01", 255), Program: strings.Repeat("é", 127), PID: 1 << 30,
		Address: strings.Repeat("x", 255), Labels: map[string]string{"k": strings.Repeat("v", 4000)}}
	plain := Owner{Host: "runner-07.ci.example", User: "deploy", Program: "holdfast run", PID: 4711}
	for _, test := range []struct {
		name  string
		owner Owner
		text  string
		least int
	}{{"hostile", nasty, strings.Repeat("\"", 200), 4}, {"usual", plain, "release 2026.11.4", 32}} {
		for _, most := range []int{32, MaxHistory} {
			var h History
			const n = 300
			for i := range n {
				hold := Hold{Token: 1795226403001234 + Token(i), Owner: test.owner, By: &test.owner, From: 1795226403001234, To: 1795226403001235 + 1e7, Waited: 1e6, End: EndBroken, Reason: test.text, Why: test.text}
				if test.owner.PID == plain.PID {
					hold.By, hold.Why, hold.End = nil, "", EndReleased
				}
				h, _ = h.Merge(Account{ID: fmt.Sprint(i), Holds: []Hold{hold}, Success: &Success{Token: hold.Token, At: 1, By: test.owner}}, most, 1795226403001234)
			}
			size := len(h.Encode())
			if size > most*holdSize+4096 || len(h.Holds) > most || len(h.Holds) < test.least*most/32 {
				t.Errorf("%s, %d: %d holds in %d bytes", test.name, most, len(h.Holds), size)
			}
			if all := int64(len(h.Holds)) + h.Others.Count; all != n {
				t.Errorf("%s, %d: %d holds in all, want %d", test.name, most, all, n)
			}
			if h.Success.Token != h.Holds[0].Token {
				t.Errorf("%s: the success is of %d", test.name, h.Success.Token)
			}
		}
	}
}

// Which entry a claim leaves that others have removed.
func TestClaimEnded(t *testing.T) {
	const now = 1795226403001234
	its, us := &Owner{Host: "its"}, Owner{Host: "us"}
	claim := Claim{Session: "s", Nr: 1, Token: now - 60e6, Since: now - 70e6, Reason: "backup"}
	old := Claim{Session: "s", Nr: 1, Token: 17, Since: now - 70e6}
	many := claim
	many.N = 16
	dead := func(why string) Session {
		return Session{Owner: its, TTL: 15000, At: now - 20e6, Dead: now - 1e6, Why: why}
	}
	alone := func(ttl, at int64, why string) Session {
		return Session{Owner: its, TTL: ttl, At: now - at, Dead: now - 1e6, Why: why, Detached: true}
	}
	for _, test := range []struct {
		name   string
		claim  Claim
		tomb   Session
		broken *Break
		want   Hold
	}{
		{"dead", claim, dead("silent for 15s"), nil, Hold{End: EndTakenOver, Owner: *its, By: &us, From: now - 60e6, To: now - 1e6, Waited: 10e6, Why: "silent for 15s"}},
		{"no clock", old, dead("silent"), nil, Hold{End: EndTakenOver, Owner: *its, By: &us, To: now - 1e6, Why: "silent"}},
		{"a block", many, dead("silent"), nil, Hold{N: 16, End: EndTakenOver, Owner: *its, By: &us, From: now - 60e6, To: now - 1e6, Waited: 10e6, Why: "silent"}},
		{"no tombstone any more", claim, Session{}, nil, Hold{End: EndTakenOver, Owner: Owner{Session: "s"}, By: &us, From: now - 60e6, To: now, Waited: 10e6}},
		{"closed in order", claim, dead(closedInOrder), nil, Hold{End: EndReleased, Owner: *its, From: now - 60e6, To: now - 1e6, Waited: 10e6}},
		{"released by its token", claim, alone(3600_000, 60e6, released), nil, Hold{End: EndReleased, Owner: *its, From: now - 60e6, To: now - 1e6, Waited: 10e6}},
		{"expired", claim, alone(10_000, 60e6, "its time is over"), nil, Hold{End: EndExpired, Owner: *its, From: now - 60e6, To: now - 51e6, Waited: 10e6}},
		{"released too late", claim, alone(10_000, 60e6, released), nil, Hold{End: EndExpired, Owner: *its, From: now - 60e6, To: now - 51e6, Waited: 10e6}},
		{"broken", claim, Session{Owner: its}, &Break{Was: *its, By: us, Reason: "hangs", At: now - 2e6}, Hold{End: EndBroken, Owner: *its, By: &us, From: now - 60e6, To: now - 2e6, Waited: 10e6, Why: "hangs"}},
	} {
		got := test.claim.Ended(test.tomb, test.broken, us, now)
		test.want.Token, test.want.Reason = test.claim.Token, test.claim.Reason
		if jsonOf(got) != jsonOf(test.want) {
			t.Errorf("%s:\n%s, want\n%s", test.name, jsonOf(got), jsonOf(test.want))
		}
	}
}

// Which holders whoever writes a record has to tell of.
func TestEvicted(t *testing.T) {
	dead := func(session string) bool { return session == "dead" }
	holders := []Claim{{Session: "dead", Nr: 1, Token: 1}, {Session: "lives", Nr: 2, Token: 2}, {Session: "broken", Nr: 3, Token: 3}, {Session: "stays", Nr: 4, Token: 4}}
	r := Lock{Holders: holders, Waiters: []Claim{{Session: "dead", Nr: 5}}}
	next := Lock{Holders: holders[3:], Breaks: []Break{{Session: "broken", Nr: 3, Reason: "hangs"}}}
	var got []string
	for _, e := range r.Evicted(&next, dead) {
		got = append(got, fmt.Sprint(e.Claim.Nr, e.Broken != nil))
	}
	if want := "[1 false 3 true]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// When a history is swept.
func TestHistoryMayEmpty(t *testing.T) {
	day := 24 * time.Hour
	wall := int64(400 * 24 * 3600 * 1e6)
	for _, test := range []struct {
		name string
		h    History
		age  time.Duration
		idle time.Duration
		want bool
	}{
		{"young", History{}, 29 * day, HistoryIdle, false},
		{"old", History{}, 30 * day, HistoryIdle, true},
		{"very many", History{}, 2 * day, day, true},
		{"a job's", History{Success: &Success{}}, 399 * day, day, false},
		{"an old job's", History{Success: &Success{}}, 400 * day, day, true},
		{"no clock, young", History{At: wall - int64(29*day/time.Microsecond)}, -1, HistoryIdle, false},
		{"no clock, old", History{At: wall - int64(31*day/time.Microsecond)}, -1, HistoryIdle, true},
	} {
		if got := test.h.MayEmpty(test.age, test.idle, Clocks{Wall: wall}); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
