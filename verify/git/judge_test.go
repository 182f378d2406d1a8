//go:build linux

package git

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

const never = time.Duration(math.MaxInt64)

// A push gave refs their next values. Its end is never if it is not known to have succeeded:
// then it may have, at any time after it began.
type push struct {
	refs       []int
	values     []string
	begin, end time.Duration
}

// An answer is what a reader was told between two moments.
type answer struct {
	who        string
	begin, end time.Duration
	content    string // names what it was told
}

// A fault is an answer that git itself could not have given.
type fault struct {
	answer
	why string
}

// A history is what the values of a ref were, in their order.
type history struct {
	values     []string
	begin, end []time.Duration
	seen       []time.Duration // the earliest end of an answer that had this value or a later one
}

// judge finds the answers that git could not have given at any moment between
// question and answer. Pushes are in the order of their refs' owners; contents
// are the values of all refs, by name.
func judge(initial []string, pushes []push, answers []answer, contents map[string][]string) []fault {
	refs := make([]history, len(initial))
	for i, v := range initial {
		refs[i] = history{values: []string{v}, begin: []time.Duration{0}, end: []time.Duration{0}}
	}
	for _, p := range pushes {
		for k, i := range p.refs {
			h := &refs[i]
			h.values = append(h.values, p.values[k])
			h.begin, h.end = append(h.begin, p.begin), append(h.end, p.end)
		}
	}
	// When a content was first told, and which values it has.
	first := make(map[string]time.Duration)
	for _, a := range answers {
		if at, ok := first[a.content]; !ok || a.end < at {
			first[a.content] = a.end
		}
	}
	which := make(map[string][]int)
	strange := make(map[string]string)
	for i := range refs {
		refs[i].seen = slices.Repeat([]time.Duration{never}, len(refs[i].values)+1)
	}
	for name, at := range first {
		index := make([]int, len(refs))
		for i, v := range contents[name] {
			h := &refs[i]
			if index[i] = slices.Index(h.values, v); index[i] < 0 {
				strange[name] = fmt.Sprintf("%s is %s, which nobody has pushed", refName(i), v)
				break
			}
			h.seen[index[i]] = min(h.seen[index[i]], at)
		}
		which[name] = index
	}
	for i := range refs {
		for j := len(refs[i].values) - 1; j >= 0; j-- {
			refs[i].seen[j] = min(refs[i].seen[j], refs[i].seen[j+1])
		}
	}
	// From when to when each content can be told.
	type span struct {
		from, to time.Duration
		why      [2]string
	}
	spans := make(map[string]span)
	for name, index := range which {
		if strange[name] != "" {
			continue
		}
		s := span{to: never}
		for i, j := range index {
			h := &refs[i]
			if h.begin[j] > s.from {
				s.from, s.why[0] = h.begin[j], fmt.Sprintf("%s is %s, whose push began only later", refName(i), h.values[j])
			}
			for k := j + 1; k < len(h.values); k++ {
				if h.end[k] < s.to {
					s.to, s.why[1] = h.end[k], fmt.Sprintf("STALE: %s is %s, and the push of %s had returned", refName(i), h.values[j], h.values[k])
				}
			}
			if h.seen[j+1] < s.to {
				s.to, s.why[1] = h.seen[j+1], fmt.Sprintf("STALE: %s is %s, and another reader had been told of a later value", refName(i), h.values[j])
			}
		}
		spans[name] = s
	}
	var faults []fault
	for _, a := range answers {
		s := spans[a.content]
		switch {
		case strange[a.content] != "":
			faults = append(faults, fault{a, strange[a.content]})
		case a.end < s.from:
			faults = append(faults, fault{a, fmt.Sprintf("%s, by %v", s.why[0], s.from-a.end)})
		case a.begin > s.to:
			faults = append(faults, fault{a, fmt.Sprintf("%s %v before the question", s.why[1], a.begin-s.to)})
		}
	}
	return faults
}

// What the judge lets pass, and what it finds.
func TestJudge(t *testing.T) {
	pushes := []push{
		{refs: []int{0}, values: []string{"a1"}, begin: 10, end: 20},
		{refs: []int{0, 1}, values: []string{"a2", "b1"}, begin: 30, end: never}, // killed
		{refs: []int{0}, values: []string{"a3"}, begin: 50, end: 60},
	}
	contents := map[string][]string{
		"old": {"a0", "b0"}, "one": {"a1", "b0"}, "both": {"a2", "b1"}, "half": {"a1", "b1"},
		"last": {"a3", "b0"}, "last, and b": {"a3", "b1"}, "strange": {"a1", "a1"},
	}
	for _, test := range []struct {
		name    string
		answers []answer
		faults  int
	}{
		{"before all", []answer{{"", 1, 5, "old"}}, 0},
		{"beside a push", []answer{{"", 11, 15, "old"}, {"", 11, 15, "one"}}, 0},
		{"asked before the push returned", []answer{{"", 19, 40, "old"}}, 0},
		{"asked after the push returned", []answer{{"", 21, 40, "old"}}, 1},
		{"of the future", []answer{{"", 1, 9, "one"}}, 1},
		{"a killed push that is there", []answer{{"", 31, 35, "both"}}, 0},
		{"a killed push that is half there", []answer{{"", 31, 35, "half"}}, 0},
		{"a killed push that is not there", []answer{{"", 41, 45, "one"}}, 0},
		{"a killed push that was there and is gone", []answer{{"", 31, 35, "both"}, {"", 41, 45, "one"}}, 1},
		{"a killed push that was there at the same time", []answer{{"", 31, 35, "both"}, {"", 34, 45, "one"}}, 0},
		{"overtaken", []answer{{"", 61, 65, "both"}}, 1},
		{"the last", []answer{{"", 61, 65, "last"}, {"", 70, 75, "last, and b"}}, 0},
		{"the last, backwards", []answer{{"", 61, 65, "last, and b"}, {"", 70, 75, "last"}}, 1},
		{"of nobody", []answer{{"", 61, 65, "strange"}}, 1},
	} {
		if faults := judge([]string{"a0", "b0"}, pushes, test.answers, contents); len(faults) != test.faults {
			t.Errorf("%s: %d faults, want %d: %v", test.name, len(faults), test.faults, faults)
		}
	}
}
