package asjson

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// Durations are decimals of seconds, rounded to milliseconds; what no process renews has an end,
// and no TTL.
func TestDurations(t *testing.T) {
	odd := 2*time.Second/3 + 333*time.Microsecond
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		value any
		want  string
		not   string
	}{
		{Claims([]holdfast.Claim{{TTL: odd, Waited: odd, BeatAge: odd}})[0], `"waited":0.667,"retries":0,"ttl":0.667,"beat_age":0.667,`, `"ends"`},
		{Claims([]holdfast.Claim{{TTL: odd, Detached: true, Ends: end}})[0], `"detached":true,"ends":"2026-01-02T03:04:05Z"`, `"ttl"`},
		{OfSession(holdfast.Session{TTL: odd}), `"ttl":0.667,`, `"ends"`},
		{OfSession(holdfast.Session{TTL: odd, Detached: true, Ends: end}), `"ends":"2026-01-02T03:04:05Z"`, `"ttl"`},
		{OfHistory(holdfast.History{Holds: []holdfast.PastHold{{Waited: odd}}, Others: holdfast.HoldSums{Held: odd, Waited: odd}}), `"held":0.667,"waited":0.667`, "0.6666"},
	} {
		text, err := json.Marshal(test.value)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), test.want) || strings.Contains(string(text), test.not) {
			t.Errorf("got %s\nwant %s and no %s", text, test.want, test.not)
		}
	}
}
