package command

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain, ünïcödé 名":  "plain, ünïcödé 名",
		"\x1b[31mred":       `\x1b[31mred`,
		"a\nb\tc\x00\x7f":   `a\x0ab\x09c\x00\x7f`,
		"\u202etxt.exe":     `\u202etxt.exe`,
		"bad\xffbyte":       `bad\xffbyte`,
		"\uFFFD is itself":  "\uFFFD is itself",
		"c1\u0085\u009b31m": `c1\u0085\u009b31m`,
	} {
		if got := escape(in); got != want {
			t.Errorf("escape(%q) = %q, want %q", in, got, want)
		}
	}
}

// JSON says the same as what was to be said, and nothing in it acts on a terminal.
func TestEncode(t *testing.T) {
	for _, text := range []string{
		"plain, ünïcödé 名 <b> & \"quoted\" \\", "\x1b[31mred", "a\nb\x00\x7f", "c1\u0085\u009b31m", "\u202etxt.exe\u2066", "zero\u200bwidth\ufeff",
		"tag \U000e0041", "bad\xffbyte",
	} {
		var out bytes.Buffer
		if err := asjson.Encode(&out, map[string]string{"reason": text}); err != nil {
			t.Fatal(err)
		}
		line, last := strings.CutSuffix(out.String(), "\n")
		if !last || strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) }) {
			t.Errorf("%q becomes %q", text, line)
		}
		var back map[string]string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["reason"] != strings.ToValidUTF8(text, "\uFFFD") {
			t.Errorf("%q comes back as %q, %v", text, back["reason"], err)
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("\x1b]0;x\x07\u2066")
	f.Fuzz(func(t *testing.T, s string) {
		if got := escape(s); strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
			t.Errorf("escape(%q) = %q", s, got)
		}
	})
}

func TestSpan(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "10m": 10 * time.Minute, "10": 10 * time.Second, "1.5": 1500 * time.Millisecond, "0": 0, "1h30m": 90 * time.Minute,
	} {
		if got, err := parseSpan(in); got != want || err != nil {
			t.Errorf("%s: got %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "-1s", "1d", "1e300", "NaN", "Inf"} {
		if got, err := parseSpan(in); err == nil {
			t.Errorf("%q: got %v, want an error", in, got)
		}
	}
}

func TestBrief(t *testing.T) {
	for in, want := range map[time.Duration]string{
		-time.Second: "0s", 3 * time.Millisecond: "3ms", 10500 * time.Millisecond: "10.5s",
		192 * time.Second: "3m12s", 180 * time.Second: "3m", 41*time.Minute + 20*time.Second: "41m20s", 2 * time.Hour: "2h", 150 * time.Minute: "2h30m",
	} {
		if got := brief(in); got != want {
			t.Errorf("%d: got %s, want %s", in, got, want)
		}
	}
}

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

// A claim that had waited for 5 s and has held for 2 s is shown as held for 2 s, wherever that is
// shown; one that waits is shown with the time of its wait.
func TestHeldSince(t *testing.T) {
	now := time.Now()
	held := holdfast.Claim{ID: "8f3ac1d2-1", Token: 7, Slots: 1, Owner: holdfast.Owner{Host: "db1", User: "ana", PID: 2784}, Requested: now.Add(-7 * time.Second),
		Granted: now.Add(-2 * time.Second), Waited: 5 * time.Second, BeatAge: time.Second, TTL: 15 * time.Second}
	waits := holdfast.Claim{ID: "51bd0000-1", Slots: 1, Owner: holdfast.Owner{Host: "db2"}, Requested: now.Add(-3 * time.Second), Waited: 3 * time.Second, TTL: 15 * time.Second}
	info := holdfast.Info{Name: "a", Holders: []holdfast.Claim{held}, Waiters: []holdfast.Claim{waits}}
	var list strings.Builder
	table := aligned(&list)
	claimRow(table, true, "a", held, 0)
	claimRow(table, true, "a", waits, 1)
	table.Flush()
	var b strings.Builder
	if err := asjson.Encode(&b, asjson.Of(info)); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct{ text, want string }{
		"show":         {describeInfo(info), "held by   ana@db1 (pid 2784) for 2s, token 7\n            last beat 1s ago; had waited 5s\n"},
		"show, waits":  {describeInfo(info), "waiting   db2 for 3s, claim 51bd0000-1"},
		"list":         {list.String(), "ana@db1  2784  2s  1s ago  5s  7  8f3ac1d2-1\n"},
		"list, waits":  {list.String(), "1st waiting  db2            3s  0s ago  3s     51bd0000-1\n"},
		"watch":        {change(holdfast.Info{}, info), "held by ana@db1 (pid 2784) for 2s, token 7"},
		"refused":      {heldBy(info.Holders), "held by ana@db1 (pid 2784) for 2s"},
		"break":        {question("a", held), "is held by ana@db1 (pid 2784) for 2s; its last beat"},
		"break, waits": {question("a", waits), "db2 has been waiting for \"a\" for 3s."},
		"json":         {b.String(), `"waited":5,"retries":0`},
	} {
		if !strings.Contains(test.text, test.want) {
			t.Errorf("%s says\n%s\nwithout %q", what, test.text, test.want)
		}
	}
	held.Granted = time.Time{} // not known
	if text := heldBy([]holdfast.Claim{held}) + question("a", held); strings.Contains(text, " for ") {
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

// The columns of a list are whole where a reason is missing, and no line ends in
// blanks.
func TestListColumns(t *testing.T) {
	var b strings.Builder
	table := aligned(&b)
	more := []string{"only where it is wide"}
	row(table, false, []string{"NAME", "MODE", "STATE", "OWNER", "PID", "FOR", "LAST BEAT"}, more, "REASON")
	row(table, false, []string{"a", "exclusive", "held", "ana@here", "77", "1s", "1s ago"}, more, "")
	row(table, false, []string{"b", "exclusive", "1st waiting", "ana@here", "", "1s", "ends in 12m"}, more, "nightly import")
	table.Flush()
	const want = `NAME  MODE       STATE        OWNER     PID  FOR  LAST BEAT    REASON
a     exclusive  held         ana@here  77   1s   1s ago
b     exclusive  1st waiting  ana@here       1s   ends in 12m  nightly import
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}
