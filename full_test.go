package holdfast

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/core"
)

// longClaim is as large as a claim may be.
func longClaim(nr int64, reason string) core.Claim {
	return core.Claim{Session: strings.Repeat("f", 32), Nr: 1<<40 + nr, Slots: 1, Token: 1<<61 - 1, Off: 1 << 30, N: core.MaxBlock,
		TTL: MaxTTL.Milliseconds(), Since: 1 << 52, Reason: reason, Retries: 1 << 20, Set: "100 of 1000"}
}

// Who comes to a full queue is told so at once, and not left to wait in no line.
func TestFullIsTold(t *testing.T) {
	value := core.LockRecord{Holders: []core.Claim{longClaim(0, "")}}
	for i := range core.MaxQueue {
		value.Waiters = append(value.Waiters, longClaim(int64(i+1), ""))
	}
	value.Next = 0
	for i := range value.Waiters {
		value.Waiters[i].Token = 0
	}
	value.Holders[0].Token = 5
	s := &oneRecord{rec: Record{Version: 1 << 50, Value: value.Encode(0)}}
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
