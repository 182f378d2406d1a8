package serve

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// The same request again finds the same hold; what was released stays released.
func TestEnterAgain(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		got := a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"nightly","reason":"backup"}`).want(t, 200).is(t, "state", "held").is(t, "ttl", 15)
		if v := got.get("valid").(float64); v < 13.4 || v > 13.5 {
			t.Errorf("valid is %v, want a tenth of the TTL less than that", v)
		}
		if got := got.header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("Cache-Control is %q", got)
		}
		token := got.token(t)
		if again := b.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"nightly","reason":"backup"}`).want(t, 200).token(t); again != token {
			t.Errorf("the same request again has token %d, before %d", again, token)
		}
		time.Sleep(5 * time.Second)
		b.do(all, "POST", "/v1/holds/"+id(1)+"/beat", "").want(t, 200).is(t, "state", "held")
		time.Sleep(14 * time.Second)
		a.do(all, "GET", "/v1/holds/"+id(1), "").want(t, 200).is(t, "state", "held")
		for range 2 {
			a.do(all, "DELETE", "/v1/holds/"+id(1), "").want(t, 204)
		}
		b.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"nightly","reason":"backup"}`).want(t, 410).is(t, "why", "released").is(t, "type", "/problems/over")
		b.do(all, "POST", "/v1/holds/"+id(1)+"/beat", "").want(t, 410)
		b.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"nightly"}`).want(t, 200)
		b.do(all, "POST", "/v1/holds/"+id(9)+"/beat", "").want(t, 410).is(t, "why", "unknown")
	})
}

// Without wait a held lock is refused, and nothing is left behind. Who holds it is told to those
// who may look.
func TestHeld(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"deploy/x","reason":"secret reason"}`).want(t, 200)
		got := b.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"deploy/x"}`).want(t, 409).is(t, "name", "deploy/x").is(t, "waiting", 0)
		if got.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(got.text, "secret reason") {
			t.Errorf("%s: %s", got.header.Get("Content-Type"), got.text)
		}
		taker := &access.Principal{Name: "ci", Verbs: access.Take, Prefixes: []string{"deploy/"}}
		got = b.do(taker, "PUT", "/v1/holds/"+id(3), `{"name":"deploy/x"}`).want(t, 409)
		for _, secret := range []string{"secret reason", "ana", "holders"} {
			if strings.Contains(got.text, secret) {
				t.Errorf("one who may not look is told %q: %s", secret, got.text)
			}
		}
		info, err := a.client.Show(t.Context(), "deploy/x")
		if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
			t.Errorf("left behind: %+v, %v", info, err)
		}
	})
}

// Waiters are served first come, first served, at whatever replica they ask, together with
// programs.
func TestWait(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		lock, err := a.client.Acquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		first, second := make(chan *answer, 1), make(chan *answer, 1)
		go func() { first <- a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","wait":30}`) }()
		synctest.Wait()
		go func() { second <- b.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"n","wait":600}`) }()
		time.Sleep(20 * time.Second)
		lock.Release(t.Context())
		got := (<-first).want(t, 200).is(t, "state", "held")
		if v := got.get("valid").(float64); v < 20 || v > 32 { // 20 s after the request, at least TTL - TTL/3 more
			t.Errorf("valid is %v", v)
		}
		time.Sleep(2 * time.Second)
		a.do(all, "DELETE", "/v1/holds/"+id(1), "").want(t, 204)
		(<-second).want(t, 200)
	})
}

// A wait of up to three TTLs is answered once. A longer one is answered 202 in between, and the
// same request goes on with the same place, wherever it is sent.
func TestWaitLong(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		lock, err := a.client.Acquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","wait":20}`).want(t, 409)
		if took := time.Since(begun); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("waited %v, want 20 s", took)
		}
		if info, _ := a.client.Show(t.Context(), "n"); len(info.Waiters) != 0 {
			t.Errorf("one who has waited enough still stands in line")
		}
		begun = time.Now()
		got := a.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"n","wait":600}`).want(t, 202).is(t, "state", "waiting").is(t, "position", 1)
		if took := time.Since(begun); took < 45*time.Second || took > 46*time.Second {
			t.Errorf("202 after %v, want three TTLs", took)
		}
		if left := got.get("wait").(float64); left < 554 || left > 555 {
			t.Errorf("wait is %v", left)
		}
		other := make(chan *answer, 1)
		go func() { other <- a.do(all, "PUT", "/v1/holds/"+id(3), `{"name":"n","wait":100}`) }()
		time.Sleep(8 * time.Second) // the replica that served it is gone, say
		again := make(chan *answer, 1)
		go func() { again <- b.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"n","wait":555}`) }()
		time.Sleep(time.Second)
		lock.Release(t.Context())
		(<-again).want(t, 200)
		(<-other).want(t, 200) // when the first, which nobody beats for, has lapsed
	})
}

