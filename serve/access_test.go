package serve

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/access"
)

func writeTokens(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A wrong secret is no way to be taken for somebody by other means; basic authentication carries
// the secret as well.
func TestAuthorization(t *testing.T) {
	list := opened(t, "")
	key := list.NewKey()
	r := newReplica(t, memory.New(), &Options{Access: list})
	for _, c := range []struct {
		header []string
		status int
	}{
		{nil, 401}, {[]string{"Bearer " + key}, 200}, {[]string{"bearer " + key}, 200}, {[]string{"Bearer " + key + "x"}, 401}, {[]string{"Bearer"}, 401},
		{[]string{key}, 401}, {[]string{"Basic xx"}, 401}, {[]string{"Bearer " + key, "Bearer x"}, 401}, {[]string{"Digest " + key}, 401},
	} {
		req := r.request(t.Context(), nil, "GET", "/v1/config/ttl", "")
		req.Header["Authorization"] = c.header
		w := newRecorder()
		r.handler.ServeHTTP(w, req)
		if w.Code != c.status || w.Code == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%.20q: %d %v, want %d", c.header, w.Code, w.Header(), c.status)
		}
	}
	req := r.request(t.Context(), nil, "GET", "/v1/config/ttl", "")
	req.SetBasicAuth("anybody", key)
	w := newRecorder()
	if r.handler.ServeHTTP(w, req); w.Code != 200 {
		t.Errorf("basic: %d", w.Code)
	}
	if strings.Contains(r.log.String(), key[:20]) {
		t.Errorf("the key is in the log:\n%s", r.log)
	}
}

// login is a page's login: it posts the secret once.
type login struct{ access *access.List }

func (l *login) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/login":
		if p, ok := l.access.Login(w, r, r.FormValue("key")); ok {
			fmt.Fprint(w, p.Name)
			return
		}
		w.WriteHeader(401)
	case "/who":
		if p := access.PrincipalOf(r.Context()); p != nil {
			fmt.Fprint(w, p.Name)
		}
	}
}

// Nothing that another page has a browser send can change anything by the cookie of a login, and the
// log has neither the cookie nor the secret.
func TestLogin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	secret, hash := access.NewSecret()
	line, _ := access.TokenLine("ana", hash, "take,look,break", []string{"*"})
	writeTokens(t, path, line)
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		open := func() *replica {
			list := opened(t, path)
			return newReplica(t, store, &Options{Access: list, Page: &login{list}})
		}
		a, b := open(), open()
		post := a.request(t.Context(), nil, "POST", "https://holdfast.example/login", "key="+secret)
		post.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := newRecorder()
		a.handler.ServeHTTP(w, post)
		cookies := w.Result().Cookies()
		if w.Code != 200 || len(cookies) != 1 {
			t.Fatalf("login: %d, %v", w.Code, cookies)
		}
		c := cookies[0]
		send := func(r *replica, method, path, body, value string, header ...string) int {
			req := r.request(t.Context(), nil, method, "https://holdfast.example"+path, body)
			req.AddCookie(&http.Cookie{Name: "__Host-hf", Value: value})
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			w := newRecorder()
			r.handler.ServeHTTP(w, req)
			return w.Code
		}
		break1 := `{"name":"n","token":5,"reason":"r"}`
		asJSON := []string{"Content-Type", "application/json"}
		for _, one := range []struct {
			what   string
			got    int
			status int
		}{
			{"at another replica", send(b, "GET", "/v1/locks", "", c.Value), 200},
			{"of the same origin", send(a, "POST", "/v1/breaks", break1, c.Value, append(asJSON, "Sec-Fetch-Site", "same-origin")...), 404},
			{"of another origin", send(a, "POST", "/v1/breaks", break1, c.Value, append(asJSON, "Sec-Fetch-Site", "cross-site")...), 403},
			{"of the same site", send(a, "POST", "/v1/breaks", break1, c.Value, append(asJSON, "Sec-Fetch-Site", "same-site")...), 403},
			{"of an old browser", send(a, "POST", "/v1/breaks", break1, c.Value, append(asJSON, "Origin", "https://evil.example")...), 403},
			{"as a form", send(a, "POST", "/v1/breaks", break1, c.Value, "Content-Type", "application/x-www-form-urlencoded"), 415},
			{"as text", send(a, "POST", "/v1/breaks", break1, c.Value, "Content-Type", "text/plain"), 415},
			{"undeclared", send(a, "POST", "/v1/breaks", break1, c.Value), 415},
			{"without a cookie", send(a, "GET", "/v1/locks", "", ""), 401},
		} {
			if one.got != one.status {
				t.Errorf("%s: %d, want %d", one.what, one.got, one.status)
			}
		}
		for _, r := range []*replica{a, b} {
			if log := r.log.String(); strings.Contains(log, secret) || strings.Contains(log, c.Value) {
				t.Errorf("a secret in the log:\n%s", log)
			}
		}
	})
}

// A login through a proxy that terminates TLS is good over TLS alone; one on loopback needs none.
func TestLoginBehindProxy(t *testing.T) {
	list := opened(t, "")
	key := list.NewKey()
	for d, secure := range map[door]bool{doorLoopback: false, doorProxied: true} {
		w := newRecorder()
		ctx := new(Server).connected(t.Context(), &limitedConn{door: d})
		list.Login(w, httptest.NewRequestWithContext(ctx, "POST", "/login", nil), key)
		if c := w.Result().Cookies()[0]; c.Secure != secure || (c.Name == "__Host-hf") != secure {
			t.Errorf("door %d: %+v", d, c)
		}
	}
}

// What strangers have written does nothing to whoever looks, and what the store says of itself is
// nobody's business.
func TestShownText(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"n","reason":"\u202eevil\u001b[2J\u007f<script>\u009b"}`).want(t, 200)
		got := a.do(all, "GET", "/v1/locks/n", "").want(t, 200)
		if strings.ContainsAny(got.text, "\u202e\x1b\x7f\u009b") {
			t.Errorf("%q", got.text)
		}
		if got.header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(got.header.Get("Content-Type"), "application/json") {
			t.Errorf("%v", got.header)
		}
		err := errors.New(`dial postgres://app:geheim@db.example/shop: refused`)
		p := a.handler.problemOf(a.request(t.Context(), all, "GET", "/", ""), err)
		if text := fmt.Sprint(p); strings.Contains(text, "geheim") || strings.Contains(text, "db.example") || strings.Contains(a.log.String(), "geheim") {
			t.Errorf("%s\n%s", text, a.log)
		}
	})
}
