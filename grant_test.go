package holdfast

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
)

func TestRecordFence(t *testing.T) {
	block := driver.Record{Version: 100, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1,"n":10}]}`)}
	for _, test := range []struct {
		name        string
		rec         driver.Record
		token, last int64
		next        int64
		lost        bool
	}{
		{"nobody holds it", driver.Record{Version: 9}, 5, 0, 0, true},
		{"the holder", driver.Record{Version: 7, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1}]}`)}, 7, 0, 0, false},
		{"an older one", driver.Record{Version: 7, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1}]}`)}, 6, 0, 0, true},
		{"a waiter has no token", driver.Record{Version: 8, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":1,"token":7}],"waiters":[{"session":"b","nr":1,"slots":1}]}`)}, 8, 0, 0, true},
		{"the first of a block", block, 100, 0, 100, false},
		{"the last of a block", block, 109, 105, 109, false},
		{"behind a newer one of the block", block, 104, 105, 105, true},
		{"past the block", block, 110, 0, 0, true},
		{"readers do not mind each other", driver.Record{Version: 9, Value: []byte(`{"holders":[{"session":"a","nr":1,"slots":0,"token":3},{"session":"b","nr":1,"slots":0}]}`)}, 3, 0, 0, false},
		{"not ours", driver.Record{Version: 9, Value: []byte(`hello`)}, 3, 0, 0, false},
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
	var f TokenGate
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
		{strings.Repeat("a", 1024), ""},
		{strings.Repeat("a", 1025), "name has 1025 bytes, at most 1024"},
		{"a\x00b", `name "a\x00b" has a control character`},
		{"a\u0085b", `name "a\u0085b" has a control character`},
		{"\xff", `name is not UTF-8: "\xff"`},
		{"früh/ ☂", ""},
	} {
		got := ""
		if err := base.CheckName(test.name); err != nil {
			got = err.Error()
		}
		if got != test.err {
			t.Errorf("CheckName(%q) = %q, want %q", test.name, got, test.err)
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