// A waiter that hangs up leaves the line two seconds later, unless served elsewhere by then.
func TestHangUp(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		if _, err := a.client.Acquire(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		waiting := func() int {
			info, err := b.client.Show(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			return len(info.Waiters)
		}
		for _, elsewhere := range []bool{false, true} {
			ctx, hangUp := context.WithCancel(t.Context())
			n := 1
			if elsewhere {
				n = 2
			}
			go a.doCtx(ctx, all, "PUT", "/v1/holds/"+id(n), `{"name":"n","wait":60}`)
			time.Sleep(time.Second)
			hangUp()
			time.Sleep(time.Second)
			if elsewhere {
				go b.do(all, "PUT", "/v1/holds/"+id(n), `{"name":"n","wait":30}`)
			}
			if waiting() != 1 {
				t.Error("left the line within a second")
			}
			time.Sleep(2 * time.Second)
			if got := waiting() == 1; got != elsewhere {
				t.Errorf("served elsewhere: %v; in line after three seconds: %v", elsewhere, got)
			}
		}
		time.Sleep(time.Minute)
	})
}

// A request that arrives once more, at another replica or at the same, and hangs up there does not
// cost the place of the first, which is served on.
func TestHangUpOfCopy(t *testing.T) {
	for _, same := range []bool{false, true} {
		inTime(t, func(t *testing.T, a, b *replica) {
			lock, err := a.client.Acquire(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			put := `{"name":"n","wait":40}`
			first := make(chan *answer, 1)
			go func() { first <- a.do(all, "PUT", "/v1/holds/"+id(1), put) }()
			time.Sleep(time.Second / 2)
			go a.do(all, "PUT", "/v1/holds/"+id(2), put)
			time.Sleep(time.Second / 2)
			copied, hangUp := context.WithCancel(t.Context())
			other := b
			if same {
				other = a
			}
			go other.doCtx(copied, all, "PUT", "/v1/holds/"+id(1), put)
			time.Sleep(time.Second)
			hangUp()
			for range 20 {
				time.Sleep(time.Second)
				info, err := b.client.Show(t.Context(), "n")
				if err != nil || len(info.Waiters) != 2 || info.Waiters[0].Owner.Session != id(1) {
					t.Fatalf("the first request is served, and in line are %+v, %v", info.Waiters, err)
				}
			}
			lock.Release(t.Context())
			(<-first).want(t, 200).is(t, "state", "held")
		})
	}
}

// A hold by its connection is kept while that stands.
func TestStream(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		lock, err := a.client.Acquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		s := b.stream(all, "PUT", "/v1/holds/"+id(1), "application/x-ndjson", `{"name":"n","wait":600}`)
		if m := s.event(t, "waiting"); m["position"] != 1.0 {
			t.Errorf("position is %v", m["position"])
		}
		time.Sleep(2 * time.Minute)
		lock.Release(t.Context())
		held := s.until(t, "waiting", "held")
		if v := held["valid_on_receipt"].(float64); v < 3 || v > 8.5 {
			t.Errorf("valid_on_receipt is %v", v)
		}
		for range 10 {
			if m := s.event(t, "kept"); m["valid_on_receipt"].(float64) < 8.4 || m["valid_on_receipt"].(float64) > 8.5 {
				t.Errorf("kept: %v", m)
			}
		}
		token := int64(held["locks"].([]any)[0].(map[string]any)["token"].(float64))
		a.do(all, "POST", "/v1/breaks", fmt.Sprintf(`{"name":"n","token":%d,"reason":"hangs, ticket 815"}`, token)).want(t, 200).is(t, "by", "ana")
		if m := s.until(t, "kept", "lost"); m["why"] != "broken" || !strings.Contains(fmt.Sprint(m["detail"]), "hangs, ticket 815") {
			t.Errorf("lost: %v", m)
		}
		<-s.done
	})
}

