package holdfast

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// record reads a lock record from a line: holders | waiters, each claim a
// session's letter and its mode (x, s, or a number of slots).
func record(t *testing.T, line string) lockRecord {
	t.Helper()
	var r lockRecord
	holders, waiters, _ := strings.Cut(line, "|")
	read := func(text string) (claims []claimRecord) {
		for _, f := range strings.Fields(text) {
			c := claimRecord{Session: f[:1], Nr: 1}
			switch f[1:] {
			case "x":
				c.Slots = 1
			case "s":
			default:
				if _, err := fmt.Sscan(f[1:], &c.Slots); err != nil {
					t.Fatal(err)
				}
			}
			claims = append(claims, c)
		}
		return claims
	}
	r.Holders, r.Waiters = read(holders), read(waiters)
	for i := range r.Holders {
		r.Holders[i].Token = int64(i + 1)
	}
	return r
}

func line(r lockRecord) string {
	show := func(claims []claimRecord) string {
		var b strings.Builder
		for _, c := range claims {
			m := map[int]string{0: "s", 1: "x"}[c.Slots]
			if m == "" {
				m = fmt.Sprint(c.Slots)
			}
			fmt.Fprintf(&b, " %s%s", c.Session, m)
		}
		return b.String()
	}
	return strings.TrimSpace(strings.TrimSpace(show(r.Holders)) + " |" + show(r.Waiters))
}

func TestSettle(t *testing.T) {
	for _, test := range []struct{ name, before, dead, after string }{
		{"a free lock goes to the head", "| ax", "", "ax |"},
		{"exclusive is alone", "ax | bx", "", "ax | bx"},
		{"exclusive waits for readers", "as bs | cx", "", "as bs | cx"},
		{"a reader joins readers", "as | bs", "", "as bs |"},
		{"neighbours that fit go in together", "| as bs cs", "", "as bs cs |"},
		{"nobody overtakes: a reader waits behind a writer", "as | bx cs", "", "as | bx cs"},
		{"readers up to the writer", "| as bs cx ds", "", "as bs | cx ds"},
		{"slots up to their number", "| a3 b3 c3 d3", "", "a3 b3 c3 | d3"},
		{"the smallest number counts, of a holder", "a2 b3 | c3", "", "a2 b3 | c3"},
		{"the smallest number counts, of the head", "a3 b3 | c2 d3", "", "a3 b3 | c2 d3"},
		{"exclusive beside slots", "a3 | bx", "", "a3 | bx"},
		{"shared beside slots counts", "a2 bs | cs", "", "a2 bs | cs"},
		{"a dead holder goes and the head comes", "ax | bx cx", "a", "bx | cx"},
		{"dead waiters are skipped together", "ax | bx cx dx", "abc", "dx |"},
		{"a dead waiter between readers and head", "as | bx cs", "b", "as cs |"},
		{"all dead", "ax | bx", "ab", "|"},
		{"nothing to do", "|", "", "|"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := record(t, test.before)
			changed := r.settle(func(s string) bool { return strings.Contains(test.dead, s) })
			if got := line(r); got != test.after {
				t.Errorf("got  %s\nwant %s", got, test.after)
			}
			if want := test.before != test.after; changed != want {
				t.Errorf("changed %v, want %v", changed, want)
			}
			if r.settle(func(string) bool { return false }) {
				t.Errorf("settled twice: a head that could go in was left: %s", line(r))
			}
		})
	}
}

// A shared claim of several goroutines is several holders to those who count.
func TestSharedBlocksCount(t *testing.T) {
	r := record(t, "a2 | bs")
	r.Waiters[0].N = 2
	if r.settle(func(string) bool { return false }); len(r.Holders) != 1 {
		t.Errorf("two readers went in beside one who tolerates two holders: %s", line(r))
	}
	r.Waiters[0].N = 1
	if r.settle(func(string) bool { return false }); len(r.Holders) != 2 {
		t.Errorf("one reader did not go in beside one who tolerates two holders: %s", line(r))
	}
}

