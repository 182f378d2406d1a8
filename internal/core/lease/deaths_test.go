package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A client that lives for long remembers the latest deaths, its own sessions' among them, and no more
// than some ten thousand.
func TestDeathsAreForgotten(t *testing.T) {
	var d Deaths
	now := Instant(0)
	for i := range 3 * mostDeaths {
		now = now.Add(time.Second)
		own, other := fmt.Sprint("own ", i), fmt.Sprint("other ", i)
		d.Lose(own, now)
		d.Know(other, record.Session{TTL: 10_000, Dead: 1}, -1, now, record.Clocks{})
		if !d.Dead(own, now) || !d.Dead(other, now) {
			t.Fatalf("the deaths of %q and %q are not remembered", own, other)
		}
	}
	if len(d.lost) > mostDeaths+1 || len(d.void) > mostDeaths+1 || len(d.died) > mostDeaths+1 {
		t.Errorf("%d own sessions, %d tombstones and %d deaths are remembered, want at most %d", len(d.lost), len(d.void), len(d.died), mostDeaths+1)
	}
}