// What happens when the connection of a hold ends is for the client to say.
func TestOnClose(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		for i, c := range []struct {
			on   string
			free bool
		}{{"lapse", false}, {"release", true}, {"", false}} {
			name, hold := fmt.Sprint("n", i), id(100+i)
			s := a.stream(all, "PUT", "/v1/holds/"+hold, "application/x-ndjson", fmt.Sprintf(`{"name":%q,"on_close":%q}`, name, c.on))
			s.event(t, "held")
			s.cancel()
			<-s.done
			synctest.Wait()
			info, err := b.client.Show(t.Context(), name)
			if err != nil || (len(info.Holders) == 0) != c.free {
				t.Errorf("on_close %q: free at once: %v; %v", c.on, len(info.Holders) == 0, err)
			}
			if !c.free { // the same again goes on
				s := b.stream(all, "PUT", "/v1/holds/"+hold, "application/x-ndjson", fmt.Sprintf(`{"name":%q}`, name))
				s.event(t, "held")
				s.cancel()
				<-s.done
			}
		}
		req := a.request(context.WithValue(t.Context(), doorKey{}, doorUnix), all, "PUT", "/v1/holds/"+id(5), `{"name":"u"}`)
		req.Header.Set("Accept", "application/x-ndjson")
		taking, _, ok := a.handler.asked(nil, req, id(5))
		if !ok || taking.OnClose != "release" {
			t.Errorf("on the unix socket on_close is %q", taking.OnClose)
		}
	})
}

// A hold is served by two connections, at one replica or at two. The end of one releases nothing that
// the other has said to be held.
func TestOnCloseOfCopy(t *testing.T) {
	for _, same := range []bool{false, true} {
		for _, beaten := range []bool{false, true} {
			inTime(t, func(t *testing.T, a, b *replica) {
				other := b
				if same {
					other = a
				}
				open := func(r *replica) *reader {
					s := r.stream(all, "PUT", "/v1/holds/"+id(1), "application/x-ndjson", `{"name":"n","on_close":"release"}`)
					s.event(t, "held")
					return s
				}
				first := open(a)
				second := open(other)
				if beaten {
					time.Sleep(time.Minute)
				}
				first.cancel()
				<-first.done
				for range 30 {
					synctest.Wait()
					if info, err := b.client.Show(t.Context(), "n"); err != nil || len(info.Holders) != 1 {
						t.Fatalf("same replica %v, beaten %v: held by %+v, %v", same, beaten, info.Holders, err)
					}
					time.Sleep(time.Second)
				}
				second.event(t, "kept")
				second.cancel()
				<-second.done
				within, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if l, err := b.client.Acquire(within, "n"); err != nil {
					t.Errorf("in the end: %v", err)
				} else {
					l.Release(t.Context())
				}
			})
		}
	}
}

// One request beats for many holds, and says of each what became of it.
func TestBeats(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		var ids []string
		for i := range 5 {
			a.do(all, "PUT", "/v1/holds/"+id(i), fmt.Sprintf(`{"name":"n%d"}`, i)).want(t, 200)
			ids = append(ids, `"`+id(i)+`"`)
		}
		ids = append(ids, `"`+id(77)+`"`)
		for range 10 {
			time.Sleep(10 * time.Second)
			got := b.do(all, "POST", "/v1/beats", `{"ids":[`+strings.Join(ids, ",")+`]}`).want(t, 200)
			for i, one := range got.get("holds").([]any) {
				m := one.(map[string]any)
				if want := map[bool]any{true: 200.0, false: 410.0}[i < 5]; m["status"] != want || i < 5 && m["state"] != "held" || i == 5 && m["why"] != "unknown" {
					t.Fatalf("of hold %d: %v", i, m)
				}
			}
		}
	})
}

