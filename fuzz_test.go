package holdfast

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// What is in a store may have been written by anybody: an older or newer version,
// a person with a database shell, a bug. Whatever it is, it is refused, or the rules
// hold for it. The corpora are in testdata/fuzz.

// A name is taken as it is or not at all, and other parts make another name.
func FuzzName(f *testing.F) {
	f.Add("jobs/42", "a")
	f.Fuzz(func(t *testing.T, a, b string) {
		valid := a != "" && len(a) <= 255 && utf8.ValidString(a) && strings.IndexFunc(a, unicode.IsControl) < 0
		if err := checkName(a); (err == nil) != valid {
			t.Errorf("checkName(%q): %v, want one that is nil: %v", a, err, valid)
		}
		if err := (Key{Names, a}).Check(); (err == nil) != (a != "" && len(a) <= 255) {
			t.Errorf("Key.Check of %q: %v", a, err)
		}
		for _, parts := range [][]string{{a}, {a, b}, {b, a, ""}} {
			if got := SplitName(JoinName(parts...)); !slices.Equal(got, parts) {
				t.Errorf("the parts %q are joined as %q, and that is split as %q", parts, JoinName(parts...), got)
			}
		}
		if a != b && JoinName(a) == JoinName(b) {
			t.Errorf("%q and %q make one name", a, b)
		}
		if JoinName(a, b) == JoinName(a+"/"+b) {
			t.Errorf("two parts make the name that one makes: %q, %q", a, b)
		}
	})
}

// sameLock compares records as a reader sees them.
func sameLock(a, b lockRecord) bool {
	return slices.Equal(a.Holders, b.Holders) && slices.Equal(a.Waiters, b.Waiters) &&
		(len(a.Breaks) == 0 && len(b.Breaks) == 0 || reflect.DeepEqual(jsonOf(a.Breaks), jsonOf(b.Breaks)))
}

func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// tolerated says whether holders may hold together.
func tolerated(holders []claimRecord) bool {
	n := 0
	for _, h := range holders {
		n += h.weight()
	}
	return !slices.ContainsFunc(holders, func(h claimRecord) bool { return h.Slots != 0 && n > h.Slots })
}

// Whatever a lock record holds: it is refused, or it stays what it is when it is
// written again, tokens grow over it, and settle drops the dead and nobody else,
// lets in from the head only, and nobody beside one who does not tolerate it.
func FuzzLockRecord(f *testing.F) {
	f.Add([]byte(`{"holders":[{"session":"a","nr":1,"slots":1,"ttl":15000,"since":1}]}`), int64(100), byte(0))
	f.Fuzz(func(t *testing.T, value []byte, version int64, dead byte) {
		if version < 1 || version >= maxToken {
			return // no store has such versions
		}
		r, err := decodeLock(value, version)
		if err != nil {
			return
		}
		for _, h := range r.Holders {
			if h.Token <= 0 || h.Off != 0 || r.Next < h.Token+h.tokens() {
				t.Fatalf("%s at %d: token %d (%d) of a holder, and next is %d", value, version, h.Token, h.tokens(), r.Next)
			}
		}
		again, err := decodeLock(r.encode(version), version+1)
		if err != nil || !sameLock(again, r) {
			t.Fatalf("%s at %d is written as %s, and read as %+v, %v", value, version, r.encode(version), again, err)
		}
		if max(again.Next, version+2) < r.Next {
			t.Fatalf("%s at %d: next falls from %d to %d, and the next version is %d", value, version, r.Next, again.Next, version+2)
		}

		gone := func(session string) bool { return dead != 0 && (session + "?")[0]%8 == dead%8 }
		lives := func(c claimRecord) bool { return !gone(c.Session) }
		holders, waiters := kept(r.Holders, lives), kept(r.Waiters, lives)
		next := r.clone()
		next.settle(gone)
		n := len(holders)
		if len(next.Holders) < n || !slices.EqualFunc(next.Holders[:n], holders, sameClaim) {
			t.Fatalf("%s: holders %+v after %+v", value, next.Holders, holders)
		}
		if !slices.EqualFunc(slices.Concat(next.Holders[n:], next.Waiters), waiters, sameClaim) {
			t.Fatalf("%s: let in %+v, waiting %+v, and the queue was %+v", value, next.Holders[n:], next.Waiters, waiters)
		}
		if tolerated(holders) && !tolerated(next.Holders) {
			t.Fatalf("%s: these hold together: %+v", value, next.Holders)
		}
		if next.settle(gone) {
			t.Fatalf("%s: settled twice", value)
		}
		written, err := decodeLock(next.encode(version), version+1)
		if err != nil {
			if errors.Is(err, errNumber) {
				return // it gives more tokens than there are
			}
			t.Fatalf("%s is settled as %s: %v", value, next.encode(version), err)
		}
		last := r.Next - 1
		for _, h := range written.Holders[min(n, len(written.Holders)):] {
			if h.Token <= last {
				t.Fatalf("%s at %d is settled as %+v: token %d after %d", value, version, written, h.Token, last)
			}
			last = h.Token + h.tokens() - 1
		}
	})
}

