package sqlite

import (
	"fmt"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// Many records are what they are one by one, whether little lies between them or much, and
// whether all are there.
func TestLoadMany(t *testing.T) {
	s := fresh(t)
	var writes []driver.Write
	for i := range 2000 {
		writes = append(writes, driver.Write{Key: driver.Names.Key(fmt.Sprintf("%04d", i)), Old: driver.IfEmpty, Value: fmt.Appendf(nil, "value %d", i)})
	}
	outs, err := s.CompareAndSwap(t.Context(), writes)
	if err != nil {
		t.Fatal(err)
	}
	for _, apart := range []int{1, 2, 3, 19} {
		var keys []driver.Key
		for i := 0; i < len(writes); i += apart {
			keys = append(keys, writes[i].Key, driver.Names.Key(fmt.Sprintf("%04d absent", i)))
		}
		recs, err := s.Load(t.Context(), keys, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range recs {
			if i%2 == 1 {
				if r.Version != 0 || r.Value != nil {
					t.Errorf("%d apart: %q is there: %q", apart, keys[i].Name, r.Value)
				}
				continue
			}
			n := i / 2 * apart
			if want := outs[n].Record.Version; r.Version != want || string(r.Value) != string(writes[n].Value) {
				t.Errorf("%d apart: %q has version %d and %q, want %d and %q", apart, keys[i].Name, r.Version, r.Value, want, writes[n].Value)
			}
		}
	}
}