// A hold is beaten and ended by its principal alone, and its id is for what it was drawn for.
func TestOthersHold(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		bob := &access.Principal{Name: "bob", Verbs: access.Everything, Prefixes: []string{""}}
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n"}`).want(t, 200)
		for _, c := range []struct{ method, path, body string }{
			{"PUT", "/v1/holds/" + id(1), `{"name":"n"}`}, {"GET", "/v1/holds/" + id(1), ""},
			{"POST", "/v1/holds/" + id(1) + "/beat", ""}, {"DELETE", "/v1/holds/" + id(1), ""},
		} {
			a.do(bob, c.method, c.path, c.body).want(t, 403)
		}
		got := a.do(bob, "POST", "/v1/beats", fmt.Sprintf(`{"ids":[%q]}`, id(1))).want(t, 200)
		if one := got.get("holds").([]any)[0].(map[string]any); one["status"] != 403.0 {
			t.Errorf("bob beats for ana: %v", one)
		}
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"other"}`).want(t, 422)
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","shared":true}`).want(t, 422)
		a.do(all, "GET", "/v1/holds/"+id(1), "").want(t, 200).is(t, "state", "held")
	})
}

// What cannot be understood is refused, and names the field.
func TestBadRequests(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		put := "/v1/holds/" + id(1)
		for _, c := range []struct {
			method, path, body string
			status             int
			says               string
		}{
			{"PUT", "/v1/holds/xyz", `{"name":"n"}`, 400, "32 hexadecimal"},
			{"PUT", "/v1/holds/" + strings.ToUpper("abcdef"+id(1)[6:]), `{"name":"n"}`, 400, "lower case"},
			{"PUT", put, ``, 400, "no body"},
			{"PUT", put, `{`, 400, "too early"},
			{"PUT", put, `[]`, 400, "one object"},
			{"PUT", put, `name=n`, 400, "not JSON"},
			{"PUT", put, `{"name":"n"} {}`, 400, "follows"},
			{"PUT", put, `{"name":"n","wiat":3}`, 400, "wiat"},
			{"PUT", put, `{}`, 400, "name"},
			{"PUT", put, `{"name":"n","names":["m"]}`, 400, "name"},
			{"PUT", put, `{"name":"n","wait":-1}`, 400, "wait"},
			{"PUT", put, `{"name":"n","wait":1e300}`, 400, "wait"},
			{"PUT", put, `{"name":"n","wait":"60"}`, 400, "wait: a number of seconds"},
			{"PUT", put, `{"name":"n","ttl":0.1}`, 400, "ttl"},
			{"PUT", put, `{"name":"n","for":1e8}`, 400, "for"},
			{"PUT", put, `{"name":"n","slots":-1}`, 400, "slots"},
			{"PUT", put, `{"name":"n","slots":2,"shared":true}`, 400, "slots"},
			{"PUT", put, `{"name":"n","on_close":"explode"}`, 400, "on_close"},
			{"PUT", put, `{"name":"n","reason":"` + strings.Repeat("x", 201) + `"}`, 400, "reason"},
			{"PUT", put, `{"name":"` + strings.Repeat("x", driver.MaxName+1) + `"}`, 400, "name"},
			{"PUT", put, `{"name":"a\u0000b"}`, 400, "name"},
			{"PUT", put, `{"names":["` + strings.Repeat(`x","`, 64) + `y"]}`, 400, "names"},
			{"PUT", put, `{"name":"` + strings.Repeat("x", 70000) + `"}`, 413, "65536"},
			{"POST", "/v1/beats", `{"ids":[]}`, 400, "ids"},
			{"POST", "/v1/beats", `{"ids":["x"]}`, 400, "ids"},
			{"POST", "/v1/holds/" + id(1) + "/beat", `{"for":-3}`, 400, "for"},
			{"POST", "/v1/breaks", `{"name":"n","token":5}`, 400, "reason"},
			{"POST", "/v1/breaks", `{"name":"n","reason":"r"}`, 400, "token"},
			{"POST", "/v1/breaks", `{"name":"n","token":5,"reason":"r"}`, 404, "nothing was broken"},
			{"GET", "/v1/locks?limit=0", ``, 400, "limit"},
			{"PUT", "/v1/config/ttl", `{"ttl":0.5}`, 400, "ttl"},
			{"PUT", "/v1/config/ttl", `{"history":32}`, 400, "ttl"},
			{"PUT", "/v1/config/history", `{"history":5}`, 400, "history"},
			{"PUT", "/v1/config/colour", `{"ttl":5}`, 404, "setting"},
			{"GET", "/v1/config/colour", ``, 404, "setting"},
			{"GET", "/v1/nothing", ``, 404, "openapi"},
			{"GET", "/", ``, 404, "/v1"},
			{"DELETE", "/v1/beats", ``, 405, "POST"},
		} {
			got := a.do(all, c.method, c.path, c.body)
			if got.status != c.status || !strings.Contains(fmt.Sprint(got.get("detail")), c.says) {
				t.Errorf("%s %s %.60s: answered %v, want %d and %q", c.method, c.path, c.body, got, c.status, c.says)
			}
		}
		if info, _ := a.client.Show(t.Context(), "n"); len(info.Holders)+len(info.Waiters) > 0 {
			t.Error("one of them has left something")
		}
	})
}

