//go:build linux

package story

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Workers may be killed in the middle of a line, tell things twice or out of order when
// something is wrong with them. They are judged then, and that is never cut short.
func FuzzStory(f *testing.F) {
	f.Add(`{"at":1,"what":"asks","id":1,"name":"a","slots":1}`+"\n"+`{"at":2,"what":"granted","id":1,"name":"a","slots":1,"token":7}`, int64(0))
	f.Fuzz(func(t *testing.T, lines string, killed int64) {
		if strings.Count(lines, "\n") > 16 {
			return // what order there may have been takes long to find
		}
		stories := []*Story{{ID: "a", TTL: time.Second, Killed: killed}, {ID: "b", TTL: 2 * time.Second, Stops: [][2]int64{{killed, killed + 1}}, Sleeps: [][2]int64{{killed, killed + 2}}}}
		for line := range strings.SplitSeq(lines, "\n") {
			var e Event
			if json.Unmarshal([]byte(line), &e) == nil {
				s := stories[len(line)%2]
				s.Events = append(s.Events, e)
			}
		}
		h := &History{Stories: stories, Rows: map[string]bool{"k": true}, Slow: time.Millisecond}
		found := h.Judge()
		h.Counters()
		if gap, _ := h.Gap(); gap < 0 {
			t.Fatalf("a gap of %v", gap)
		}
		holds := h.Holds()
		for i, a := range holds {
			for _, b := range holds[:i] {
				if a.Name == b.Name && a.Slots == 1 && b.Slots == 1 && a.Granted < a.Ended && b.Granted < b.Ended &&
					a.Granted < b.Ended && b.Granted < a.Ended && len(found) == 0 {
					t.Fatalf("found good: %v and %v", a.Hold, b.Hold)
				}
			}
		}
	})
}
