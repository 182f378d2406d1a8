package record

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// parsed reads a lock record from a line: holders | waiters, each claim a
// session's letter and its mode (x, s, or a number of slots).
func parsed(t *testing.T, line string) Lock {
	t.Helper()
	var r Lock
	holders, waiters, _ := strings.Cut(line, "|")
	read := func(text string) (claims []Claim) {
		for _, f := range strings.Fields(text) {
			c := Claim{Session: f[:1], Nr: 1}
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
		r.Holders[i].Token = Token(i + 1)
	}
	return r
}

func line(r Lock) string {
	show := func(claims []Claim) string {
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
			r := parsed(t, test.before)
			changed := r.Settle(func(s string) bool { return strings.Contains(test.dead, s) }, 1)
			if got := line(r); got != test.after {
				t.Errorf("got  %s\nwant %s", got, test.after)
			}
			if want := test.before != test.after; changed != want {
				t.Errorf("changed %v, want %v", changed, want)
			}
			if r.Settle(func(string) bool { return false }, 1) {
				t.Errorf("settled twice: a head that could go in was left: %s", line(r))
			}
		})
	}
}

// A shared claim of several goroutines is several holders to those who count.
func TestSharedBlocksCount(t *testing.T) {
	r := parsed(t, "a2 | bs")
	r.Waiters[0].N = 2
	if r.Settle(func(string) bool { return false }, 1); len(r.Holders) != 1 {
		t.Errorf("two readers went in beside one who tolerates two holders: %s", line(r))
	}
	r.Waiters[0].N = 1
	if r.Settle(func(string) bool { return false }, 1); len(r.Holders) != 2 {
		t.Errorf("one reader did not go in beside one who tolerates two holders: %s", line(r))
	}
}

func TestTokens(t *testing.T) {
	alive := func(string) bool { return false }
	// Three readers granted by one write, one of them with a block.
	r := parsed(t, "| as bs cs")
	r.Waiters[1].N = 10
	r.Settle(alive, 1)
	if !r.Gives() {
		t.Fatal("a write that grants does not know it")
	}
	value := r.Encode(41)
	got, err := DecodeLock(value, 100)
	if err != nil {
		t.Fatal(err)
	}
	var tokens []Token
	for _, h := range got.Holders {
		tokens = append(tokens, h.Token)
	}
	if want := []Token{100, 101, 111}; !reflect.DeepEqual(tokens, want) {
		t.Errorf("tokens %v, want %v", tokens, want)
	}
	if got.Next != 112 {
		t.Errorf("next %d, want 112", got.Next)
	}
	// Rewritten: tokens are written out, and next outlives the claims.
	got.Drop(func(c Claim) bool { return c.Session != "a" })
	again, err := DecodeLock(got.Encode(100), 101)
	if err != nil || again.Holders[0].Token != 100 || again.Next != 112 {
		t.Errorf("rewritten as %+v, %v", again, err)
	}
	again.Drop(func(Claim) bool { return true })
	if value := again.Encode(101); string(value) != `{"next":112}` {
		t.Errorf("a free record whose tokens run ahead is %q", value)
	}
	if value := again.Encode(110); value != nil {
		t.Errorf("a free record whose versions have caught up is %q", value)
	}
	again.Enqueue(Claim{Session: "z", Nr: 1, Slots: 1})
	again.Settle(alive, 1)
	if z, err := DecodeLock(again.Encode(101), 102); err != nil || z.Holders[0].Token != 112 {
		t.Errorf("after a block the next token is %+v, want 112", z.Holders)
	}
}