// A path that a mux would clean is another name: it is refused. An encoded one arrives as meant.
func TestPaths(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		for n, name := range []string{"a//b", "a/../b", "/a", "a/", "a/./b", "..", "a b%?#", "größe"} {
			a.do(all, "PUT", "/v1/holds/"+id(n), fmt.Sprintf(`{"name":%q}`, name)).want(t, 200)
			var path strings.Builder
			for _, c := range []byte(name) {
				fmt.Fprintf(&path, "%%%02X", c)
			}
			a.do(all, "GET", "/v1/locks/"+path.String(), "").want(t, 200).is(t, "name", name)
		}
		for _, path := range []string{"/v1/locks/a//b", "/v1//locks/a", "/v1/locks/a/../b", "/v1/locks/./a", "//v1/locks", "/v1/locks/.."} {
			req := a.request(t.Context(), all, "GET", "/", "")
			req.URL.Path = path
			w := newRecorder()
			a.handler.ServeHTTP(w, req)
			if got := answered(t, w).want(t, 400); !strings.Contains(got.text, "encode the name") {
				t.Errorf("%s: %v", path, got)
			}
		}
	})
}

// Several names are all held, or none.
func TestNames(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"b"}`).want(t, 200)
		a.do(all, "PUT", "/v1/holds/"+id(2), `{"names":["c","b","a"]}`).want(t, 409).is(t, "name", "b")
		done := make(chan *answer, 1)
		go func() { done <- b.do(all, "PUT", "/v1/holds/"+id(3), `{"names":["c","b","a"],"wait":40}`) }()
		time.Sleep(3 * time.Second)
		a.do(all, "DELETE", "/v1/holds/"+id(1), "").want(t, 204)
		if got := (<-done).want(t, 200); len(got.get("locks").([]any)) != 3 {
			t.Errorf("%v", got)
		}
	})
}

// A hold that ends by itself needs no beat, and can be extended.
func TestDetachedHold(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		got := a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","for":60}`).want(t, 200).is(t, "detached", true)
		if v := got.get("valid").(float64); v < 58 || v > 61 {
			t.Errorf("valid is %v, want about a minute", v)
		}
		time.Sleep(50 * time.Second)
		a.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"n"}`).want(t, 409)
		if v := b.do(all, "POST", "/v1/holds/"+id(1)+"/beat", `{"for":120}`).want(t, 200).get("valid").(float64); v < 118 || v > 121 {
			t.Errorf("valid is %v after it was extended", v)
		}
		time.Sleep(100 * time.Second)
		if v := b.do(all, "GET", "/v1/holds/"+id(1), "").want(t, 200).get("valid").(float64); v < 15 || v > 21 {
			t.Errorf("valid is %v 20 s before the end", v)
		}
		time.Sleep(time.Minute)
		a.do(all, "PUT", "/v1/holds/"+id(3), `{"name":"n"}`).want(t, 200)
		a.do(all, "PUT", "/v1/holds/"+id(4), `{"name":"m","for":60}`).want(t, 200)
		req := a.request(t.Context(), all, "PUT", "/v1/holds/"+id(5), `{"name":"k","for":60}`)
		req.Header.Set("Accept", ndjson)
		w := newRecorder()
		a.handler.ServeHTTP(w, req)
		answered(t, w).want(t, 400)
	})
}

// The one who breaks a hold stays on record, by the name that it proved, and its owner learns why.
func TestBreak(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		boss := &access.Principal{Name: "boss", Verbs: access.Look | access.Break, Prefixes: []string{"deploy/"}}
		token := a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"deploy/x"}`).want(t, 200).token(t)
		done := make(chan *answer, 1)
		go func() {
			done <- b.do(boss, "POST", "/v1/breaks", fmt.Sprintf(`{"name":"deploy/x","token":%d,"reason":"ticket 815"}`, token))
		}()
		time.Sleep(time.Second)
		got := a.do(all, "POST", "/v1/holds/"+id(1)+"/beat", "").want(t, 410).is(t, "why", "broken")
		if detail := fmt.Sprint(got.get("detail")); !strings.Contains(detail, "boss@") || !strings.Contains(detail, "ticket 815") {
			t.Errorf("told %q", detail)
		}
		a.do(all, "DELETE", "/v1/holds/"+id(1), "").want(t, 204)
		(<-done).want(t, 200).is(t, "by", "boss")
		info, err := a.client.Show(t.Context(), "deploy/x")
		if err != nil || len(info.Breaks) != 1 || info.Breaks[0].By.User != "boss" || info.Breaks[0].Reason != "ticket 815" {
			t.Errorf("on record: %+v, %v", info.Breaks, err)
		}
		if !strings.Contains(b.log.String(), "level=WARN") || !strings.Contains(b.log.String(), "principal=boss") {
			t.Errorf("the log does not warn of a break:\n%s", b.log)
		}
		b.do(boss, "POST", "/v1/breaks", `{"name":"other","token":5,"reason":"r"}`).want(t, 403)
		waiter := make(chan *answer, 1)
		a.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"deploy/x"}`).want(t, 200)
		go func() { waiter <- a.do(all, "PUT", "/v1/holds/"+id(3), `{"name":"deploy/x","wait":40}`) }()
		time.Sleep(time.Second)
		info, _ = a.client.Show(t.Context(), "deploy/x")
		b.do(boss, "POST", "/v1/breaks", fmt.Sprintf(`{"name":"deploy/x","claim":%q,"reason":"not now"}`, info.Waiters[0].ID)).want(t, 404) // both ids begin so
		b.do(boss, "POST", "/v1/breaks", fmt.Sprintf(`{"name":"deploy/x","claim":%q,"reason":"not now"}`, id(3)+"-1")).want(t, 200)
		(<-waiter).want(t, 410).is(t, "why", "broken")
	})
}

// A replica that ends answers what waits at once; the client goes on elsewhere with its place.
func TestDrain(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		lock, err := b.client.Acquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		a.do(nil, "GET", "/readyz", "").want(t, 200)
		plain := make(chan *answer, 1)
		go func() { plain <- a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","wait":30}`) }()
		synctest.Wait()
		s := a.stream(all, "PUT", "/v1/holds/"+id(2), "application/x-ndjson", `{"name":"n","wait":600}`)
		s.event(t, "waiting")
		watch := a.stream(all, "GET", "/v1/locks/n", "application/x-ndjson", "")
		watch.event(t, "lock")
		begun := time.Now()
		a.handler.Drain()
		got := (<-plain).want(t, 202).is(t, "position", 1)
		if left := got.get("wait").(float64); left < 29 || left > 30 {
			t.Errorf("wait is %v", left)
		}
		s.until(t, "waiting", "again")
		watch.until(t, "lock", "again")
		<-s.done
		<-watch.done
		a.do(nil, "GET", "/readyz", "").want(t, 503)
		a.do(nil, "GET", "/healthz", "").want(t, 200)
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","wait":30}`).want(t, 202)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("what waits was answered after %v", took)
		}
		a.close()
		if _, err := b.client.Show(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		go func() { plain <- b.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","wait":30}`) }()
		time.Sleep(time.Second)
		lock.Release(t.Context())
		(<-plain).want(t, 200)
	})
}

