package record

import (
	"testing"
	"time"
)

// What a sweep writes in place of a lock record at version 100, in which "dead" is dead.
func TestSweptRecord(t *testing.T) {
	claim := func(session string, token Token) Claim {
		return Claim{Session: session, Nr: 1, Slots: 1, Token: token}
	}
	for _, test := range []struct {
		name    string
		rec     Lock
		writes  bool
		claims  int
		holders int
		waiters int
		wakes   bool // and waits for the disk
		empty   bool
	}{
		{"nothing to do", Lock{Holders: []Claim{claim("a", 7)}, Waiters: []Claim{claim("b", 0)}}, false, 0, 1, 1, false, false},
		{"a dead holder, and nobody waits", Lock{Holders: []Claim{claim("dead", 7)}}, true, 1, 0, 0, false, true},
		{"a dead holder, and one waits", Lock{Holders: []Claim{claim("dead", 7)}, Waiters: []Claim{claim("b", 0)}}, true, 1, 1, 0, true, false},
		{"a dead waiter", Lock{Holders: []Claim{claim("a", 7)}, Waiters: []Claim{claim("dead", 0), claim("b", 0)}}, true, 1, 1, 1, false, false},
		{"nothing is left", Lock{Next: 50}, true, 0, 0, 0, false, true},
		{"nothing but a block of tokens", Lock{Next: 5000}, true, 0, 0, 0, false, false},
		{"audit entries are left", Lock{Breaks: []Break{{Session: "a"}}}, false, 0, 0, 0, false, false},
	} {
		before := jsonOf(test.rec)
		w, claims, ok := test.rec.Void(100, func(s string) bool { return s == "dead" }, 1)
		if ok != test.writes || claims != test.claims || len(w.Next.Holders) != test.holders || len(w.Next.Waiters) != test.waiters {
			t.Errorf("%s: writes %v, %d claims go, %+v", test.name, ok, claims, w.Next)
		}
		if w.Old != 100 || (w.Notify == Everyone) != test.wakes || w.Lazy == test.wakes {
			t.Errorf("%s: after %d, wakes %q, lazy %v", test.name, w.Old, w.Notify, w.Lazy)
		}
		if empty := len(w.Next.Encode(100)) == 0; empty != test.empty {
			t.Errorf("%s: is written as %s", test.name, w.Next.Encode(100))
		}
		if jsonOf(test.rec) != before {
			t.Errorf("%s: changed the record that it was given", test.name)
		}
	}
}

// When a tombstone goes: its TTL was 10 s.
func TestTombstoneExpires(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name       string
		dead       int64 // microseconds
		claims     int
		age, known time.Duration
		wall       time.Duration // since dead
		want       bool
	}{
		{"it is two TTLs old", 1, 0, 20 * s, -1, 0, true},
		{"it is younger", 1, 0, 20*s - 1, 90 * s, 90 * s, false},
		{"it has a claim", 1, 1, 90 * s, -1, 0, false},
		{"it lives", 0, 0, 90 * s, -1, 0, false},
		{"by the wall clock", 1, 0, -1, -1, 20 * s, true},
		{"by a wall clock that is behind", 1, 0, -1, -1, -s, false},
		{"by a wall clock that is far behind", 1, 0, -1, -1, -20 * s, true},
		{"known for long", 1, 0, -1, 20 * s, 0, true},
		{"known for a while", 1, 0, -1, 19 * s, 0, false},
	} {
		rec := Session{TTL: 10_000, Dead: test.dead}
		if got := rec.MayEmpty(test.claims, test.age, test.known, Clocks{Wall: 1 + test.wall.Microseconds()}); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// What the release of a detached hold by its token makes of a session's record. The hold was
// for 9 s, with a TTL of 10 s and a grace of 3 s.
func TestReleaseToken(t *testing.T) {
	const s = time.Second
	held := Session{TTL: 10_000, Grace: 3000, Beat: 1, Detached: true, At: 1}
	running := held
	running.Detached = false
	ended := held
	ended.Dead, ended.By, ended.Why = 5, "another", "its time is over"
	ours := ended
	ours.By, ours.Why = "me", "released"
	theirs := ours
	theirs.By = "another"
	for _, test := range []struct {
		name   string
		rec    Session
		absent bool
		age    time.Duration
		want   TokenRelease
		grace  int64
	}{
		{"in time", held, false, 5 * s, ReleaseInTime, 0},
		{"where the store has no clock", held, false, -1, ReleaseInTime, 0},
		{"late", held, false, 9 * s, ReleaseLate, 3000},
		{"after it was found out", ended, false, 12 * s, ReleaseOver, 3000},
		{"after its record was swept", Session{}, true, -1, ReleaseOver, 0},
		{"the answer to it was lost", ours, false, 0, ReleaseAgain, 3000},
		{"another has released it", theirs, false, 0, ReleaseOver, 3000},
		{"a running program", running, false, 5 * s, ReleaseRunning, 3000},
	} {
		rec := test.rec
		got := rec.ReleaseToken(test.absent, test.age, "me", Clocks{Wall: 1 + (9 * s).Microseconds()})
		if got != test.want || rec.Grace != test.grace {
			t.Errorf("%s: %d with grace %d, want %d with %d", test.name, got, rec.Grace, test.want, test.grace)
		}
		if writes := got == ReleaseInTime || got == ReleaseLate; writes != (rec.Dead != test.rec.Dead) {
			t.Errorf("%s: %+v", test.name, rec)
		}
	}
}

// The tombstone of a session that ends in order; one that is there stays.
func TestClosed(t *testing.T) {
	owner := &Owner{Host: "h"}
	for _, test := range []struct {
		name  string
		rec   Session
		grace time.Duration
		ok    bool
		want  int64 // milliseconds of grace
	}{
		{"alive", Session{Beat: 4}, 0, true, 0},
		{"with a grace", Session{Beat: 4}, 3 * time.Second, true, 3001},
		{"with less than a millisecond", Session{Beat: 4}, 1, true, 1},
		{"dead", Session{Beat: 4, Dead: 5, Why: "silent"}, 0, false, 0},
	} {
		tomb, ok := test.rec.Closed(owner, 10*time.Second, test.grace, Clocks{Wall: 9})
		if ok != test.ok || tomb.Beat != 4 || ok && (tomb.Grace != test.want || tomb.Dead != 9 || tomb.TTL != 10_000 || tomb.Why != "closed" || tomb.By != "h") {
			t.Errorf("%s: %v, %+v", test.name, ok, tomb)
		}
	}
}

// Which holder a token belongs to.
func TestHolder(t *testing.T) {
	rec := Lock{Holders: []Claim{{Session: "a", Token: 5}, {Session: "b", Token: 10, N: 3}}}
	for token, want := range map[Token]string{4: "", 5: "a", 6: "", 9: "", 10: "b", 12: "b", 13: ""} {
		if c, ok := rec.Holder(token); ok != (want != "") || c.Session != want {
			t.Errorf("token %d is %q's, want %q", token, c.Session, want)
		}
	}
}
