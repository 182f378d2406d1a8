package record

import "testing"

// What is in an audit after entries were added: each claim once, the newest first.
func TestAudit(t *testing.T) {
	of := func(ats ...int64) (breaks []Break) {
		for _, at := range ats {
			breaks = append(breaks, Break{Session: "s", Nr: at % 10, At: at})
		}
		return breaks
	}
	many := of()
	for i := range int64(MaxBreaks) {
		many = append(many, Break{Session: "many", Nr: i, At: 100 - i})
	}
	for _, test := range []struct {
		name        string
		kept, fresh []Break
		want        []int64
	}{
		{"the first", nil, of(11), []int64{11}},
		{"a newer one", of(11), of(22), []int64{22, 11}},
		{"an older one", of(22), of(11), []int64{22, 11}},
		{"the same claim", of(11), of(21), []int64{11}},
		{"no room for an older one", many, of(11), []int64{100, 99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87, 86, 85}},
		{"the oldest makes room", many, of(111), []int64{111, 100, 99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87, 86}},
	} {
		var got []int64
		for _, b := range append(Audit(nil), test.kept...).Add(test.fresh) {
			got = append(got, b.At)
		}
		if jsonOf(got) != jsonOf(test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// Entries that were copied leave the lock record; those that came since stay.
func TestDropBreaks(t *testing.T) {
	a, b := Break{Session: "s", Nr: 1}, Break{Session: "s", Nr: 2}
	for _, test := range []struct {
		name    string
		rec     Lock
		copied  []Break
		left    int
		changed bool
	}{
		{"all", Lock{Breaks: []Break{a, b}}, []Break{a, b}, 0, true},
		{"one came since", Lock{Breaks: []Break{a, b}}, []Break{a}, 1, true},
		{"another has dropped them", Lock{Breaks: []Break{b}}, []Break{a}, 1, false},
		{"the head of the queue is let in", Lock{Waiters: []Claim{{Session: "w"}}}, nil, 0, true},
	} {
		changed := test.rec.DropBreaks(test.copied, func(string) bool { return false }, 1)
		if changed != test.changed || len(test.rec.Breaks) != test.left || len(test.rec.Waiters) != 0 {
			t.Errorf("%s: changed %v, %+v", test.name, changed, test.rec)
		}
	}
}
