package access

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The cookie of a login stands for its line of the tokens file, for twelve hours, at all replicas.
func TestLogin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	secret, hash := NewSecret()
	line, _ := TokenLine("ana", hash, "take,look,break", []string{"*"})
	_, hash2 := NewSecret()
	line2, _ := TokenLine("bob", hash2, "look", []string{"*"})
	writeTokens(t, path, line, line2)
	synctest.Test(t, func(t *testing.T) {
		open := func() *List {
			list, err := Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		a, b := open(), open()
		login := func() *http.Cookie {
			w := httptest.NewRecorder()
			p, ok := a.Login(w, httptest.NewRequest("POST", "https://holdfast.example/login", nil), secret)
			cookies := w.Result().Cookies()
			if !ok || p.Name != "ana" || len(cookies) != 1 {
				t.Fatalf("login: %v, %v", p, cookies)
			}
			return cookies[0]
		}
		c := login()
		if c.Name != "__Host-hf" || !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" {
			t.Errorf("cookie: %+v", c)
		}
		if strings.Contains(c.Value, secret) || strings.Contains(c.Value, hash) {
			t.Errorf("the cookie tells the secret: %s", c.Value)
		}
		who := func(l *List, value string) string {
			r := httptest.NewRequest("GET", "https://holdfast.example/v1/locks", nil)
			r.AddCookie(&http.Cookie{Name: "__Host-hf", Value: value})
			p, err := l.Authenticate(r)
			if err != nil {
				t.Errorf("a cookie that holds no more is no wrong secret: %v", err)
			}
			if p == nil {
				return ""
			}
			return p.Name
		}
		bob, _ := parseLine(strings.Fields(line2))
		for _, one := range []struct{ what, got, want string }{
			{"here", who(a, c.Value), "ana"}, {"at another replica", who(b, c.Value), "ana"},
			{"without a cookie", who(a, ""), ""},
			{"changed at the end", who(a, c.Value[:len(c.Value)-2]+"xx"), ""},
			{"with another hour", who(a, strings.Replace(c.Value, ".", ".1", 1)), ""},
			{"nonsense", who(a, "a.b.c"), ""},
			{"a cookie of ana, for bob", who(a, bob.id()+c.Value[strings.Index(c.Value, "."):]), ""},
		} {
			if one.got != one.want {
				t.Errorf("%s: %q, want %q", one.what, one.got, one.want)
			}
		}
		time.Sleep(11 * time.Hour)
		if got := who(a, c.Value); got != "ana" {
			t.Errorf("after eleven hours: %q", got)
		}
		time.Sleep(2 * time.Hour)
		if got := who(a, c.Value); got != "" {
			t.Errorf("after thirteen hours: %q", got)
		}
		now := login().Value
		if got := who(a, now); got != "ana" {
			t.Fatalf("a fresh one: %q", got)
		}
		writeTokens(t, path, line2)
		time.Sleep(2 * time.Second)
		if got := who(a, now); got != "" {
			t.Errorf("its line has gone: %q", got)
		}
	})
}

// On loopback without TLS browsers would not keep a cookie that demands it.
func TestLoginPlain(t *testing.T) {
	list, err := Open("", nil)
	if err != nil {
		t.Fatal(err)
	}
	key := list.NewKey()
	w := httptest.NewRecorder()
	if _, ok := list.Login(w, httptest.NewRequest("POST", "/login", nil), key); !ok {
		t.Fatal("the key of the link does not log in")
	}
	if c := w.Result().Cookies()[0]; c.Name != "hf" || c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
		t.Errorf("cookie: %+v", c)
	}
	if _, ok := list.Login(httptest.NewRecorder(), httptest.NewRequest("POST", "/login", nil), "hf_no"); ok {
		t.Error("anything logs in")
	}
}
