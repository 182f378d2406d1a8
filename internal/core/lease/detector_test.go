package lease

import (
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A look is one sighting, at a second, and what follows from it.
type look struct {
	at      int
	beat    int64 // 0: there is no record
	age     int   // of the record by the store's clock, in seconds; -1: it has none
	mark    bool  // the beat is suspected
	dead    bool  // there is a tombstone
	stale   bool
	version record.Version
	want    Verdict
}

// What a detector makes of what it sees: the TTL is 10 s, and it goes on waiting.
func TestDetector(t *testing.T) {
	for _, test := range []struct {
		name  string
		looks []look
	}{
		{"a beat that stands for a TTL", []look{{at: 0, beat: 1, age: -1}, {at: 4, beat: 1, age: -1}, {at: 5, beat: 1, age: -1, want: Suspect}, {at: 6, beat: 1, age: -1, mark: true}, {at: 9, beat: 1, age: -1, mark: true}, {at: 10, beat: 1, age: -1, mark: true, want: DeclareDead}}},
		{"a heartbeat begins the watch anew", []look{{at: 0, beat: 1, age: -1}, {at: 9, beat: 2, age: -1}, {at: 13, beat: 2, age: -1}, {at: 19, beat: 2, age: -1, want: DeclareDead}}},
		{"the store's clock says that it is late", []look{{at: 0, beat: 1, age: 7, want: Suspect}}},
		{"a mark has to stand for half a TTL here, too", []look{{at: 0, beat: 1, age: 12, mark: true}, {at: 4, beat: 1, age: 16, mark: true}, {at: 5, beat: 1, age: 17, mark: true, want: DeclareDead}}},
		{"a mark of now", []look{{at: 0, beat: 1, age: 12, want: Suspect}, {at: 1, beat: 1, age: 1, mark: true}}},
		{"no record", []look{{at: 0, age: -1}, {at: 1, age: -1, want: Adopt}}},
		{"a record comes", []look{{at: 0, age: -1}, {at: 1, beat: 1, age: -1}, {at: 2, beat: 1, age: -1}}},
		{"a tombstone", []look{{at: 0, beat: 1, age: -1}, {at: 1, beat: 1, age: -1, dead: true, want: Dead}}},
		{"a tombstone at the first look", []look{{at: 0, beat: 1, age: -1, dead: true, want: Dead}}},
		{"a stale read of what was is no news", []look{{at: 0, beat: 2, age: -1, version: 20}, {at: 4, beat: 1, age: -1, version: 10, stale: true}, {at: 10, beat: 2, age: -1, version: 20, want: DeclareDead}}},
	} {
		var d Detector
		for i, l := range test.looks {
			s := Sighting{Record: record.Session{TTL: 10_000, Beat: l.beat}, Absent: l.beat == 0, Version: max(l.version, 1),
				Age: time.Duration(l.age) * time.Second, Asked: Instant(l.at) * Instant(time.Second), Got: Instant(l.at) * Instant(time.Second), Stale: l.stale}
			if l.mark {
				s.Record.Suspected = &record.Suspicion{}
			}
			if l.dead {
				s.Record.Dead = 1
			}
			if s.Absent {
				s.Record = record.Session{}
			}
			if l.version == 0 {
				s.Version = record.Version(100*l.beat + 1)
				if l.mark {
					s.Version++
				}
			}
			if j := d.Observe("s", s, Observer{Patient: true, TTL: 10 * time.Second, Clocks: record.Clocks{Wall: 1}, Now: s.Got}); j.Verdict != l.want {
				t.Errorf("%s: look %d at %d s: verdict %d (%s), want %d", test.name, i, l.at, j.Verdict, j.Why, l.want)
			}
		}
	}
}

// The age that a break leaves in the record of a detached hold is no mark: the hold ends only if
// the wall clocks agree.
func TestDetachedIsNotAsked(t *testing.T) {
	for wall, want := range map[int64]Verdict{1: Alive, 1 + (10 * time.Second).Microseconds(): DeclareDead} {
		var d Detector
		s := Sighting{Record: record.Session{TTL: 10_000, Beat: 1, Detached: true, At: 1, Suspected: &record.Suspicion{Age: (9 * time.Second).Microseconds()}}, Version: 2, Age: 6 * time.Second}
		if j := d.Observe("s", s, Observer{TTL: 10 * time.Second, Clocks: record.Clocks{Wall: wall}}); j.Verdict != want {
			t.Errorf("at %d µs by the wall clock: verdict %d (%s), want %d", wall, j.Verdict, j.Why, want)
		}
	}
}

// One who looks once goes by the age of the mark: it has to stand for half a TTL.
func TestMarkStands(t *testing.T) {
	for age, want := range map[time.Duration]Verdict{2 * time.Second: Alive, 4900 * time.Millisecond: Alive, 5 * time.Second: DeclareDead} {
		var d Detector
		s := Sighting{Record: record.Session{TTL: 10_000, Beat: 1, Suspected: &record.Suspicion{Age: (9 * time.Second).Microseconds()}}, Version: 2, Age: age}
		if j := d.Observe("s", s, Observer{TTL: 10 * time.Second, Clocks: record.Clocks{Wall: 1}}); j.Verdict != want {
			t.Errorf("a mark of %v: verdict %d (%s), want %d", age, j.Verdict, j.Why, want)
		}
	}
}
