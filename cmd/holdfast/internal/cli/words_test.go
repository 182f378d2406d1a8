package cli

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

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
		if got := Escape(in); got != want {
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
		if got := Escape(s); strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
			t.Errorf("escape(%q) = %q", s, got)
		}
	})
}

func TestSpan(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "10m": 10 * time.Minute, "10": 10 * time.Second, "1.5": 1500 * time.Millisecond, "0": 0, "1h30m": 90 * time.Minute,
	} {
		if got, err := ParseSpan(in); got != want || err != nil {
			t.Errorf("%s: got %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1", "-1s", "1d", "1e300", "NaN", "Inf"} {
		if got, err := ParseSpan(in); err == nil {
			t.Errorf("%q: got %v, want an error", in, got)
		}
	}
}

func TestBrief(t *testing.T) {
	for in, want := range map[time.Duration]string{
		-time.Second: "0s", 3 * time.Millisecond: "3ms", 10500 * time.Millisecond: "10.5s",
		192 * time.Second: "3m12s", 180 * time.Second: "3m", 41*time.Minute + 20*time.Second: "41m20s", 2 * time.Hour: "2h", 150 * time.Minute: "2h30m",
	} {
		if got := Brief(in); got != want {
			t.Errorf("%d: got %s, want %s", in, got, want)
		}
	}
}

// The columns of a list are whole where a reason is missing, and no line ends in
// blanks.
func TestListColumns(t *testing.T) {
	var b strings.Builder
	all := Table{
		{"NAME", "MODE", "STATE", "OWNER", "PID", "FOR", "LAST BEAT", "REASON"},
		{"a", "exclusive", "held", "ana@here", "77", "1s", "1s ago", ""},
		{"b", "exclusive", "1st waiting", "ana@here", "", "1s", "ends in 12m", "nightly import"},
	}
	if err := all.Write(&b, 0); err != nil {
		t.Fatal(err)
	}
	const want = `NAME  MODE       STATE        OWNER     PID  FOR  LAST BEAT    REASON
a     exclusive  held         ana@here  77   1s   1s ago
b     exclusive  1st waiting  ana@here       1s   ends in 12m  nightly import
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}

// At a terminal no line is longer than it is wide, whatever is in it, and something of each
// column is seen.
func TestListCut(t *testing.T) {
	long := strings.Repeat("名前", 60)
	for _, limit := range []int{40, 80, 200} {
		for _, line := range (Table{{"NAME", "OWNER", "REASON"}, {long, "ana@here", long}, {"a\u0301", strings.Repeat("x", 300), "why"}}).Lines(limit) {
			if got := DisplayWidth(line); got > limit {
				t.Errorf("%d cells in a terminal of %d: %s", got, limit, line)
			}
		}
	}
	lines := Table{{"NAME", "OWNER", "REASON"}, {long, "ana@here", "release 42"}}.Lines(60)
	if want := strings.Repeat("名前", 4) + "名…   ana@here  release 42"; lines[1] != want {
		t.Errorf("got %q, want %q", lines[1], want)
	}
	if got := Cut("release 42", 10); got != "release 42" {
		t.Errorf("what fits becomes %q", got)
	}
}
