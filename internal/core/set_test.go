package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// A round of a set, at a second: what is lost before it, which names it tries, which of them
// it does not get, and what follows. Names that are waited for are granted.
type setRound struct {
	at     int
	lost   string // with its session
	tries  string
	within int // seconds, for an answer of the store; 0: not compared
	held   string
	silent string // the store does not answer
	want   SetKind
	name   string
	back   string
	set    string
	most   int // seconds
}

// What follows from the rounds of a set of the names a, b and c; none gives up before 10 s.
func TestSet(t *testing.T) {
	for _, test := range []struct {
		name    string
		names   string
		bounded bool
		most    int
		rounds  []setRound
	}{
		{"all are free", "abc", false, 0, []setRound{{tries: "abc"}, {tries: ""}}},
		{"one is held: what lies above is given back", "abc", false, 0, []setRound{
			{tries: "abc", held: "b", want: SetWait, name: "b", back: "c", set: "1 of 3"}, {tries: "c"}, {tries: ""}}},
		{"the lowest of those that are held is waited for", "abc", false, 0, []setRound{
			{tries: "abc", held: "ca", want: SetWait, name: "a", back: "b", set: "0 of 3"},
			{tries: "bc", held: "c", want: SetWait, name: "c", set: "2 of 3"}, {tries: ""}}},
		{"lost with its session", "abc", false, 0, []setRound{
			{tries: "abc", held: "c", want: SetWait, name: "c", set: "2 of 3"}, {lost: "b", tries: "b"}, {tries: ""}}},
		{"a single name is no part of a set", "a", false, 0, []setRound{{tries: "a", held: "a", want: SetWait, name: "a"}}},
		{"a try does not become a wait", "ab", true, 0, []setRound{{tries: "ab", within: 5, held: "b", want: SetWait, name: "b", set: "1 of 2"}}},
		{"what it has waited counts", "ab", true, 10, []setRound{
			{tries: "ab", within: 5, held: "a", want: SetWait, name: "a", back: "b", set: "0 of 2", most: 10},
			{at: 7, tries: "b", within: 10, held: "b", want: SetWait, name: "b", set: "1 of 2", most: 3}}},
		{"its time is up", "ab", true, 10, []setRound{
			{tries: "ab", held: "a", want: SetWait, name: "a", back: "b", set: "0 of 2", most: 10},
			{at: 10, tries: "b", within: 11, held: "b", want: SetFail, name: "b", most: 1}}},
		{"a bounded one does not wait for the store", "abc", true, 10, []setRound{{tries: "abc", silent: "b", held: "c", want: SetFail, name: "b"}}},
		{"one without a bound does", "abc", false, 0, []setRound{{tries: "abc", silent: "b", want: SetWait, name: "b", back: "c", set: "1 of 3"}}},
	} {
		start := lease.Instant(1000)
		s := NewSet(strings.Split(test.names, ""), test.bounded, time.Duration(test.most)*time.Second, start)
		for i, r := range test.rounds {
			now := start.Add(time.Duration(r.at) * time.Second)
			if r.lost != "" && !s.Lost(r.lost, false) {
				t.Errorf("%s: round %d: the set ends with a lock that was lost with its session", test.name, i)
			}
			names, within := s.Missing(now)
			if got := strings.Join(names, ""); got != r.tries {
				t.Errorf("%s: round %d tries %q, want %q", test.name, i, got, r.tries)
			}
			if got := int(within / time.Second); r.within != 0 && got != r.within {
				t.Errorf("%s: round %d gives the store %d s, want %d", test.name, i, got, r.within)
			}
			for _, name := range names {
				switch {
				case strings.Contains(r.held, name):
					s.Failed(name, true)
				case strings.Contains(r.silent, name):
					s.Failed(name, false)
				default:
					s.Got(name)
				}
			}
			want := SetStep{r.want, r.name, nil, r.set, time.Duration(r.most) * time.Second}
			if r.back != "" {
				want.Back = strings.Split(r.back, "")
			}
			got := s.Clone().Next(now)
			if got.Kind != want.Kind || got.Name != want.Name || got.Set != want.Set || got.Most != want.Most || !slices.Equal(got.Back, want.Back) {
				t.Errorf("%s: round %d: %+v, want %+v", test.name, i, got, want)
			}
			if s.Next(now); r.want == SetWait {
				s.Got(r.name)
			}
		}
	}
}

// A set ends when one of its locks was broken.
func TestSetBroken(t *testing.T) {
	s := NewSet([]string{"a"}, false, 0, 0)
	s.Got("a")
	if s.Lost("a", true) {
		t.Error("it goes on")
	}
}
