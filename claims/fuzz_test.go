package claims

import (
	"bytes"
	"testing"
)

// Claims are ordered by their time, whoever makes them; a guard comes right before what
// it guards against and expires with it; rows of different locks are different; and what
// others have written into a row is read without harm.
func FuzzNames(f *testing.F) {
	f.Add([]byte("key"), []byte("column"), []byte("k"), []byte("eycolumn"), int64(1795226403001234), int64(1795226403001235), "a~00112233445566778899aabbccddeeff")
	f.Fuzz(func(t *testing.T, key, column, key2, column2 []byte, at, later int64, rid string) {
		if same := bytes.Equal(key, key2) && bytes.Equal(column, column2); same != bytes.Equal(rowKey(key, column), rowKey(key2, column2)) {
			t.Fatalf("(%q, %q) and (%q, %q): one row is %v", key, column, key2, column2, !same)
		}
		shownRid(rid)
		shownRid(ridOf(key))
		timestampOf(key)
		if at < 1 || later < 1 {
			return // before 1970
		}
		a, b := claimName(at, rid), claimName(later, "")
		if timestampOf(a) != at || ridOf(a) != rid {
			t.Fatalf("(%d, %q) is read as (%d, %q)", at, rid, timestampOf(a), ridOf(a))
		}
		if at < later && bytes.Compare(a, b) >= 0 || at > later && bytes.Compare(a, b) <= 0 {
			t.Fatalf("%d and %d are out of order", at, later)
		}
		for _, claim := range [][]byte{a, b} {
			g := guardName(claim, rid)
			if bytes.Compare(g, claim) >= 0 || timestampOf(claim)-timestampOf(g) > 1 || timestampOf(g) > timestampOf(claim) {
				t.Fatalf("the guard %q does not come right before %q", g, claim)
			}
			if ridOf(g) != "\x00"+rid {
				t.Fatalf("the guard %q is not of %q", g, rid)
			}
		}
	})
}
