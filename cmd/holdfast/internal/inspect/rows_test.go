package inspect

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

func TestBeatLine(t *testing.T) {
	for _, test := range []struct {
		age  time.Duration
		want string
	}{
		{time.Second, "last beat 1s ago"},
		{9 * time.Second, "last beat 9s ago, gone in 1s at the latest unless it answers"},
		{12 * time.Second, "last beat 12s ago, longer than its TTL: goes to the next who waits, unless it answers"},
	} {
		if got := beatLine(holdfast.Claim{TTL: 10 * time.Second, BeatAge: test.age}); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// A name that is kept shut is not free, and a lock whose time is over has no dead holder.
func TestKeptLines(t *testing.T) { synctest.Test(t, testKeptLines) }

func testKeptLines(t *testing.T) {
	owner := holdfast.Owner{Name: "job", User: "ana", Host: "db1"}
	until := time.Now().Add(time.Minute)
	for _, test := range []struct {
		name              string
		claim             holdfast.Claim
		beat, line, watch string
	}{
		{"kept", holdfast.Claim{Detached: true, Kept: true, KeptUntil: until}, "ends in 1m", "kept until " + until.Format(time.TimeOnly) + ": it was released, and the name stays shut",
			"kept until " + until.Format(time.TimeOnly) + "; job (ana@db1) has released it"},
		{"was kept", holdfast.Claim{Detached: true, Kept: true, KeptUntil: until.Add(-time.Hour), Dead: true}, "ended", "its time is over: goes to the next who asks",
			"the time of job (ana@db1) is over; free"},
		{"was detached", holdfast.Claim{Detached: true, TTL: time.Second, BeatAge: time.Minute, Dead: true}, "ended", "its time is over: goes to the next who asks",
			"the time of job (ana@db1) is over; free"},
		{"died", holdfast.Claim{TTL: time.Second, BeatAge: time.Minute, Dead: true}, "1m ago", "dead: goes to the next who asks", "job (ana@db1) is dead; free"},
	} {
		test.claim.Owner, test.claim.Token = owner, 7
		if got := beatText(test.claim); got != test.beat {
			t.Errorf("%s: in a list %q, want %q", test.name, got, test.beat)
		}
		if got := beatLine(test.claim); got != test.line {
			t.Errorf("%s: shown as %q, want %q", test.name, got, test.line)
		}
		if got := change(holdfast.Info{Holders: []holdfast.Claim{test.claim}}, nil); got != test.watch {
			t.Errorf("%s: watched as %q, want %q", test.name, got, test.watch)
		}
	}
}

// A claim that had waited for 5 s and has held for 2 s is shown as held for 2 s, wherever that is
// shown; one that waits is shown with the time of its wait.
func TestHeldSince(t *testing.T) {
	now := time.Now()
	held := holdfast.Claim{ID: "8f3ac1d2-1", Token: 7, Slots: 1, Owner: holdfast.Owner{Host: "db1", User: "ana", PID: 2784}, Requested: now.Add(-7 * time.Second),
		Granted: now.Add(-2 * time.Second), Waited: 5 * time.Second, BeatAge: time.Second, TTL: 15 * time.Second}
	waits := holdfast.Claim{ID: "51bd0000-1", Slots: 1, Owner: holdfast.Owner{Host: "db2"}, Requested: now.Add(-3 * time.Second), Waited: 3 * time.Second, TTL: 15 * time.Second}
	info := holdfast.Info{Name: "a", Holders: []holdfast.Claim{held}, Waiters: []holdfast.Claim{waits}}
	var list strings.Builder
	if err := tableOf(addRows(nil, &info, &selection{}), true).Write(&list, 0); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := asjson.Encode(&b, asjson.Of(info)); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct{ text, want string }{
		"show":         {describeInfo(info), "held by   ana@db1 (pid 2784) for 2s, token 7\n            last beat 1s ago; had waited 5s\n"},
		"show, waits":  {describeInfo(info), "waiting   db2 for 3s, claim 51bd0000-1"},
		"list":         {list.String(), "ana@db1  2784  2s   1s ago     5s      7      8f3ac1d2-1\n"},
		"list, waits":  {list.String(), "1st waiting  db2            3s   0s ago     3s             51bd0000-1\n"},
		"watch":        {change(info, nil), "held by ana@db1 (pid 2784) for 2s, token 7"},
		"refused":      {cli.HeldBy(info.Holders), "held by ana@db1 (pid 2784) for 2s"},
		"break":        {question("a", held), "is held by ana@db1 (pid 2784) for 2s; its last beat"},
		"break, waits": {question("a", waits), "db2 has been waiting for \"a\" for 3s."},
		"json":         {b.String(), `"waited":5,"retries":0`},
	} {
		if !strings.Contains(test.text, test.want) {
			t.Errorf("%s says\n%s\nwithout %q", what, test.text, test.want)
		}
	}
	held.Granted = time.Time{} // not known
	if text := cli.HeldBy([]holdfast.Claim{held}) + question("a", held); strings.Contains(text, " for ") {
		t.Errorf("not known: %s", text)
	}
}

// What strangers have written as labels, name, address and device acts on no terminal.
func TestShownOwner(t *testing.T) {
	c := holdfast.Claim{Token: 7, Slots: 1, Granted: time.Now(), TTL: time.Second,
		Owner:  holdfast.Owner{Name: "web-7\x1b[2J", Host: "db1", Address: "10.0.0.7\x1b", Device: "pts/3\n", Labels: map[string]string{"pool": "a"}},
		Labels: map[string]string{"step": "2 of 3", "build": "7", "e\x07": "", "q": "\u202e"}}
	text := describeInfo(holdfast.Info{Name: "a", Holders: []holdfast.Claim{c}})
	for _, want := range []string{`  held by   web-7\x1b[2J (db1) for 0s`, "\n            address 10.0.0.7\\x1b, device pts/3\\x0a\n", "\n            pool=a\n",
		"\n            build=7 e\\x07=\"\" q=\\u202e step=\"2 of 3\"\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("shown as\n%s\nwithout %q", text, want)
		}
	}
	if strings.ContainsAny(text, "\x1b\x07\u202e") {
		t.Errorf("shown as %q", text)
	}
}

// A claim is listed as what is known of it, and sorted and selected by that.
func TestRows(t *testing.T) {
	now := time.Now()
	claim := func(host string, held time.Duration, change func(*holdfast.Claim)) holdfast.Claim {
		c := holdfast.Claim{Token: 1, Slots: 1, TTL: time.Minute, Granted: now.Add(-held), Owner: holdfast.Owner{Name: "n-" + host, User: "ana", Host: host, Session: host + "-session"}}
		if change != nil {
			change(&c)
		}
		return c
	}
	infos := []holdfast.Info{
		{Name: "a", Holders: []holdfast.Claim{claim("db1", time.Minute, nil)}, Waiters: []holdfast.Claim{{Waited: 2 * time.Second, Owner: holdfast.Owner{User: "bob", Host: "db3"}}}},
		{Name: "b", Holders: []holdfast.Claim{claim("db2", time.Hour, func(c *holdfast.Claim) { c.Silent, c.Suspected = true, true })}},
		{Name: "c", Holders: []holdfast.Claim{claim("db3", time.Second, func(c *holdfast.Claim) { c.Dead = true })}},
		{Name: "d", Holders: []holdfast.Claim{claim("db4", 2*time.Hour, func(c *holdfast.Claim) { c.Detached = true })}},
		{Name: "e", Holders: []holdfast.Claim{claim("db5", 3*time.Hour, func(c *holdfast.Claim) { c.Suspected = true; c.Granted = time.Time{} })}},
		{Name: "f", Holders: []holdfast.Claim{claim("db6", time.Millisecond, func(c *holdfast.Claim) { c.Detached, c.Dead = true, true })}},
	}
	list := func(sel selection, by string) string {
		var rows []row
		for i := range infos {
			rows = addRows(rows, &infos[i], &sel)
		}
		sortRows(rows, by)
		var b strings.Builder
		for _, r := range rows {
			fmt.Fprintf(&b, " %s:%s", r.info.Name, r.state())
		}
		return strings.TrimSpace(b.String())
	}
	older := func(d time.Duration) cli.Span { return cli.Span{Duration: d, Given: true} }
	for _, test := range []struct {
		sel        selection
		sort, want string
	}{
		{selection{}, "name", "a:held a:waiting b:dead? c:dead d:detached e:suspected f:ended"},
		{selection{}, "for", "d:detached b:dead? a:held a:waiting c:dead f:ended e:suspected"},
		{selection{}, "state", "c:dead b:dead? e:suspected d:detached f:ended a:held a:waiting"},
		{selection{}, "owner", "a:waiting a:held b:dead? c:dead d:detached e:suspected f:ended"},
		{selection{}, "waiting", "a:held a:waiting b:dead? c:dead d:detached e:suspected f:ended"},
		{selection{state: "dead"}, "name", "b:dead? c:dead"},
		{selection{state: "dead?"}, "name", "b:dead?"},
		{selection{state: "waiting"}, "name", "a:waiting"},
		{selection{state: "ended"}, "name", "f:ended"},
		{selection{olderThan: older(time.Minute - time.Second)}, "name", "a:held b:dead? d:detached"},
		{selection{owner: "bob"}, "name", "a:waiting"},
		{selection{owner: "ana@db2"}, "name", "b:dead?"},
		{selection{owner: "n-db4"}, "name", "d:detached"},
		{selection{host: "db3"}, "name", "a:waiting c:dead"},
		{selection{session: "db1-session"}, "name", "a:held"},
		{selection{host: "db"}, "name", ""},
	} {
		if got := list(test.sel, test.sort); got != test.want {
			t.Errorf("%+v by %s: got %s, want %s", test.sel, test.sort, got, test.want)
		}
	}
}

// Whoever draws the id of a hold can have its claim begin as another's does: then neither is broken,
// unless the id has all digits.
func TestClaimsOfOneID(t *testing.T) {
	session := func(rest string) string { return "8f3ac1d2" + strings.Repeat(rest, 24) }
	claim := func(session string, token int64) holdfast.Claim {
		return holdfast.Claim{ID: "8f3ac1d2-1", Token: token, Owner: holdfast.Owner{Session: session}}
	}
	info := holdfast.Info{Name: "a", Holders: []holdfast.Claim{claim(session("0"), 5)}, Waiters: []holdfast.Claim{claim(session("1"), 0)}}
	for id, want := range map[string]int{"8f3ac1d2-1": 2, session("0") + "-1": 1, session("1") + "-1": 1, session("2") + "-1": 0} {
		b := breaking{claim: id}
		if found := b.find(info); len(found) != want || want == 1 && found[0].FullID() != id {
			t.Errorf("%s: %d claims, want %d", id, len(found), want)
		}
	}
}