// Fewer than so many requests of one principal wait.
func TestWaitingLimit(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		a.handler.limits.of("ana", time.Now()).waiting = maxWaiting
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","wait":5}`).want(t, 429)
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n"}`).want(t, 200)
	})
}

// A principal that asks too often is slowed down, but for its beats in one request.
func TestRate(t *testing.T) {
	list, req := opened(t, ""), httptest.NewRequest("GET", "/", nil)
	key := list.NewKey()
	req.Header.Set("Authorization", "Bearer "+key)
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	conn, err := net.Dial("unix", socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	all, err := list.Authenticate(req)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := list.Authenticate(httptest.NewRequestWithContext(access.WithPeer(t.Context(), conn.(*net.UnixConn)), "GET", "/", nil))
	if err != nil || owner == nil {
		t.Fatal(owner, err)
	}
	other, ok := list.Login(newRecorder(), req, key)
	if !ok {
		t.Fatal("the key does not log in")
	}
	all.Name, other.Name, owner.Name = "ana", "other", "owner"
	other.Verbs = access.Look
	inTime(t, func(t *testing.T, a, _ *replica) {
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n"}`).want(t, 200)
		n := 1
		for ; a.do(all, "GET", "/v1/config/ttl", "").status == 200; n++ {
		}
		if n != rateBurst {
			t.Errorf("%d requests at once, want %d", n, rateBurst)
		}
		got := a.do(all, "GET", "/v1/config/ttl", "").want(t, 429)
		if got.header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
		a.do(all, "POST", "/v1/beats", fmt.Sprintf(`{"ids":[%q]}`, id(1))).want(t, 200)
		a.do(other, "GET", "/v1/config/ttl", "").want(t, 200)
		time.Sleep(time.Second)
		a.do(all, "GET", "/v1/config/ttl", "").want(t, 200)
		for range 2 * rateBurst { // who could open the store without us is not slowed down
			a.do(owner, "GET", "/v1/config/ttl", "").want(t, 200)
		}
	})
}

// A store that does not answer is an unknown outcome within seconds, never a yes or a no.
func TestSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &silent{Store: memory.New()}
		a := newReplica(t, store, nil)
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n"}`).want(t, 200)
		a.do(nil, "GET", "/readyz", "").want(t, 200)
		store.quiet.Store(true)
		for _, c := range []struct{ method, path, body string }{
			{"PUT", "/v1/holds/" + id(1), `{"name":"n"}`}, {"POST", "/v1/holds/" + id(1) + "/beat", ""},
			{"DELETE", "/v1/holds/" + id(1), ""}, {"PUT", "/v1/holds/" + id(2), `{"name":"m","wait":60}`},
		} {
			begun := time.Now()
			got := a.do(all, c.method, c.path, c.body).want(t, 503).is(t, "type", "/problems/unknown-outcome")
			if time.Since(begun) > storeTimeout+time.Second || got.header.Get("Retry-After") == "" {
				t.Errorf("%s %s after %v: %v", c.method, c.path, time.Since(begun), got.header)
			}
		}
		a.do(nil, "GET", "/readyz", "").want(t, 503)
		a.do(nil, "GET", "/healthz", "").want(t, 200)
		store.quiet.Store(false)
		time.Sleep(2 * time.Second)
		a.do(nil, "GET", "/readyz", "").want(t, 200)
	})
}

