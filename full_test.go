package holdfast

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// A queue is full when it has 4096 waiters, or before its record is too large for a store,
// whatever the reasons are.
func TestFull(t *testing.T) {
	for reason, want := range map[string]int{
		"":                              maxRecord / claimSize,
		strings.Repeat("x", maxReason):  1900,
		strings.Repeat("<", maxReason):  600,
		strings.Repeat("\"", maxReason): 600,
		strings.Repeat("\n", maxReason): 600,
		strings.Repeat("\u2028", 66):    600,
		strings.Repeat("ü", 100):        1900,
	} {
		r := lockRecord{Next: maxToken - 1, Holders: []claimRecord{longClaim(0, reason)}}
		r.Holders[0].Token = maxToken / 2
		for len(r.Waiters) < 5000 && !r.full() {
			for range 20 {
				r.enqueue(longClaim(int64(len(r.Waiters)+1), reason))
			}
		}
		if n, size := len(r.Waiters), len(r.encode(0)); n < want || n > maxQueue+20 || size > MaxValue {
			t.Errorf("with the reason %.4q… it is full with %d waiters and %d bytes, want %d waiters or more", reason, n, size, want)
		}
	}
}

// longClaim is as large as a claim may be.
func longClaim(nr int64, reason string) claimRecord {
	return claimRecord{Session: strings.Repeat("f", 32), Nr: 1<<40 + nr, Slots: 1, Token: maxToken - 1, Off: 1 << 30, N: maxBlock,
		TTL: MaxTTL.Milliseconds(), Since: 1 << 52, Reason: reason, Retries: 1 << 20, Set: "100 of 1000"}
}

// Who comes to a full queue is told so at once, and not left to wait in no line.
func TestFullIsTold(t *testing.T) {
	value := lockRecord{Holders: []claimRecord{longClaim(0, "")}}
	for i := range maxQueue {
		value.Waiters = append(value.Waiters, longClaim(int64(i+1), ""))
	}
	value.Next = 0
	for i := range value.Waiters {
		value.Waiters[i].Token = 0
	}
	value.Holders[0].Token = 5
	s := &oneRecord{rec: Record{Version: 1 << 50, Value: value.encode(0)}}
	c, err := New(s, &Options{RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Acquire(t.Context(), "a")
	var held *HeldError
	if !errors.As(err, &held) || !held.Full || !strings.Contains(err.Error(), "the queue is full") {
		t.Errorf("Acquire says %v", err)
	}
}

// A oneRecord has the same record under each name, and keeps all else.
type oneRecord struct{ rec Record }

func (s *oneRecord) Load(_ context.Context, keys []Key) ([]Record, error) {
	recs := make([]Record, len(keys))
	for i, k := range keys {
		if k.Space == Names {
			recs[i] = s.rec
		}
	}
	return recs, nil
}

func (s *oneRecord) CompareAndSwap(_ context.Context, writes []Write) ([]Outcome, error) {
	outs := make([]Outcome, len(writes))
	for i, w := range writes {
		if outs[i].Record = s.rec; w.Key.Space != Names {
			outs[i] = Outcome{Won: true, Record: Record{Version: 1, Value: w.Value}}
		}
	}
	return outs, nil
}

func (s *oneRecord) Keys(context.Context, Space, string, int) ([]string, error) { return nil, nil }
