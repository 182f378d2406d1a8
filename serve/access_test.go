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
	"time"

	"github.com/holdfast-lock/holdfast/memory"
)

// A line of a tokens file says all that is allowed; what cannot be understood is refused, by its
// line, without repeating what could be a secret.
func TestTokensFile(t *testing.T) {
	good := `
# principal proof verbs prefixes
ci     sha256:` + strings.Repeat("a1", 32) + `  take  deploy/ import/   # of the runners
ana    sha256:` + strings.Repeat("b2", 32) + `  take,look,break  *
db-ops cert:DNS:ops.example  look,configure *
bob    unix:bob take a%20b
prom   sha256:` + strings.Repeat("c3", 32) + ` metrics -
`
	lines, err := parseTokens(strings.NewReader(good))
	if err != nil || len(lines) != 5 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	for _, c := range []struct {
		line int
		verb Verbs
		name string
		may  bool
	}{
		{0, Take, "deploy/x", true}, {0, Take, "deploy", false}, {0, Take, "other", false}, {0, Look, "deploy/x", false}, {0, Break, "deploy/x", false},
		{1, Take | Look | Break, "anything", true}, {1, Configure, "x", false},
		{2, Configure, "x", true}, {3, Take, "a b", true}, {3, Take, "a%20b", false}, {4, Metrics, "x", false}, {4, Take, "", false},
	} {
		if got := lines[c.line].principal.May(c.verb, c.name); got != c.may {
			t.Errorf("line %d, %v %q: %v", c.line, c.verb, c.name, got)
		}
	}
	if !lines[1].principal.MayAll(Look) || lines[0].principal.MayAll(Take) || !lines[4].principal.has(Metrics) {
		t.Error("all names")
	}
	for _, bad := range []string{
		"ci", "ci sha256:abc take *", "ci sha256:" + strings.Repeat("A1", 32) + " take *", "ci hf_secretsecret take *",
		"ci sha256:" + strings.Repeat("a1", 32) + " fly *", "ci sha256:" + strings.Repeat("a1", 32) + " take", "c\x1bi unix:a take *", "ci cert:CN:x take *", "ci unix: take *",
		"ci sha256:hf_secretsecret take *", "ci unix:x take %zz",
	} {
		if _, err := parseTokens(strings.NewReader("\n" + bad)); err == nil || !strings.Contains(err.Error(), "line 2") || strings.Contains(err.Error(), "secretsecret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	secret, hash := NewSecret()
	line, err := TokenLine("ci", hash, "take", []string{"a b/", "*"})
	if err != nil || strings.Contains(line, secret) {
		t.Fatal(line, err)
	}
	if l, err := parseLine(strings.Fields(line)); err != nil || !l.principal.May(Take, "a b/c") {
		t.Errorf("%s: %+v, %v", line, l, err)
	}
	if _, err := TokenLine("c i", hash, "take", nil); err == nil {
		t.Error("a principal with a space")
	}
}

func writeTokens(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The file is read again when it changes: a line that has gone ends what rests on it. A file that
// cannot be understood changes nothing. One that others can read or change is refused.
func TestTokensReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	one, hashOne := NewSecret()
	two, hashTwo := NewSecret()
	line := func(name, hash string) string {
		l, err := TokenLine(name, hash, "look", []string{"*"})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	writeTokens(t, path, line("one", hashOne))
	for _, mode := range []os.FileMode{0o644, 0o620, 0o604, 0o602} {
		os.Chmod(path, mode)
		if _, err := OpenAccess(path, nil); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	os.Chmod(path, 0o640)
	access, err := OpenAccess(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, memory.New(), &Options{Access: access})
	as := func(secret string) int {
		req := r.request(t.Context(), nil, "GET", "/v1/config/ttl", "")
		req.Header.Set("Authorization", "Bearer "+secret)
		w := newRecorder()
		r.handler.ServeHTTP(w, req)
		return w.Code
	}
	later := func() { access.mu.Lock(); access.looked = time.Time{}; access.mu.Unlock() } // a second has passed
	if as(one) != 200 || as(two) != 401 || as(hashOne) != 401 || as("") != 401 {
		t.Error("who is known")
	}
	writeTokens(t, path, line("two", hashTwo), "# and more")
	later()
	if as(one) != 401 || as(two) != 200 {
		t.Error("the file was exchanged")
	}
	writeTokens(t, path, line("two", hashTwo), "nonsense")
	later()
	if as(two) != 200 {
		t.Error("a file that cannot be understood")
	}
	os.Remove(path)
	later()
	if as(two) != 200 {
		t.Error("no file")
	}
	if strings.Contains(r.log.String(), one) || strings.Contains(r.log.String(), two) {
		t.Errorf("a secret in the log:\n%s", r.log)
	}
}

// A wrong secret is no way to be taken for somebody by other means; basic authentication carries
// the secret as well.
func TestAuthorization(t *testing.T) {
	access, err := OpenAccess("", nil)
	if err != nil {
		t.Fatal(err)
	}
	key := access.NewKey()
	r := newReplica(t, memory.New(), &Options{Access: access})
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
type login struct{ access *Access }

func (l *login) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/login":
		if p, ok := l.access.Login(w, r, r.FormValue("key")); ok {
			fmt.Fprint(w, p.Name)
			return
		}
		w.WriteHeader(401)
	case "/who":
		if p := PrincipalOf(r.Context()); p != nil {
			fmt.Fprint(w, p.Name)
		}
	}
}

// The cookie of a login stands for its line of the tokens file, for twelve hours, at all replicas;
// nothing that another page has a browser send can change anything by it.
func TestLogin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	secret, hash := NewSecret()
	line, _ := TokenLine("ana", hash, "take,look,break", []string{"*"})
	_, hash2 := NewSecret()
	line2, _ := TokenLine("bob", hash2, "look", []string{"*"})
	writeTokens(t, path, line, line2)
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		open := func() *replica {
			access, err := OpenAccess(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			return newReplica(t, store, &Options{Access: access, Page: &login{access}})
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
		if c.Name != "__Host-hf" || !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" {
			t.Errorf("cookie: %+v", c)
		}
		if strings.Contains(c.Value, secret) || strings.Contains(c.Value, hash) {
			t.Errorf("the cookie tells the secret: %s", c.Value)
		}
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
			{"changed at the end", send(a, "GET", "/v1/locks", "", c.Value[:len(c.Value)-2]+"xx"), 401},
			{"with another hour", send(a, "GET", "/v1/locks", "", strings.Replace(c.Value, ".", ".1", 1)), 401},
			{"nonsense", send(a, "GET", "/v1/locks", "", "a.b.c"), 401},
		} {
			if one.got != one.status {
				t.Errorf("%s: %d, want %d", one.what, one.got, one.status)
			}
		}
		if bob, _ := parseLine(strings.Fields(line2)); send(a, "GET", "/v1/locks", "", bob.id()+c.Value[strings.Index(c.Value, "."):]) != 401 {
			t.Error("a cookie of ana is good for bob")
		}
		time.Sleep(11 * time.Hour)
		if got := send(a, "GET", "/v1/locks", "", c.Value); got != 200 {
			t.Errorf("after eleven hours: %d", got)
		}
		time.Sleep(2 * time.Hour)
		if got := send(a, "GET", "/v1/locks", "", c.Value); got != 401 {
			t.Errorf("after thirteen hours: %d", got)
		}
		a.handler.ServeHTTP(newRecorder(), post)
		w = newRecorder()
		a.handler.ServeHTTP(w, a.request(t.Context(), nil, "POST", "https://holdfast.example/login", "key="+secret))
		fresh, _ := parseLine(strings.Fields(line))
		now := fresh.cookie(hour())
		if got := send(a, "GET", "/v1/locks", "", now); got != 200 {
			t.Fatalf("a fresh one: %d", got)
		}
		for _, r := range []*replica{a, b} {
			if log := r.log.String(); strings.Contains(log, secret) || strings.Contains(log, now) || strings.Contains(log, c.Value) {
				t.Errorf("a secret in the log:\n%s", log)
			}
		}
		writeTokens(t, path, line2)
		time.Sleep(2 * time.Second)
		if got := send(a, "GET", "/v1/locks", "", now); got != 401 {
			t.Errorf("its line has gone: %d", got)
		}
	})
}

// On loopback without TLS browsers would not keep a cookie that demands it.
func TestLoginPlain(t *testing.T) {
	access, err := OpenAccess("", nil)
	if err != nil {
		t.Fatal(err)
	}
	key := access.NewKey()
	w := newRecorder()
	if _, ok := access.Login(w, httptest.NewRequest("POST", "/login", nil), key); !ok {
		t.Fatal("the key of the link does not log in")
	}
	if c := w.Result().Cookies()[0]; c.Name != "hf" || c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
		t.Errorf("cookie: %+v", c)
	}
	if _, ok := access.Login(newRecorder(), httptest.NewRequest("POST", "/login", nil), "hf_no"); ok {
		t.Error("anything logs in")
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