// A fault of ours has an id that is in the log, and tells the client nothing else.
func TestFault(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		a.handler.mux.HandleFunc("GET /v1/fault", func(http.ResponseWriter, *http.Request) { panic("secret of ours") })
		got := a.do(all, "GET", "/v1/fault", "").want(t, 500).is(t, "type", "/problems/fault")
		if strings.Contains(got.text, "secret") || !strings.Contains(a.log.String(), fmt.Sprint(got.get("fault"))) {
			t.Errorf("%v; log:\n%s", got, a.log)
		}
	})
}

// A program's own way to know its users is believed.
func TestPrincipals(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		a.do(nil, "GET", "/v1/locks", "").want(t, 401)
		for _, c := range []struct {
			p      *access.Principal
			method string
			path   string
			body   string
			status int
		}{
			{&access.Principal{Name: "x", Verbs: access.Look, Prefixes: []string{"a/"}}, "GET", "/v1/locks/a/b", "", 200},
			{&access.Principal{Name: "x", Verbs: access.Look, Prefixes: []string{"a/"}}, "GET", "/v1/locks/b", "", 403},
			{&access.Principal{Name: "x", Verbs: access.Look, Prefixes: []string{"a/"}}, "GET", "/v1/sessions", "", 403},
			{&access.Principal{Name: "x", Verbs: access.Look, Prefixes: []string{"a/"}}, "PUT", "/v1/holds/" + id(1), `{"name":"a/b"}`, 403},
			{&access.Principal{Name: "x", Verbs: access.Take, Prefixes: []string{"a/"}}, "PUT", "/v1/holds/" + id(1), `{"names":["a/b","b"]}`, 403},
			{&access.Principal{Name: "x", Verbs: access.Take, Prefixes: []string{"a/"}}, "PUT", "/v1/holds/" + id(1), `{"name":"a/b"}`, 200},
			{&access.Principal{Name: "x", Verbs: access.Take, Prefixes: []string{"a/"}}, "GET", "/v1/state/a/b", "", 403},
			{&access.Principal{Name: "x", Verbs: access.Take | access.Look}, "PUT", "/v1/holds/" + id(1), `{"name":"a/b"}`, 403},
			{&access.Principal{Name: "x", Verbs: access.Configure, Prefixes: []string{"a/"}}, "PUT", "/v1/config/ttl", `{"ttl":20}`, 403},
			{&access.Principal{Name: "x", Verbs: access.Configure, Prefixes: []string{""}}, "PUT", "/v1/config/ttl", `{"ttl":20}`, 200},
			{&access.Principal{Name: "x", Verbs: access.Look, Prefixes: []string{"a/"}}, "GET", "/v1/config/ttl", "", 200},
		} {
			if got := a.do(c.p, c.method, c.path, c.body); got.status != c.status {
				t.Errorf("%+v %s %s: %v, want %d", c.p, c.method, c.path, got, c.status)
			}
		}
		a.do(all, "PUT", "/v1/holds/"+id(7), `{"name":"b"}`).want(t, 200)
		got := a.do(&access.Principal{Name: "x", Verbs: access.Look, Prefixes: []string{"a/"}}, "GET", "/v1/locks", "").want(t, 200)
		if list := got.get("locks").([]any); len(list) != 1 || list[0].(map[string]any)["name"] != "a/b" {
			t.Errorf("listed %v", list)
		}
	})
}

