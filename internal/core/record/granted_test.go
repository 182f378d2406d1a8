package record

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// A claim is granted by the write that lets it in, and keeps that time for as long as it holds.
func TestGranted(t *testing.T) {
	const second = 1000000
	r := Lock{Waiters: []Claim{{Session: "a", Nr: 1, Slots: 1, Since: 100 * second}}}
	nobody := func(string) bool { return false }
	r.Settle(nobody, 100*second)
	r.Written(50)
	r.Enqueue(Claim{Session: "b", Nr: 1, Slots: 1, Since: 101 * second})
	r.Settle(nobody, 101*second)
	if h, w := r.Holders[0], r.Waiters[0]; h.GrantedAt() != 100*second || w.GrantedAt() != 0 {
		t.Fatalf("granted at %d, and who waits at %d", h.GrantedAt(), w.GrantedAt())
	}
	// b waits for 5 s, and has held for 2 s at 108 s.
	r.Settle(func(session string) bool { return session == "a" }, 106*second)
	r.Written(51)
	if h := r.Holders[0]; h.Session != "b" || h.GrantedAt() != 106*second || h.GrantedAt()-h.Since != 5*second {
		t.Errorf("the next holder was granted at %d: %+v", h.GrantedAt(), h)
	}
	r.Settle(nobody, 108*second)
	if h := r.Holders[0]; h.GrantedAt() != 106*second {
		t.Errorf("a later write moves the grant to %d", h.GrantedAt())
	}
}

// What older programs have written says when a lock was granted only where tokens are times.
func TestGrantedAt(t *testing.T) {
	const then = 1795226403001234
	for _, test := range []struct {
		name  string
		claim Claim
		want  int64
	}{
		{"said by the record", Claim{Token: then, Granted: then + 5}, then + 5},
		{"a token that is a time", Claim{Token: then}, then},
		{"a token that counts revisions", Claim{Token: 4711}, 0},
		{"a token beyond all times", Claim{Token: maxToken - 1}, 0},
		{"it waits", Claim{Since: then}, 0},
		{"nonsense beside a time", Claim{Token: then, Granted: -1}, then},
		{"nonsense", Claim{Token: 7, Granted: -1}, 0},
	} {
		if got := test.claim.GrantedAt(); got != test.want {
			t.Errorf("%s: granted at %d, want %d", test.name, got, test.want)
		}
	}
}

// A record as it was before claims had a time of their grant and labels is read as before, and
// written again without them. An older program, which knows neither, drops them from what it
// writes again: nothing is decided on them.
func TestOlderClaims(t *testing.T) {
	const old = `{"next":1795226403001300,"holders":[{"session":"51bd","nr":3,"slots":1,"token":1795226403001234,"n":16,"ttl":15000,` +
		`"since":1795226400000000,"reason":"nightly","retries":2}],"waiters":[{"session":"8f3a","nr":1,"slots":1,"ttl":15000,"since":1795226401000000,"set":"1 of 2"}]}`
	r, err := DecodeLock([]byte(old), 1795226403001290)
	if err != nil {
		t.Fatal(err)
	}
	want := Claim{Session: "51bd", Nr: 3, Slots: 1, Token: 1795226403001234, N: 16, TTL: 15000, Since: 1795226400000000, Reason: "nightly", Retries: 2}
	if !reflect.DeepEqual(r.Holders, []Claim{want}) || r.Holders[0].GrantedAt() != 1795226403001234 || len(r.Waiters) != 1 || r.Waiters[0].Set != "1 of 2" {
		t.Errorf("read as %+v", r)
	}
	if again := string(r.Encode(0)); again != old {
		t.Errorf("written again as %s, want %s", again, old)
	}

	r.Holders[0].Granted, r.Holders[0].Labels = 1795226403001240, Labels{"build": "<7>", "a": "ü"}
	const now = `"retries":2,"labels":{"a":"ü","build":"\u003c7\u003e"}}],"waiters"`
	if value := string(r.Encode(0)); !strings.Contains(value, now) || value != jsonOf(r) {
		t.Errorf("written as %s without %s, or not as encoding/json does", value, now)
	}
	again, err := DecodeLock(r.Encode(0), 1795226403001291)
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("%s is read as %+v, %v", r.Encode(0), again, err)
	}
	type olderClaim struct { // what a program of then kept of a claim
		Session string `json:"session"`
		Nr      int64  `json:"nr"`
		Slots   int    `json:"slots"`
		Token   Token  `json:"token,omitempty"`
		N       int64  `json:"n,omitempty"`
		TTL     int64  `json:"ttl"`
		Since   int64  `json:"since"`
	}
	var older struct {
		Holders []olderClaim `json:"holders"`
	}
	if err := json.Unmarshal(r.Encode(0), &older); err != nil {
		t.Fatal(err)
	}
	value, err := json.Marshal(older)
	if err != nil {
		t.Fatal(err)
	}
	if lost, err := DecodeLock(value, 1795226403001292); err != nil || lost.Holders[0].GrantedAt() != 1795226403001234 || lost.Holders[0].Labels != nil {
		t.Errorf("rewritten by an older program it is read as %+v, %v", lost, err)
	}
}

// A session record as it was before it had labels is read as before.
func TestOlderSession(t *testing.T) {
	const old = `{"owner":{"host":"db1","pid":2784,"user":"ana"},"ttl":15000,"beat":7,"nonce":"00ff","at":1795226400000000}`
	r, err := DecodeSession([]byte(old))
	if err != nil || r.Labels != nil || r.Owner.String() != "ana@db1 (pid 2784)" || string(r.Encode()) != old {
		t.Errorf("read as %+v, %v, and written again as %s", r, err, r.Encode())
	}
	r.Labels = ClaimLabels{3: {"step": "2"}, 12: {}}
	if again, err := DecodeSession(r.Encode()); err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("%s is read as %+v, %v", r.Encode(), again, err)
	}
}

// An owner is called by its name, where it has one.
func TestOwnerName(t *testing.T) {
	for want, o := range map[string]Owner{
		"ana@db1 (pid 2784)":        {Host: "db1", User: "ana", PID: 2784},
		"web-7 (ana@db1, pid 2784)": {Name: "web-7", Host: "db1", User: "ana", PID: 2784},
		"web-7 (ana@db1)":           {Name: "web-7", Host: "db1", User: "ana"},
		"web-7 (pid 2784)":          {Name: "web-7", PID: 2784},
		"web-7":                     {Name: "web-7", Session: "0123456789abcdef"},
		"session 01234567":          {Session: "0123456789abcdef"},
	} {
		if got := o.String(); got != want {
			t.Errorf("%+v is called %q, want %q", o, got, want)
		}
	}
}
