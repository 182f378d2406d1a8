package holdfast

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// What is in a store may have been written by anybody: an older or newer version,
// a person with a database shell, a bug. Whatever it is, it is refused, or the rules
// hold for it. The corpora are in testdata/fuzz.

// A name is taken as it is or not at all, and other parts make another name.
func FuzzName(f *testing.F) {
	f.Add("jobs/42", "a")
	f.Fuzz(func(t *testing.T, a, b string) {
		valid := a != "" && len(a) <= 1024 && utf8.ValidString(a) && strings.IndexFunc(a, unicode.IsControl) < 0
		if err := base.CheckName(a); (err == nil) != valid {
			t.Errorf("CheckName(%q): %v, want one that is nil: %v", a, err, valid)
		}
		if err := (driver.Names.Key(a)).Check(); (err == nil) != (a != "" && len(a) <= 1024) {
			t.Errorf("Key.Check of %q: %v", a, err)
		}
		for _, parts := range [][]string{{a}, {a, b}, {b, a, ""}} {
			if got := SplitName(JoinName(parts...)); !slices.Equal(got, parts) {
				t.Errorf("the parts %q are joined as %q, and that is split as %q", parts, JoinName(parts...), got)
			}
		}
		if a != b && JoinName(a) == JoinName(b) {
			t.Errorf("%q and %q make one name", a, b)
		}
		if JoinName(a, b) == JoinName(a+"/"+b) {
			t.Errorf("two parts make the name that one makes: %q, %q", a, b)
		}
	})
}

func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// A fence of a store lets in the tokens of those who hold, of a block none behind
// one that has been in, and nobody else.
func FuzzFence(f *testing.F) {
	f.Add([]byte(`{"holders":[{"session":"a","nr":1,"slots":1,"n":10}]}`), int64(100), int64(104), int64(0))
	f.Fuzz(func(t *testing.T, value []byte, version, token, last int64) {
		if version < 0 || version >= 1<<61 || last < 0 {
			return
		}
		next, err := driver.Record{Version: version, Value: bytes.Clone(value)}.Fence("n", token, last)
		rec, bad := record.DecodeLock(value, record.Version(version))
		holds, block := false, false
		for _, h := range rec.Holders {
			if h.Has(record.Token(token)) {
				holds, block = true, h.Slots == 1 && h.Tokens() > 1
				break
			}
		}
		switch {
		case bad != nil:
			if err == nil || errors.Is(err, ErrLost) || next != last {
				t.Fatalf("what is no record: %d, %v", next, err)
			}
		case holds && block && token >= last:
			if err != nil || next != token {
				t.Fatalf("%s at %d: token %d after %d: %d, %v", value, version, token, last, next, err)
			}
		case holds && !block:
			if err != nil || next != last {
				t.Fatalf("%s at %d: token %d: %d, %v", value, version, token, next, err)
			}
		default:
			if !errors.Is(err, ErrLost) || next != last {
				t.Fatalf("%s at %d: token %d after %d does not hold: %d, %v", value, version, token, last, next, err)
			}
		}
	})
}

// A fence of a resource takes no exclusive token below one that it has seen, no
// shared one below an exclusive one, and forgets nothing.
func FuzzAdmit(f *testing.F) {
	f.Add([]byte{10, 21, 20, 30})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var fence TokenGate
		var all, exclusive int64 // the highest that came in
		for _, b := range steps {
			token, shared := int64(b>>1)-2, b&1 != 0
			in := token > 0 && (shared && token >= exclusive || !shared && token >= all)
			if err := fence.Admit(token, shared); (err == nil) != in || err != nil && !errors.Is(err, ErrLost) {
				t.Fatalf("%v: token %d, shared %v, after %d and %d: %v", steps, token, shared, all, exclusive, err)
			}
			if in {
				all = max(all, token)
				if !shared {
					exclusive = max(exclusive, token)
				}
			}
		}
		var kept TokenGate
		if err := json.Unmarshal([]byte(jsonOf(fence)), &kept); err != nil || kept != fence {
			t.Fatalf("kept as %s and read as %+v, %v", jsonOf(fence), kept, err)
		}
	})
}
