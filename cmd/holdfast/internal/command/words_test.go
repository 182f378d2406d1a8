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

// The columns of a list are whole where a reason is missing, and no line ends in
// blanks.
func TestListColumns(t *testing.T) {
	var b strings.Builder
	table := aligned(&b)
	row(table, false, "NAME", "MODE", "STATE", "OWNER", "PID", "FOR", "LAST BEAT", "", "", "", "REASON")
	row(table, false, "a", "exclusive", "held", "ana@here", "77", "1s", "1s ago", "", "", "", "")
	row(table, false, "b", "exclusive", "1st waiting", "ana@here", "", "1s", "ends in 12m", "", "", "", "nightly import")
	table.Flush()
	const want = `NAME  MODE       STATE        OWNER     PID  FOR  LAST BEAT    REASON
a     exclusive  held         ana@here  77   1s   1s ago
b     exclusive  1st waiting  ana@here       1s   ends in 12m  nightly import
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}
