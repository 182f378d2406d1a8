package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast"
)

// What waits for the disk is what must. SQLite is asked what it will do at a
// commit; that the disk then does it only a power cut can show.
func TestSynchronous(t *testing.T) {
	const normal, full = "1", "2"
	key := func(space holdfast.Space, name string) holdfast.Key { return holdfast.Key{Space: space, Name: name} }
	write := func(k holdfast.Key, lazy bool) holdfast.Write {
		return holdfast.Write{Key: k, Old: holdfast.IfEmpty, Lazy: lazy}
	}
	a, b, beat := key(holdfast.Names, "a"), key(holdfast.Names, "b"), key(holdfast.Sessions, "s")
	for _, test := range []struct {
		name   string
		writes []holdfast.Write
		want   string
	}{
		{"durable", []holdfast.Write{write(a, false)}, full},
		{"lazy", []holdfast.Write{write(a, true)}, normal},
		{"durable batch", []holdfast.Write{write(a, false), write(b, false)}, full},
		{"mixed batch", []holdfast.Write{write(a, true), write(b, false)}, full},
		{"mixed batch, lazy last", []holdfast.Write{write(a, false), write(b, true)}, full},
		{"mixed batch, lazy around", []holdfast.Write{write(a, true), write(b, false), write(beat, true)}, full},
		{"lazy batch", []holdfast.Write{write(a, true), write(b, true)}, normal},
		{"durable beat", []holdfast.Write{write(beat, false)}, full},
		{"mixed batch of beats, lazy last", []holdfast.Write{write(beat, false), write(key(holdfast.Sessions, "t"), true)}, full},
		{"lazy beat", []holdfast.Write{write(beat, true)}, normal},
	} {
		for _, allow := range [][]string{nil, {"async-commit"}} {
			want := test.want
			if allow != nil {
				want = normal
			}
			s := open(t, filepath.Join(t.TempDir(), "locks.db"), &Options{Create: true, Allow: allow})
			for _, before := range [][]holdfast.Write{nil, {write(a, true), write(beat, false)}, {write(beat, true)}, {write(a, false)}} {
				for _, writes := range [][]holdfast.Write{before, test.writes} {
					if _, err := s.CompareAndSwap(t.Context(), writes); err != nil {
						t.Fatal(err)
					}
				}
				// Nothing runs at the same time, so all of it went through one.
				err := s.names.Use(t.Context(), func(c *conn) error {
					got, err := c.strings(`pragma synchronous`)
					if err == nil && (len(got) != 1 || got[0] != want) {
						t.Errorf("%s after %v, allowed %v: synchronous is %s, want %s", test.name, before, allow, got, want)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
