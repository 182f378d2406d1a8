package holdfast

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Shared holders fill a record as waiters do, and then none is added.
func TestFullOfHolders(t *testing.T) {
	r := record.Lock{}
	reason := strings.Repeat("<", record.MaxReason)
	for len(r.Holders) < 5000 && !r.Full() {
		for range 5 {
			h := longClaim(int64(len(r.Holders)), reason)
			h.Slots, h.Token = 0, 1<<40
			r.Holders = append(r.Holders, h)
		}
	}
	value := r.Encode(0)
	if len(value) > driver.MaxValue {
		t.Fatalf("it is full with %d holders and %d bytes", len(r.Holders), len(value))
	}
	for _, wait := range []time.Duration{0, time.Second} {
		s := &oneRecord{rec: driver.Record{Version: 1 << 50, Value: value}}
		c, err := New(s, &Options{RuntimeDir: os.DevNull})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Acquire(t.Context(), "a", Shared(), MaxWait(wait))
		var held *HeldError
		if !errors.As(err, &held) || !held.Full {
			t.Errorf("Acquire with MaxWait(%v) says %.300v", wait, err)
		}
		if n := s.tried.Load(); n > 1 { // the first knew nothing of it
			t.Errorf("it has written %d times, though the record was full", n)
		}
	}
}

// longOwner is as large as an owner may be.
func longOwner() record.Owner {
	long := strings.Repeat("<", 255)
	o := record.Owner{Session: strings.Repeat("f", 32), Host: long, User: long, Program: long, Address: long, Device: long, PID: 1 << 30,
		Started: time.Now().Truncate(time.Millisecond), Labels: map[string]string{}}
	for i := range 16 {
		o.Labels[strings.Repeat("<", 127)+string(rune('a'+i))] = strings.Repeat("<", 128)
	}
	return o
}

// Audit entries find room in the largest record, and so do those of a name; who did it, and
// whose it was, is kept.
func TestFullOfBreaks(t *testing.T) {
	r := record.Lock{Next: 1<<61 - 1, Holders: []record.Claim{longClaim(0, "")}}
	reason := strings.Repeat("<", record.MaxReason)
	for len(r.Waiters) < 5000 && !r.Full() {
		r.Enqueue(longClaim(int64(len(r.Waiters)+1), reason))
	}
	var fresh []record.Break
	for i := range 2 * record.MaxBreaks {
		b := record.Break{Session: strings.Repeat("f", 32), Nr: 1<<40 + int64(i), Token: 1<<61 - 1, Was: longOwner(), By: longOwner(), Reason: reason, At: 1<<52 + int64(i), Now: true}
		fresh = append(fresh, b)
		r.AddBreak(b)
	}
	if size := len(r.Encode(0)); size > driver.MaxValue {
		t.Errorf("a full record with breaks has %d bytes", size)
	}
	audit, err := record.Audit(nil).Add(fresh).Encode()
	if err != nil || len(audit) > driver.MaxValue/8 {
		t.Errorf("the audit of a name has %d bytes, %v", len(audit), err)
	}
	for _, b := range r.Breaks {
		if b.Was.Host[:100] != longOwner().Host[:100] || b.By.User[:100] != longOwner().User[:100] || b.By.PID != 1<<30 || b.Reason != reason {
			t.Fatalf("the entry says %+v", b)
		}
	}
	small := record.Owner{Host: "h", User: "u", Program: "p", Labels: map[string]string{"job": "nightly"}}
	r.AddBreak(record.Break{Was: small, By: small})
	if got := r.Breaks[len(r.Breaks)-1]; !reflect.DeepEqual(got.Was, small) || !reflect.DeepEqual(got.By, small) {
		t.Errorf("an entry of short texts says %+v", got)
	}
}