func TestTokens(t *testing.T) {
	alive := func(string) bool { return false }
	// Three readers granted by one write, one of them with a block.
	r := record(t, "| as bs cs")
	r.Waiters[1].N = 10
	r.settle(alive)
	if !r.gives() {
		t.Fatal("a write that grants does not know it")
	}
	value := r.encode(41)
	got, err := decodeLock(value, 100)
	if err != nil {
		t.Fatal(err)
	}
	var tokens []int64
	for _, h := range got.Holders {
		tokens = append(tokens, h.Token)
	}
	if want := []int64{100, 101, 111}; !reflect.DeepEqual(tokens, want) {
		t.Errorf("tokens %v, want %v", tokens, want)
	}
	if got.Next != 112 {
		t.Errorf("next %d, want 112", got.Next)
	}
	// Rewritten: tokens are written out, and next outlives the claims.
	got.drop(func(c claimRecord) bool { return c.Session != "a" })
	again, err := decodeLock(got.encode(100), 101)
	if err != nil || again.Holders[0].Token != 100 || again.Next != 112 {
		t.Errorf("rewritten as %+v, %v", again, err)
	}
	again.drop(func(claimRecord) bool { return true })
	if value := again.encode(101); string(value) != `{"next":112}` {
		t.Errorf("a free record whose tokens run ahead is %q", value)
	}
	if value := again.encode(110); value != nil {
		t.Errorf("a free record whose versions have caught up is %q", value)
	}
	again.enqueue(claimRecord{Session: "z", Nr: 1, Slots: 1})
	again.settle(alive)
	if z, err := decodeLock(again.encode(101), 102); err != nil || z.Holders[0].Token != 112 {
		t.Errorf("after a block the next token is %+v, want 112", z.Holders)
	}
}

func TestRecordFence(t *testing.T) {
	block := Record{Version: 100, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1,"n":10}]}`)}
	for _, test := range []struct {
		name        string
		rec         Record
		token, last int64
		next        int64
		lost        bool
	}{
		{"nobody holds it", Record{Version: 9}, 5, 0, 0, true},
		{"the holder", Record{Version: 7, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1}]}`)}, 7, 0, 0, false},
		{"an older one", Record{Version: 7, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1}]}`)}, 6, 0, 0, true},
		{"a waiter has no token", Record{Version: 8, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1,"token":7}],"waiters":[{"session":"b","nr":1,"slots":1}]}`)}, 8, 0, 0, true},
		{"the first of a block", block, 100, 0, 100, false},
		{"the last of a block", block, 109, 105, 109, false},
		{"behind a newer one of the block", block, 104, 105, 105, true},
		{"past the block", block, 110, 0, 0, true},
		{"readers do not mind each other", Record{Version: 9, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":0,"token":3},{"session":"b","nr":1,"slots":0}]}`)}, 3, 0, 0, false},
		{"not ours", Record{Version: 9, Value: []byte(`hello`)}, 3, 0, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			next, err := test.rec.Fence("n", test.token, test.last)
			if test.name == "not ours" {
				if err == nil || errors.Is(err, ErrLost) {
					t.Fatalf("a strange record: %v", err)
				}
				return
			}
			if errors.Is(err, ErrLost) != test.lost || next != test.next && !test.lost {
				t.Errorf("got %d, %v; want %d, lost %v", next, err, test.next, test.lost)
			}
		})
	}
}

func TestFenceAdmit(t *testing.T) {
	var f Fence
	for i, test := range []struct {
		token  int64
		shared bool
		in     bool
	}{
		{0, false, false}, {5, false, true}, {5, false, true}, {4, false, false}, {7, true, true}, {6, true, true},
		{4, true, false}, {6, false, false}, {8, false, true}, {7, true, false},
	} {
		if err := f.Admit(test.token, test.shared); (err == nil) != test.in {
			t.Errorf("%d: token %d, shared %v: %v", i, test.token, test.shared, err)
		}
	}
}

func TestNames(t *testing.T) {
	for _, test := range []struct {
		name string
		err  string
	}{
		{"", "name is empty"},
		{strings.Repeat("a", 255), ""},
		{strings.Repeat("a", 256), "name has 256 bytes, at most 255"},
		{"a\x00b", `name "a\x00b" has a control character`},
		{"a\u0085b", `name "a\u0085b" has a control character`},
		{"\xff", `name is not UTF-8: "\xff"`},
		{"früh/ ☂", ""},
	} {
		got := ""
		if err := checkName(test.name); err != nil {
			got = err.Error()
		}
		if got != test.err {
			t.Errorf("checkName(%q) = %q, want %q", test.name, got, test.err)
		}
	}
	parts := [][]string{{"a", "b"}, {"a/b"}, {"a%2Fb"}, {"a", "", "b"}, {"%", "/", "%2F", "%25"}, {""}}
	seen := make(map[string]bool)
	for _, p := range parts {
		name := JoinName(p...)
		if seen[name] {
			t.Errorf("two lists of parts make %q", name)
		}
		seen[name] = true
		if got := SplitName(name); !reflect.DeepEqual(got, p) {
			t.Errorf("SplitName(%q) = %q, want %q", name, got, p)
		}
	}
}

func TestMargin(t *testing.T) {
	const second = 1e9
	for ttl, want := range map[int64]int64{1 * second: second / 4, 2 * second: second / 2, 8 * second: second, 15 * second: 1.5 * second, 100 * second: 10 * second} {
		if got := Margin(time.Duration(ttl)); got != time.Duration(want) {
			t.Errorf("Margin(%v) = %v, want %v", time.Duration(ttl), got, time.Duration(want))
		}
	}
}
