package check

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// A checker judges whatever a store went through: it may find it bad, but does not
// give up on it. Lines are steps: a version, a letter for the space, a value.
func FuzzAudit(f *testing.F) {
	f.Add("1 s {\"ttl\":1000,\"beat\":1,\"nonce\":\"x\"}\n2 n {\"holders\":[{\"session\":\"a\",\"nr\":1,\"slots\":1}]}")
	f.Fuzz(func(t *testing.T, text string) {
		var steps []Step
		for i, line := range strings.Split(text, "\n") {
			var version int64
			var space string
			head, value, _ := strings.Cut(line, " {")
			if value != "" {
				value = "{" + value
			}
			fmt.Sscan(head, &version, &space)
			name, letter := "a", driver.Names
			switch space {
			case "s":
				letter = driver.Sessions
			case "t":
				letter, name = driver.Sessions, "b"
			case "o":
				name = "b"
			}
			steps = append(steps, Step{Key: driver.Key{Space: letter, Name: name}, Version: version, Value: value,
				Lazy: version%5 == 0, Writers: uint64(version % 4), At: time.Duration(i) * time.Second, Restored: version%7 == 0})
		}
		owner := func(session string) uint64 { return uint64(len(session)) % 4 }
		found := NewAudit(owner, 0).Check(steps)
		if again := NewAudit(owner, 0).Check(steps); len(again) != len(found) {
			t.Fatalf("judged twice: %v and %v", found, again)
		}
		a := NewAudit(owner, time.Second)
		for _, s := range steps {
			a.Step(s)
		}
		a.Left()
		BrokenAtOnce(steps)("a", 1)
		Order(steps, nil, time.Second)
	})
}

// A history of holds is judged alike in whatever order it is told, and two exclusive
// holders at one instant are never found good.
func FuzzHolds(f *testing.F) {
	f.Add([]byte{1, 1, 0, 1, 2, 1, 2, 1, 2, 3})
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 60 {
			return
		}
		var holds []Hold
		for ; len(text) >= 5; text = text[5:] {
			asked := time.Duration(text[2]) * ms
			granted := asked + time.Duration(text[3]%16)*ms
			holds = append(holds, Hold{Name: "a", Slots: int(text[0] % 4), Token: int64(text[1]), Asked: asked, Granted: granted, Ended: granted + time.Duration(text[4]%16)*ms})
		}
		bad := false // two at one instant, one of them exclusive
		twice := false
		for i, a := range holds {
			for _, b := range holds[:i] {
				both := a.Granted < b.Ended && b.Granted < a.Ended && a.Granted < a.Ended && b.Granted < b.Ended
				bad = bad || both && (a.Slots == 1 || b.Slots == 1)
				twice = twice || a.Token == b.Token
			}
		}
		windows, tokens := Windows(holds), Tokens(holds)
		if bad && len(windows) == 0 {
			t.Fatalf("found good: %v", holds)
		}
		if twice && len(tokens) == 0 {
			t.Fatalf("a token twice, found good: %v", holds)
		}
		for i, j := 0, len(holds)-1; i < j; i, j = i+1, j-1 {
			holds[i], holds[j] = holds[j], holds[i]
		}
		if len(Windows(holds)) > 0 != (len(windows) > 0) || len(Tokens(holds)) > 0 != (len(tokens) > 0) {
			t.Fatalf("judged otherwise when told from the end: %v", holds)
		}
	})
}

// What is read of records is what JSON says, whatever else is in them.
func FuzzRecords(f *testing.F) {
	f.Add(`{"holders":[{"session":"a","nr":1,"slots":1}]}`, int64(7))
	f.Fuzz(func(t *testing.T, value string, version int64) {
		l, err := readLock(value, version)
		if err == nil {
			for _, h := range l.Holders {
				if h.Off != 0 && h.Token == 0 {
					t.Fatalf("%s at %d: a holder without a token: %+v", value, version, h)
				}
			}
			for i, c := range l.claims() {
				c.fits(l.claims()[:i])
			}
		}
		s, err := ReadSession(value)
		if valid := value == "" || json.Valid([]byte(value)); err == nil && !valid {
			t.Fatalf("%q is taken for a session: %+v", value, s)
		}
		s.ttl()
	})
}
