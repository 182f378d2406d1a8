package etcd

import (
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// Two keys have two keys of etcd, whatever their names and spaces, none of them has one
// of ours, and what wakes somebody is understood by whom it wakes.
func FuzzKeys(f *testing.F) {
	f.Add("holdfast/", byte(0), "a", byte(1), "b", "*")
	f.Fuzz(func(t *testing.T, prefix string, space1 byte, name1 string, space2 byte, name2, wake string) {
		s := &Store{prefix: prefix}
		a, b := driver.Key{Space: driver.Space(space1), Name: name1}, driver.Key{Space: driver.Space(space2), Name: name2}
		if a.Check() != nil || b.Check() != nil {
			return
		}
		used := map[string]string{s.epochKey(): "epoch", s.sweptKey(): "swept"}
		put := func(key, what string) {
			if other, ok := used[key]; ok && other != what {
				t.Fatalf("%q is the key of %s and of %s", key, other, what)
			}
			used[key] = what
			if !strings.HasPrefix(key, prefix) {
				t.Fatalf("%q does not begin with %q", key, prefix)
			}
		}
		for _, k := range []driver.Key{a, b} {
			name := k.Space.String() + " " + k.Name
			put(s.key(k), name)
			put(s.fenceKey(k.Name), "fence "+k.Name)
			if !strings.HasPrefix(s.key(k), s.space(k.Space)) {
				t.Fatalf("%q is listed under %q", s.key(k), s.space(k.Space))
			}
			for space := range letters {
				if driver.Space(space) != k.Space && strings.HasPrefix(s.key(k), s.space(driver.Space(space))) {
					t.Fatalf("%q is listed under %q too", s.key(k), s.space(driver.Space(space)))
				}
			}
			if wake == "" {
				continue
			}
			woken := s.wakes(wake) + letters[k.Space] + k.Name
			put(woken, "waking "+wake+" "+name)
			if h, ok := s.notification(woken); !ok || h != (driver.Notification{Key: k, To: wake}) {
				t.Fatalf("%q wakes %q for %+v, and is read as %+v, %v", woken, wake, k, h, ok)
			}
			if name1 != wake && strings.HasPrefix(woken, s.wakes(name1)) {
				t.Fatalf("what wakes %q wakes %q", wake, name1)
			}
		}
		if h, ok := s.notification(prefix + "w/" + name1); ok && h.Key.Space > driver.Histories || ok && h.Key.Name == "" {
			t.Fatalf("%q is the notification %+v", name1, h)
		}
	})
}

// Writes are cut into transactions that etcd takes, in order and all of them.
func FuzzSplit(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint16(500))
	f.Fuzz(func(t *testing.T, sizes []byte, unit uint16) {
		if len(sizes) > 400 {
			return
		}
		var writes []driver.Write
		value := make([]byte, 255*int(unit))
		for i, n := range sizes {
			writes = append(writes, driver.Write{Old: int64(i), Value: value[:min(int(n)*int(unit), driver.MaxValue)]})
		}
		at := int64(0)
		for _, part := range split(writes) {
			size := 0
			for _, w := range part {
				if w.Old != at {
					t.Fatalf("write %d comes where %d should", w.Old, at)
				}
				at++
				size += len(w.Value)
			}
			if len(part) > maxOps || len(part) > 1 && size > maxBytes || len(part) == 0 && len(writes) > 0 {
				t.Fatalf("a transaction of %d writes of %d bytes", len(part), size)
			}
		}
		if int(at) != len(writes) {
			t.Fatalf("%d writes of %d", at, len(writes))
		}
	})
}