func kept(claims []claimRecord, keep func(claimRecord) bool) (list []claimRecord) {
	for _, c := range claims {
		if keep(c) {
			list = append(list, c)
		}
	}
	return list
}

func sameClaim(a, b claimRecord) bool {
	return a.is(b.Session, b.Nr) && a.Slots == b.Slots && a.N == b.N && a.TTL == b.TTL
}

// A session's record is refused or stays what it is. How long it may be silent is
// never nothing by an overflow, for then it would be dead at once.
func FuzzSessionRecord(f *testing.F) {
	f.Add([]byte(`{"ttl":15000,"beat":1,"nonce":"x"}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := decodeSession(value)
		if err != nil {
			return
		}
		again, err := decodeSession(r.encode())
		if err != nil || jsonOf(again) != jsonOf(r) {
			t.Fatalf("%s is written as %s, and read as %+v, %v", value, r.encode(), again, err)
		}
		if r.ttl() < 0 || r.ttl().Milliseconds() != r.TTL || (time.Duration(r.Grace)*time.Millisecond).Milliseconds() != r.Grace || r.Grace < 0 {
			t.Fatalf("%s: TTL %v of %d ms, grace %d", value, r.ttl(), r.TTL, r.Grace)
		}
		if m := r.Suspected; m != nil && (time.Duration(m.Age)*time.Microsecond).Microseconds() != m.Age {
			t.Fatalf("%s: a mark when the beat was %d µs old", value, m.Age)
		}
		if !r.sameBeat(again) {
			t.Fatalf("%s: another beat once it is written again", value)
		}
	})
}

// The store's TTL is what its setting says, or it is refused.
func FuzzSetting(f *testing.F) {
	f.Add([]byte(`{"ttl":30000}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		ttl, err := ttlOf(Record{Version: 1, Value: value})
		if err != nil {
			return
		}
		var said struct{ TTL json.Number }
		if len(value) > 0 {
			if err := json.Unmarshal(value, &said); err != nil {
				t.Fatalf("%q is a TTL of %v, and not JSON", value, ttl)
			}
			if n, err := said.TTL.Int64(); err != nil || n != ttl.Milliseconds() {
				t.Fatalf("%q is a TTL of %v", value, ttl)
			}
		}
		if ttl < MinTTL || ttl > MaxTTL {
			t.Fatalf("%q is a TTL of %v", value, ttl)
		}
	})
}

// Audits keep the newest entries, once each, in order, whatever was in them before.
func FuzzAudit(f *testing.F) {
	f.Add([]byte(`[{"session":"a","nr":1,"was":{},"by":{},"reason":"hangs","at":2}]`), []byte(`[{"session":"b","nr":1,"was":{},"by":{},"reason":"again","at":3}]`))
	f.Fuzz(func(t *testing.T, old, fresh []byte) {
		kept, err := decodeAudit(old)
		if err != nil {
			return
		}
		more, err := decodeAudit(fresh)
		if err != nil {
			return
		}
		all := mergeBreaks(slices.Clone(kept), more)
		if len(all) > maxBreaks || len(all) < min(len(kept), maxBreaks) {
			t.Fatalf("%d entries of %d and %d", len(all), len(kept), len(more))
		}
		if !slices.IsSortedFunc(all, func(a, b breakRecord) int { return cmp.Compare(b.At, a.At) }) {
			t.Fatalf("not the newest first: %s", jsonOf(all))
		}
		oldest := int64(math.MinInt64)
		if len(all) == maxBreaks {
			oldest = all[len(all)-1].At
		}
		for _, b := range more {
			if b.At > oldest && !slices.ContainsFunc(all, func(k breakRecord) bool { return k.Session == b.Session && k.Nr == b.Nr }) {
				t.Fatalf("the entry %s is lost in %s", jsonOf(b), jsonOf(all))
			}
		}
		text, err := json.Marshal(all)
		if err != nil {
			return // a time that is none
		}
		if again, err := decodeAudit(text); err != nil || jsonOf(again) != string(text) && len(all) > 0 {
			t.Fatalf("%s is read as %s, %v", text, jsonOf(again), err)
		}
	})
}