// Lists come in pages.
func TestList(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		for i := range 7 {
			a.do(all, "PUT", "/v1/holds/"+id(i), fmt.Sprintf(`{"name":"deploy/%d"}`, i)).want(t, 200)
		}
		a.do(all, "PUT", "/v1/holds/"+id(8), `{"name":"other"}`).want(t, 200)
		var names []string
		pages := 0
		for after := ""; ; pages++ {
			got := a.do(all, "GET", "/v1/locks?prefix=deploy/&limit=3&after="+after, "").want(t, 200)
			for _, l := range got.get("locks").([]any) {
				names = append(names, l.(map[string]any)["name"].(string))
			}
			next, more := got.get("after").(string)
			if !more {
				break
			}
			after = next
		}
		if len(names) != 7 || pages != 2 {
			t.Errorf("%d names after %d pages: %v", len(names), pages, names)
		}
		got := a.do(all, "GET", "/v1/sessions?limit=5", "").want(t, 200)
		list := got.get("sessions").([]any)
		if s := list[0].(map[string]any); len(list) != 5 || s["client"] != "ana" || fmt.Sprint(s["names"]) != "[deploy/0]" {
			t.Errorf("sessions: %v", got)
		}
		got = a.do(all, "GET", "/v1/sessions?after="+got.get("after").(string), "").want(t, 200)
		if n := len(got.get("sessions").([]any)); n != 3 {
			t.Errorf("%d sessions on the second page: %v", n, got)
		}
	})
}
