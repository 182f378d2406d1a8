package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// loginHours is how long a login lasts.
const loginHours = 12

// Login checks a secret and gives the browser a cookie in its place. The cookie is valid for twelve
// hours, at all replicas with the same tokens file, and ends with the line of the secret. It names
// the line and the hour, signed with a key derived from the line; the secret is not in it.
func (a *List) Login(w http.ResponseWriter, r *http.Request, secret string) (*Principal, bool) {
	l, ok := a.find("sha256", hashOf(secret))
	if !ok {
		return nil, false
	}
	a.setCookie(w, r, l.cookie(hour()), loginHours*3600)
	return l.as(byCookie), true
}

// Logout deletes the cookie.
func (a *List) Logout(w http.ResponseWriter, r *http.Request) { a.setCookie(w, r, "", -1) }

func (a *List) setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: value, Path: "/", MaxAge: age,
		HttpOnly: true, Secure: encrypted(r), SameSite: http.SameSiteStrictMode})
}

// cookieName has the prefix by which browsers keep other hosts of the domain from setting the
// cookie. They demand TLS for that, which loopback does not have.
func cookieName(r *http.Request) string {
	if encrypted(r) {
		return "__Host-hf"
	}
	return "hf"
}

type proxyKey struct{}

// WithProxy notes in the context of a connection that it comes from a proxy that terminates TLS.
func WithProxy(ctx context.Context) context.Context { return context.WithValue(ctx, proxyKey{}, true) }

// encrypted reports whether the browser uses TLS, to us or to the proxy in front of us.
func encrypted(r *http.Request) bool {
	return r.TLS != nil || r.Context().Value(proxyKey{}) != nil
}

func hour() int64 { return time.Now().Unix() / 3600 }

// id names a line without telling what is in it.
func (l line) id() string {
	sum := sha256.Sum256([]byte("holdfast line\x00" + l.text))
	return hex.EncodeToString(sum[:8])
}

func (l line) cookie(hour int64) string {
	body := l.id() + "." + strconv.FormatInt(hour, 16)
	key := sha256.Sum256([]byte("holdfast login\x00" + l.text))
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte(body))
	return body + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// checkCookie finds the line whose key has signed a cookie that is still valid.
func (a *List) checkCookie(value string) (line, bool) {
	id, rest, _ := strings.Cut(value, ".")
	stamp, _, _ := strings.Cut(rest, ".")
	then, err := strconv.ParseInt(stamp, 16, 64)
	if now := hour(); err != nil || then > now+1 || now-then > loginHours {
		return line{}, false
	}
	lines := a.current()
	if a.key != "" {
		lines = append([]line{a.link}, lines...)
	}
	for _, l := range lines {
		if l.kind == "sha256" && l.id() == id {
			return l, hmac.Equal([]byte(value), []byte(l.cookie(then)))
		}
	}
	return line{}, false
}