// A queue is full when it has 4096 waiters, or before its record is too large for a store,
// whatever the reasons and labels are.
func TestFull(t *testing.T) {
	for _, test := range []struct {
		reason, label string
		want          int
	}{
		{"", "", MaxRecord / claimSize},
		{strings.Repeat("x", MaxReason), "", 1700},
		{strings.Repeat("<", MaxReason), "", 600},
		{strings.Repeat("\"", MaxReason), "", 600},
		{strings.Repeat("\n", MaxReason), "", 600},
		{strings.Repeat("\u2028", 66), "", 600},
		{strings.Repeat("ü", 100), "", 1700},
		{"", strings.Repeat("x", MaxLabels-8), 680},
		{"", strings.Repeat("<", (MaxLabels-8)/6), 680},
		{"", strings.Repeat("\n", (MaxLabels-8)/2), 270},
		{strings.Repeat("<", MaxReason), strings.Repeat("<", (MaxLabels-8)/6), 350},
	} {
		claim := func(nr int) Claim {
			c := longClaim(int64(nr), test.reason)
			if c.Labels = nil; test.label != "" {
				c.Labels = Labels{"k": test.label}
			}
			return c
		}
		r := Lock{Next: maxToken - 1, Holders: []Claim{claim(0)}}
		r.Holders[0].Token = maxToken / 2
		for len(r.Waiters) < 5000 && !r.Full() {
			for range 20 {
				r.Enqueue(claim(len(r.Waiters) + 1))
			}
		}
		if n, size := len(r.Waiters), len(r.Encode(0)); n < test.want || n > MaxRecord/claimSize+20 || size > MaxValue {
			t.Errorf("with the reason %.4q… and the label %.4q… it is full with %d waiters and %d bytes, want %d waiters or more", test.reason, test.label, n, size, test.want)
		}
	}
}

// longClaim is as large as a claim may be.
func longClaim(nr int64, reason string) Claim {
	return Claim{Session: strings.Repeat("f", 32), Nr: 1<<40 + nr, Slots: 1, Token: maxToken - 1, Off: 1 << 30, N: 1 << 16,
		TTL: MaxTTL.Milliseconds(), Since: 1 << 52, Granted: 1 << 52, Reason: reason, Retries: 1 << 20, Set: "100 of 1000"}
}

// The time of a detached hold is over when the store's clock says that its TTL is, and
// neither the wall clocks nor the kernel that it was taken under contradict.
func TestDetachedExpires(t *testing.T) {
	const ttl = 100 * time.Second
	const now, up = 1 << 50, 1000 * time.Hour
	holds := ttl - Margin(ttl)
	for _, test := range []struct {
		name         string
		age, wall    time.Duration // since it was taken, by the store's clock and the wall clocks
		boot         string
		up           time.Duration // since, by the kernel's
		within       time.Duration
		detached, is bool
	}{
		{"over", ttl, ttl, "", 0, 0, true, true},
		{"the wall clocks differ by the margin", ttl, holds, "", 0, 0, true, true},
		{"the store's clock says no", ttl - time.Millisecond, 10 * ttl, "", 0, 0, true, false},
		{"the wall clocks say no", 10 * ttl, holds - time.Second, "", 0, 0, true, false},
		{"the store has no clock", -1, 10 * ttl, "", 0, 0, true, false},
		{"this kernel says no", 10 * ttl, 10 * ttl, "this kernel", holds - time.Second, 0, true, false},
		{"this kernel agrees", ttl, ttl, "this kernel", holds + time.Second, 0, true, true},
		{"another kernel is not asked", ttl, ttl, "another", 0, 0, true, true},
		{"nearly", ttl - 5*time.Second, ttl, "", 0, 10 * time.Second, true, true},
		{"a session that beats", ttl, ttl, "", 0, 0, false, false},
	} {
		r := Session{Detached: test.detached, TTL: ttl.Milliseconds(), At: now - test.wall.Microseconds(),
			Boot: test.boot, Up: (up - test.up).Microseconds()}
		if got := r.EndedAlone(test.age, test.within, Clocks{Wall: now, Boot: "this kernel", Up: up}); got != test.is {
			t.Errorf("%s: %v, want %v", test.name, got, test.is)
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
