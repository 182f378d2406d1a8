package seen

import (
	"fmt"
	"testing"
)

// What is remembered is bounded, and an id is forgotten only for another.
func TestSet(t *testing.T) {
	s := New()
	id := func(i int) []byte { return fmt.Append(nil, i) }
	const few, many = 100, 100_000
	known := func(n int) (known int) {
		for i := range n {
			if s.Has(id(i)) {
				known++
			}
		}
		return known
	}
	for i := range few {
		if s.Has(id(i)) {
			t.Errorf("%d is known before it was seen", i)
		}
		if s.Add(id(i)); !s.Has(id(i)) {
			t.Errorf("%d is not known", i)
		}
	}
	if n := known(few); n < few*9/10 {
		t.Errorf("%d of %d ids are known", n, few)
	}
	for i := range many {
		s.Add(id(i))
	}
	if n := known(many); n == 0 || n > len(s.marks) {
		t.Errorf("%d of %d ids are known, want %d at most", n, many, len(s.marks))
	}
}