// Breaks that a session does not come to read do not make its record grow for ever: each
// claim is revoked once, and at some point the next is refused.
func TestFullOfRevocations(t *testing.T) {
	s := &oneRecord{}
	session := strings.Repeat("f", 32)
	rec := record.Session{Owner: &record.Owner{}, TTL: 15000, Beat: 1}
	store := &keptSession{oneRecord: s, rec: driver.Record{Version: 1 << 50, Value: rec.Encode()}}
	c, err := New(store, &Options{RuntimeDir: os.DevNull, Owner: Owner{Labels: longOwner().Labels}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tell := func(nr int64) error {
		entry := record.Break{Session: session, Nr: nr, By: c.e.Owner, Reason: strings.Repeat("<", record.MaxReason), At: time.Now().UnixNano()}
		_, err := c.sendRevocation(t.Context(), lease.NewBreaker(strings.Repeat("a", 1024), entry, 0), session)
		return err
	}
	for range 3 {
		if err := tell(1); err != nil {
			t.Fatal(err)
		}
	}
	rec, err = record.DecodeSession(store.rec.Value)
	if err != nil || len(rec.Revoked) != 1 || len(store.rec.Value) > 6000 {
		t.Fatalf("one claim is revoked %d times in %d bytes, %v", len(rec.Revoked), len(store.rec.Value), err)
	}
	for one := len(store.rec.Value); len(rec.Revoked) < (record.MaxRecord-20000)/one; {
		rec.Revoked = append(rec.Revoked, rec.Revoked[0])
	}
	store.rec.Value = rec.Encode()
	for nr := int64(2); nr < 100 && err == nil; nr++ {
		err = tell(nr)
	}
	if size := len(store.rec.Value); size > record.MaxRecord || !strings.Contains(fmt.Sprint(err), "have not been read") {
		t.Errorf("revocations of %d bytes, then: %v", size, err)
	}
}

// A keptSession is a oneRecord with one session.
type keptSession struct {
	*oneRecord
	rec driver.Record
}

func (s *keptSession) Load(context.Context, []driver.Key, driver.Freshness) ([]driver.Record, error) {
	return []driver.Record{s.rec}, nil
}

func (s *keptSession) CompareAndSwap(_ context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if err := writes[0].Check(); err != nil {
		return nil, err
	}
	s.rec.Version++
	s.rec.Value = writes[0].Value
	return []driver.Outcome{{Won: true, Record: s.rec}}, nil
}

// longClaim is as large as a claim may be.
func longClaim(nr int64, reason string) record.Claim {
	return record.Claim{Session: strings.Repeat("f", 32), Nr: 1<<40 + nr, Slots: 1, Token: 1<<61 - 1, Off: 1 << 30, N: core.MaxBlock,
		TTL: MaxTTL.Milliseconds(), Since: 1 << 52, Granted: 1 << 52, Reason: reason, Retries: 1 << 20, Set: "100 of 1000"}
}

// A client that comes to a full queue fails at once: it does not wait outside the queue.
func TestFullQueueRefuses(t *testing.T) {
	value := record.Lock{Holders: []record.Claim{longClaim(0, "")}}
	for i := range 4096 {
		value.Waiters = append(value.Waiters, longClaim(int64(i+1), ""))
	}
	value.Next = 0
	for i := range value.Waiters {
		value.Waiters[i].Token = 0
	}
	value.Holders[0].Token = 5
	s := &oneRecord{rec: driver.Record{Version: 1 << 50, Value: value.Encode(0)}}
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
type oneRecord struct {
	rec   driver.Record
	tried atomic.Int64 // to write it
}

func (s *oneRecord) Load(_ context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	recs := make([]driver.Record, len(keys))
	for i, k := range keys {
		if k.Space == driver.Names {
			recs[i] = s.rec
		}
	}
	return recs, nil
}

func (s *oneRecord) CompareAndSwap(_ context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	outs := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		if outs[i].Record = s.rec; w.Key.Space == driver.Names {
			s.tried.Add(1)
		} else {
			outs[i] = driver.Outcome{Won: true, Record: driver.Record{Version: 1, Value: w.Value}}
		}
	}
	return outs, nil
}

func (s *oneRecord) Keys(context.Context, driver.Space, string, int) ([]string, error) {
	return nil, nil
}

func (*oneRecord) Sweep(context.Context, time.Duration) (int, error) { return 0, nil }

func (*oneRecord) Traits() driver.Traits { return driver.Traits{} }
