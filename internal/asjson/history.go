package asjson

import (
	"time"

	"github.com/holdfast-lock/holdfast"
)

type (
	// History is what is remembered of the holds of a name.
	History struct {
		Name    string     `json:"name"`
		Holds   []PastHold `json:"holds"`   // newest first
		Others  HoldSums   `json:"others"`  // all that are not listed
		Success *Success   `json:"success"` // null: none was recorded
	}
	// PastHold is a hold that has ended.
	PastHold struct {
		Token   int64           `json:"token"`
		Owner   holdfast.Owner  `json:"owner"`
		Granted time.Time       `json:"granted,omitzero"` // missing: not known
		Ended   time.Time       `json:"ended"`
		Held    *float64        `json:"held"` // null: not known
		Waited  float64         `json:"waited"`
		End     string          `json:"end"`
		By      *holdfast.Owner `json:"by,omitempty"`
		Reason  string          `json:"reason,omitempty"`
		Why     string          `json:"why,omitempty"`
	}
	// HoldSums are sums of holds.
	HoldSums struct {
		Count  int64   `json:"count"`
		Held   float64 `json:"held"`
		Waited float64 `json:"waited"`
	}
	// Success is work under a lock that succeeded.
	Success struct {
		Token int64          `json:"token"`
		By    holdfast.Owner `json:"by"`
		At    time.Time      `json:"at"`
		Ago   float64        `json:"ago"`
	}
)

// OfHistory is what is remembered of a name.
func OfHistory(h holdfast.History) History {
	seconds := func(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
	out := History{Name: h.Name, Holds: make([]PastHold, len(h.Holds)),
		Others: HoldSums{h.Others.Count, seconds(h.Others.Held), seconds(h.Others.Waited)}}
	for i, p := range h.Holds {
		o := PastHold{Token: p.Token, Owner: p.Owner, Granted: p.Granted.UTC(), Ended: p.Ended.UTC(), Held: age(-1), Waited: seconds(p.Waited),
			End: p.End, Reason: p.Reason, Why: p.Why}
		if !p.Granted.IsZero() {
			o.Held = age(max(p.Ended.Sub(p.Granted), 0))
		}
		if p.By.Host != "" || p.By.Name != "" {
			o.By = &p.By
		}
		out.Holds[i] = o
	}
	if s := h.Success; s != nil {
		out.Success = &Success{s.Token, s.By, s.At.UTC(), seconds(s.Ago)}
	}
	return out
}
