package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// What waits for the disk is what must. SQLite is asked what it will do at a
// commit; that the disk then does it only a power cut can show.
func TestSynchronous(t *testing.T) {
	const normal, full = "1", "2"
	key := func(space driver.Space, name string) driver.Key { return driver.Key{Space: space, Name: name} }
	write := func(k driver.Key, lazy bool) driver.Write {
		return driver.Write{Key: k, Old: driver.IfEmpty, Lazy: lazy}
	}
	a, b, beat := key(driver.Names, "a"), key(driver.Names, "b"), key(driver.Sessions, "s")
	for _, test := range []struct {
		name   string
		writes []driver.Write
		want   string
	}{
		{"durable", []driver.Write{write(a, false)}, full},
		{"lazy", []driver.Write{write(a, true)}, normal},
		{"durable batch", []driver.Write{write(a, false), write(b, false)}, full},
		{"mixed batch", []driver.Write{write(a, true), write(b, false)}, full},
		{"mixed batch, lazy last", []driver.Write{write(a, false), write(b, true)}, full},
		{"mixed batch, lazy around", []driver.Write{write(a, true), write(b, false), write(beat, true)}, full},
		{"lazy batch", []driver.Write{write(a, true), write(b, true)}, normal},
		{"durable beat", []driver.Write{write(beat, false)}, full},
		{"mixed batch of beats, lazy last", []driver.Write{write(beat, false), write(key(driver.Sessions, "t"), true)}, full},
		{"lazy beat", []driver.Write{write(beat, true)}, normal},
	} {
		for _, allow := range [][]string{nil, {"async-commit"}} {
			want := test.want
			if allow != nil {
				want = normal
			}
			s := open(t, filepath.Join(t.TempDir(), "locks.db"), &Options{Create: true, Allow: allow})
			for _, before := range [][]driver.Write{nil, {write(a, true), write(beat, false)}, {write(beat, true)}, {write(a, false)}} {
				for _, writes := range [][]driver.Write{before, test.writes} {
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
