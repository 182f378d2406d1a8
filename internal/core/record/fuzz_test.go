package record

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

// sameLock compares records as a reader sees them.
func sameLock(a, b Lock) bool {
	return jsonOf(a.Holders) == jsonOf(b.Holders) && jsonOf(a.Waiters) == jsonOf(b.Waiters) &&
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
func tolerated(holders []Claim) bool {
	n := 0
	for _, h := range holders {
		n += h.weight()
	}
	return !slices.ContainsFunc(holders, func(h Claim) bool { return h.Slots != 0 && n > h.Slots })
}

// Whatever a lock record holds: it is refused, or it stays what it is when it is
// written again, tokens grow over it, and settle drops the dead and nobody else,
// lets in from the head only, and nobody beside one who does not tolerate it.
func FuzzLockRecord(f *testing.F) {
	f.Add([]byte(`{"holders":[{"session":"a","nr":1,"slots":1,"ttl":15000,"since":1}]}`), int64(100), byte(0))
	f.Fuzz(func(t *testing.T, value []byte, number int64, dead byte) {
		if number < 1 || number >= maxToken {
			return // no store has such versions
		}
		version := Version(number)
		r, err := DecodeLock(value, version)
		if err != nil {
			return
		}
		for _, h := range r.Holders {
			if h.Token <= 0 || h.Off != 0 || r.Next < h.Token+Token(h.Tokens()) {
				t.Fatalf("%s at %d: token %d (%d) of a holder, and next is %d", value, version, h.Token, h.Tokens(), r.Next)
			}
		}
		if plain := r; !r.vanishes(version) {
			if r.Next <= Token(version)+1 {
				plain.Next = 0
			}
			if got := string(r.Encode(version)); got != jsonOf(plain) {
				t.Fatalf("written as %s, and encoding/json makes %s of it", got, jsonOf(plain))
			}
		}
		again, err := DecodeLock(r.Encode(version), version+1)
		if err != nil || !sameLock(again, r) {
			t.Fatalf("%s at %d is written as %s, and read as %+v, %v", value, version, r.Encode(version), again, err)
		}
		if max(again.Next, Token(version)+2) < r.Next {
			t.Fatalf("%s at %d: next falls from %d to %d, and the next version is %d", value, version, r.Next, again.Next, version+2)
		}

		gone := func(session string) bool { return dead != 0 && (session + "?")[0]%8 == dead%8 }
		lives := func(c Claim) bool { return !gone(c.Session) }
		holders, waiters := kept(r.Holders, lives), kept(r.Waiters, lives)
		next := r.Clone()
		next.Settle(gone, 1)
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
		if next.Settle(gone, 1) {
			t.Fatalf("%s: settled twice", value)
		}
		written, err := DecodeLock(next.Encode(version), version+1)
		if err != nil {
			if errors.Is(err, errNumber) {
				return // it gives more tokens than there are
			}
			t.Fatalf("%s is settled as %s: %v", value, next.Encode(version), err)
		}
		last := r.Next - 1
		for _, h := range written.Holders[min(n, len(written.Holders)):] {
			if h.Token <= last {
				t.Fatalf("%s at %d is settled as %+v: token %d after %d", value, version, written, h.Token, last)
			}
			last = h.Token + Token(h.Tokens()) - 1
		}
	})
}

func kept(claims []Claim, keep func(Claim) bool) (list []Claim) {
	for _, c := range claims {
		if keep(c) {
			list = append(list, c)
		}
	}
	return list
}

func sameClaim(a, b Claim) bool {
	return a.Is(b.Session, b.Nr) && a.Slots == b.Slots && a.N == b.N && a.TTL == b.TTL
}

// A session's record is refused or stays what it is. How long it may be silent is
// never nothing by an overflow, for then it would be dead at once.
func FuzzSessionRecord(f *testing.F) {
	f.Add([]byte(`{"ttl":15000,"beat":1,"nonce":"x"}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := DecodeSession(value)
		if err != nil {
			return
		}
		again, err := DecodeSession(r.Encode())
		if err != nil || jsonOf(again) != jsonOf(r) {
			t.Fatalf("%s is written as %s, and read as %+v, %v", value, r.Encode(), again, err)
		}
		if r.Duration() < 0 || r.Duration().Milliseconds() != r.TTL || (time.Duration(r.Grace)*time.Millisecond).Milliseconds() != r.Grace || r.Grace < 0 {
			t.Fatalf("%s: TTL %v of %d ms, grace %d", value, r.Duration(), r.TTL, r.Grace)
		}
		if m := r.Suspected; m != nil && (time.Duration(m.Age)*time.Microsecond).Microseconds() != m.Age {
			t.Fatalf("%s: a mark when the beat was %d µs old", value, m.Age)
		}
		if !r.SameBeat(again) {
			t.Fatalf("%s: another beat once it is written again", value)
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
		var nr int64
		var last Token
		version := Version(1)
		var want []Claim // all claims that stand, in the order in which they came
		for i, b := range steps {
			r, err := DecodeLock(value, version)
			if err != nil {
				t.Fatalf("step %d: %s: %v", i, value, err)
			}
			var given []Claim // those that had a token before
			given = append(given, r.Holders...)
			who := string(rune('a' + b%4))
			switch b >> 6 {
			case 0, 1: // asks
				if nr++; dead[who] {
					continue
				}
				c := Claim{Session: who, Nr: nr, Slots: int(b >> 2 & 3), TTL: 1000}
				if c.Slots == 0 {
					c.N = int64(b >> 4 & 3)
				}
				r.Enqueue(c)
				want = append(want, c)
			case 2: // leaves, its oldest claim first
				oldest := slices.IndexFunc(want, func(c Claim) bool { return c.Session == who })
				if oldest < 0 {
					continue
				}
				c := want[oldest]
				want = slices.Delete(want, oldest, oldest+1)
				r.Drop(func(o Claim) bool { return o.Is(c.Session, c.Nr) })
			case 3: // dies, or the clock leaps, or goes back
				switch b >> 2 & 3 {
				case 0:
					dead[who] = true
				case 1:
					version += Version(b)
				}
			}
			want = slices.DeleteFunc(want, func(c Claim) bool { return dead[c.Session] })
			r.Settle(func(s string) bool { return dead[s] }, 1)
			value = r.Encode(version)
			version++
			next, err := DecodeLock(value, version)
			if err != nil {
				t.Fatalf("step %d: %s: %v", i, value, err)
			}
			if !tolerated(next.Holders) {
				t.Fatalf("step %d: these hold together: %s", i, value)
			}
			if got := slices.Concat(next.Holders, next.Waiters); !slices.EqualFunc(got, want, sameClaim) {
				t.Fatalf("step %d: %s\nclaims %+v\nwant   %+v", i, value, got, want)
			}
			if len(next.Waiters) > 0 && Fits(next.Waiters[0], next.Holders) {
				t.Fatalf("step %d: the head of the queue could go in: %s", i, value)
			}
			for _, h := range next.Holders {
				if j := slices.IndexFunc(given, func(o Claim) bool { return o.Is(h.Session, h.Nr) }); j >= 0 {
					if given[j].Token != h.Token {
						t.Fatalf("step %d: token %d has become %d", i, given[j].Token, h.Token)
					}
					continue
				}
				if h.Token <= last {
					t.Fatalf("step %d: token %d after %d: %s", i, h.Token, last, value)
				}
				last = h.Token + Token(h.Tokens()) - 1
			}
		}
	})
}

// Audits keep the newest entries, once each, in order, whatever was in them before.
func FuzzAudit(f *testing.F) {
	f.Add([]byte(`[{"session":"a","nr":1,"was":{},"by":{},"reason":"hangs","at":2}]`), []byte(`[{"session":"b","nr":1,"was":{},"by":{},"reason":"again","at":3}]`))
	f.Fuzz(func(t *testing.T, old, fresh []byte) {
		kept, err := DecodeAudit(old)
		if err != nil {
			return
		}
		more, err := DecodeAudit(fresh)
		if err != nil {
			return
		}
		all := slices.Clone(kept).Add(more)
		if len(all) > MaxBreaks || len(all) < min(len(kept), MaxBreaks) {
			t.Fatalf("%d entries of %d and %d", len(all), len(kept), len(more))
		}
		if !slices.IsSortedFunc(all, func(a, b Break) int { return cmp.Compare(b.At, a.At) }) {
			t.Fatalf("not the newest first: %s", jsonOf(all))
		}
		oldest := int64(math.MinInt64)
		if len(all) == MaxBreaks {
			oldest = all[len(all)-1].At
		}
		for _, b := range more {
			if b.At > oldest && !slices.ContainsFunc(all, func(k Break) bool { return k.Session == b.Session && k.Nr == b.Nr }) {
				t.Fatalf("the entry %s is lost in %s", jsonOf(b), jsonOf(all))
			}
		}
		text, err := all.Encode()
		if err != nil {
			return // a time that is none
		}
		if again, err := DecodeAudit(text); err != nil || jsonOf(again) != string(text) && len(all) > 0 {
			t.Fatalf("%s is read as %s, %v", text, jsonOf(again), err)
		}
	})
}

// What a scanner reads, encoding/json reads so too.
func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"next":7,"holders":[{"session":"a","nr":1,"slots":1,"token":5,"off":1,"n":2,"ttl":15000,"since":-1,"granted":2,"reason":"<b>","retries":3,"labels":{"k":"v"}}],"waiters":[{"session":"b","nr":1,"slots":0,"ttl":1,"since":1,"set":"2 of 3"}]}`))
	f.Add([]byte(`{"holds":[{"token":7,"n":2,"owner":{"name":"n","host":"h","pid":1,"user":"u","program":"p"},"from":1,"to":2,"waited":3,"end":"taken over","by":{"host":"h"},"reason":"r","why":"w"}],"others":{"count":1,"held":2,"waited":3},"success":{"token":7,"at":2,"by":{"pid":2}},"at":9,"seen":["a","b"]}`))
	f.Add([]byte(`{"holds":[{"token":1,"owner":{"host":"a"}}],"holds":[{"token":1,"owner":{"pid":2}}]}`))
	f.Add([]byte(`{"success":{"token":1,"by":{"host":"a"}},"success":{"at":1},"others":{"count":1},"others":{"held":1}}`))
	f.Add([]byte(`{"holders":[{"nr":1,"slots":2}],"holders":[{"nr":1}]}`))
	f.Add([]byte(`{"holders":[{"nr":01}],"holders":[{"nr":1}]}`))
	f.Add([]byte(`{"waiters":[{"nr":-0,"slots":123456789012345678901}]}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		var quick, slow Lock
		if quick.scan(value) {
			if err := json.Unmarshal(value, &slow); err != nil || jsonOf(quick) != jsonOf(slow) {
				t.Fatalf("%s is read as %s, and as %s by encoding/json, %v", value, jsonOf(quick), jsonOf(slow), err)
			}
		}
		var past, slower History
		if past.scan(value) {
			if err := json.Unmarshal(value, &slower); err != nil || jsonOf(past) != jsonOf(slower) {
				t.Fatalf("%s is read as %s, and as %s by encoding/json, %v", value, jsonOf(past), jsonOf(slower), err)
			}
		}
	})
}