// Sessions come, queue, leave and die in the order that the bytes say, with a store
// whose clock stands still, leaps and steps back. Nobody is lost or overtaken, who
// holds together tolerates each other, and tokens grow.
func FuzzGrants(f *testing.F) {
	f.Add([]byte("\x00\x09\x12\x1b\x80\x40\x48"))
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 200 {
			return
		}
		dead := map[string]bool{}
		var value []byte
		var version, nr, last int64
		version = 1
		var want []claimRecord // all claims that stand, in the order in which they came
		for i, b := range steps {
			r, err := decodeLock(value, version)
			if err != nil {
				t.Fatalf("step %d: %s: %v", i, value, err)
			}
			var given []claimRecord // those that had a token before
			given = append(given, r.Holders...)
			who := string(rune('a' + b%4))
			switch b >> 6 {
			case 0, 1: // asks
				if nr++; dead[who] {
					continue
				}
				c := claimRecord{Session: who, Nr: nr, Slots: int(b >> 2 & 3), TTL: 1000}
				if c.Slots == 0 {
					c.N = int64(b >> 4 & 3)
				}
				r.enqueue(c)
				want = append(want, c)
			case 2: // leaves, its oldest claim first
				oldest := slices.IndexFunc(want, func(c claimRecord) bool { return c.Session == who })
				if oldest < 0 {
					continue
				}
				c := want[oldest]
				want = slices.Delete(want, oldest, oldest+1)
				r.drop(func(o claimRecord) bool { return o.is(c.Session, c.Nr) })
			case 3: // dies, or the clock leaps, or goes back
				switch b >> 2 & 3 {
				case 0:
					dead[who] = true
				case 1:
					version += int64(b)
				}
			}
			want = slices.DeleteFunc(want, func(c claimRecord) bool { return dead[c.Session] })
			r.settle(func(s string) bool { return dead[s] })
			value = r.encode(version)
			version++
			next, err := decodeLock(value, version)
			if err != nil {
				t.Fatalf("step %d: %s: %v", i, value, err)
			}
			if !tolerated(next.Holders) {
				t.Fatalf("step %d: these hold together: %s", i, value)
			}
			if got := slices.Concat(next.Holders, next.Waiters); !slices.EqualFunc(got, want, sameClaim) {
				t.Fatalf("step %d: %s\nclaims %+v\nwant   %+v", i, value, got, want)
			}
			if len(next.Waiters) > 0 && fits(next.Waiters[0], next.Holders) {
				t.Fatalf("step %d: the head of the queue could go in: %s", i, value)
			}
			for _, h := range next.Holders {
				if j := slices.IndexFunc(given, func(o claimRecord) bool { return o.is(h.Session, h.Nr) }); j >= 0 {
					if given[j].Token != h.Token {
						t.Fatalf("step %d: token %d has become %d", i, given[j].Token, h.Token)
					}
					continue
				}
				if h.Token <= last {
					t.Fatalf("step %d: token %d after %d: %s", i, h.Token, last, value)
				}
				last = h.Token + h.tokens() - 1
			}
		}
	})
}

// A fence of a store lets in the tokens of those who hold, of a block none behind
// one that has been in, and nobody else.
func FuzzFence(f *testing.F) {
	f.Add([]byte(`{"holders":[{"session":"a","nr":1,"slots":1,"n":10}]}`), int64(100), int64(104), int64(0))
	f.Fuzz(func(t *testing.T, value []byte, version, token, last int64) {
		if version < 0 || version >= maxToken || last < 0 {
			return
		}
		next, err := Record{Version: version, Value: bytes.Clone(value)}.Fence("n", token, last)
		rec, bad := decodeLock(value, version)
		holds, block := false, false
		for _, h := range rec.Holders {
			if token >= h.Token && token-h.Token < h.tokens() {
				holds, block = true, h.Slots == 1 && h.tokens() > 1
				break
			}
		}
		switch {
		case bad != nil:
			if err == nil || errors.Is(err, ErrLost) || next != last {
				t.Fatalf("what is no record: %d, %v", next, err)
			}
		case holds && block && token >= last:
			if err != nil || next != token {
				t.Fatalf("%s at %d: token %d after %d: %d, %v", value, version, token, last, next, err)
			}
		case holds && !block:
			if err != nil || next != last {
				t.Fatalf("%s at %d: token %d: %d, %v", value, version, token, next, err)
			}
		default:
			if !errors.Is(err, ErrLost) || next != last {
				t.Fatalf("%s at %d: token %d after %d does not hold: %d, %v", value, version, token, last, next, err)
			}
		}
	})
}

// A fence of a resource takes no exclusive token below one that it has seen, no
// shared one below an exclusive one, and forgets nothing.
func FuzzAdmit(f *testing.F) {
	f.Add([]byte{10, 21, 20, 30})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var fence Fence
		var all, exclusive int64 // the highest that came in
		for _, b := range steps {
			token, shared := int64(b>>1)-2, b&1 != 0
			in := token > 0 && (shared && token >= exclusive || !shared && token >= all)
			if err := fence.Admit(token, shared); (err == nil) != in || err != nil && !errors.Is(err, ErrLost) {
				t.Fatalf("%v: token %d, shared %v, after %d and %d: %v", steps, token, shared, all, exclusive, err)
			}
			if in {
				all = max(all, token)
				if !shared {
					exclusive = max(exclusive, token)
				}
			}
		}
		var kept Fence
		if err := json.Unmarshal([]byte(jsonOf(fence)), &kept); err != nil || kept != fence {
			t.Fatalf("kept as %s and read as %+v, %v", jsonOf(fence), kept, err)
		}
	})
}
