package state

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// When a writer is dead.
func TestDead(t *testing.T) {
	const lease, most = 30 * time.Second, time.Hour
	for _, test := range []struct {
		name       string
		lock       lockState
		age, stood time.Duration
		dead       bool
	}{
		{"new", unknown, 0, 0, false},
		{"in its lease", unknown, 29 * time.Second, 29 * time.Second, false},
		{"by the server's clock", unknown, 30 * time.Second, 0, true},
		{"by standing still", unknown, -1, 30 * time.Second, true},
		{"no age, seen now", unknown, -1, 0, false},
		{"its lock is free", free, 0, 0, true},
		{"its lock is held", held, 31 * time.Second, 31 * time.Second, false},
		{"its lock is held for the hour", held, 59 * time.Minute, 0, false},
		{"its lock is held beyond the hour", held, time.Hour, 0, true},
		{"its lock is held beyond the hour, by standing still", held, -1, time.Hour, true},
	} {
		s := sight{limit: lease, most: most, lock: test.lock, age: test.age, stood: test.stood}
		if got := s.dead(); got != test.dead {
			t.Errorf("%s: dead is %v, want %v", test.name, got, test.dead)
		}
	}
	if s := (sight{limit: 2 * time.Hour, most: time.Hour, lock: held, age: 90 * time.Minute}); s.dead() {
		t.Error("a lock that is held makes a long lease shorter")
	}
}

func TestEntry(t *testing.T) {
	e := entry{Proof: "1:2", Host: strings.Repeat("h", 300) + "\xff", PID: 4711, User: "\xff\"\n", Program: strings.Repeat("\x00", 300)}
	got := parseEntry(e.encode())
	if got.Proof != e.Proof || got.PID != e.PID || len(got.Host) != 100 || len(e.encode()) > maxEntry {
		t.Errorf("%q is read as %+v", e.encode(), got)
	}
}

// Whatever a file holds, what is taken for a key is one, and is read as itself.
func FuzzKey(f *testing.F) {
	for _, text := range []string{"", "\n", "yMjAwMFowZjE\n", "0123456789abcdef", "\x00\x00\x00\x00\x00\x00\x00\x00", strings.Repeat("k", 129), "ab+/cd==", "two words"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		key, ok := parseKey(text)
		if !ok {
			if key != "" {
				t.Errorf("%q is no key, and %q", text, key)
			}
			return
		}
		if again, ok := parseKey([]byte(key)); !ok || again != key {
			t.Errorf("the key %q is read as %q, %v", key, again, ok)
		}
		if len(key) < 8 || len(key) > 128 || strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_.-") != "" {
			t.Errorf("%q is a key", key)
		}
		if string(text) != key && string(text) != key+"\n" {
			t.Errorf("%q is read as %q", text, key)
		}
	})
}

// Whatever the name of an entry, the lease that it tells is one that a writer may have, and only
// names of ours tell one: others are a UUID, what mktemp draws, or a process id.
func FuzzEntryName(f *testing.F) {
	for _, name := range []string{"", "x", "4711", nameOf(time.Second), nameOf(holdfast.MaxTTL), "572gasfg0", "550e8400-e29b-41d4-a716-446655440000",
		"550E8400E29B41D4A716446655-30000", "QRSTUVWXYZ234567ABCDEFGHIJ", "QRSTUVWXYZ234567ABCDEFGHIJ-", "QRSTUVWXYZ234567ABCDEFGHIJ-0", "QRSTUVWXYZ234567ABCDEFGHIJ--5", "QRSTUVWXYZ234567ABCDEFGHIJ-030000",
		"QRSTUVWXYZ234567ABCDEFGHIJ-30000", "QRSTUVWXYZ234567ABCDEFGHIJ-+30000", "QRSTUVWXYZ234567ABCDEFGHIJ-30000-1", "QRSTUVWXYZ234567ABCDEFGHIJ-9223372036854775807"} {
		f.Add(name)
	}
	ours := regexp.MustCompile(`^[A-Z2-7]{26,}-[1-9][0-9]*$`)
	f.Fuzz(func(t *testing.T, name string) {
		lease := leaseOf(name)
		if lease < 0 || lease > holdfast.MaxTTL || lease > 0 && !ours.MatchString(name) {
			t.Errorf("%q tells a lease of %v", name, lease)
		}
		if lease > 0 && name[strings.Index(name, "-"):] != strings.TrimLeft(nameOf(lease), "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") {
			t.Errorf("%q tells a lease of %v, whose names are as %q", name, lease, nameOf(lease))
		}
	})
}

// An entry of ours stays what it is, and whatever else is there says nothing.
func FuzzEntry(f *testing.F) {
	for _, text := range []string{"", "{}", `{"pid":1e3}`, `[1]`, "null", `{"proof":"1:2","host":"\u0000","pid":-1}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e := parseEntry(text)
		if len(text) > maxEntry && e != (entry{}) {
			t.Errorf("%d bytes are read as %+v", len(text), e)
		}
		if out := e.encode(); len(e.Proof) < 100 {
			if again := parseEntry(out); again.Proof != e.Proof || again.PID != e.PID {
				t.Errorf("%q is written as %q and read as %+v", text, out, again)
			}
		}
	})
}
