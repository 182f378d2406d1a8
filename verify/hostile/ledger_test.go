//go:build linux

package hostile

import (
	"path"
	"testing"
	"time"
)

// A second marker that trails behind the first is no version that came back; the
// first one, moved to a lower version, is.
func TestSecondMarker(t *testing.T) {
	var l ledger
	read := func(name string) ([]byte, time.Duration) {
		if path.Base(name) == "record-FIVE" { // it was removed when it was followed
			return nil, 0
		}
		return []byte("{\"name\":\"a\",\"size\":1}\nx"), 0
	}
	rename := func(from, to string) { l.Renamed("names/ab/"+from, "names/ab/"+to, read) }
	rename("blank", "version-0-ZERO-free")
	l.Renamed("names/ab/version-0-ZERO-free", "names/ab/version-5-FIVE", func(string) ([]byte, time.Duration) {
		return []byte("{\"name\":\"a\",\"size\":1}\nx"), 0
	})
	rename("version-5-FIVE", "version-9-NINE")
	rename("blank", "version-0-ZERO-free")
	rename("version-0-ZERO-free", "version-5-FIVE")
	if len(l.steps) != 2 || len(l.found) != 0 || l.ghosts != 1 {
		t.Fatalf("%d steps, %d violations, %d of a second marker; want 2, 0, 1", len(l.steps), len(l.found), l.ghosts)
	}
	rename("version-9-NINE", "version-7-SEVEN")
	if len(l.steps) != 3 || l.steps[2].Version != 7 {
		t.Errorf("the newest went back to version 7, and the ledger has %v", l.steps)
	}
}
