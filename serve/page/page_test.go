package page_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/page"
)

// A counted store counts how often its names are listed, and can be cut off.
type counted struct {
	driver.Store
	lists atomic.Int64
	cut   atomic.Bool
}

func (s *counted) Keys(ctx context.Context, space driver.Space, after string, limit int) ([]string, error) {
	if s.cut.Load() {
		return nil, fmt.Errorf("connection refused")
	}
	if after == "" {
		s.lists.Add(1)
	}
	return s.Store.Keys(ctx, space, after, limit)
}

type site struct {
	t      *testing.T
	store  *counted
	locks  *holdfast.Client // takes locks
	server *httptest.Server
}

func newClient(t *testing.T, s driver.Store, o holdfast.Owner) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull, Owner: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newSite(t *testing.T, opts *page.Options) *site {
	t.Helper()
	store := &counted{Store: memory.New()}
	w := &site{t: t, store: store, locks: newClient(t, store, holdfast.Owner{Host: "db1", User: "ana", Program: "backup", PID: 815})}
	h := page.New(newClient(t, store, holdfast.Owner{Host: "web-1"}), opts)
	mux := http.NewServeMux()
	prefix := ""
	if opts != nil {
		prefix = opts.Prefix
	}
	mux.Handle(prefix+"/", h)
	w.server = httptest.NewServer(mux)
	t.Cleanup(func() { w.server.CloseClientConnections(); h.Close(); w.server.Close() })
	return w
}

// The page of a lock shows the statement of its fence, unless the name could be written into it in
// more ways than one.
func TestFence(t *testing.T) {
	w := newSite(t, &page.Options{Fence: "select locks.holdfast_fence(:name, :token)"})
	for name, shown := range map[string]bool{"orders/42": true, "o'brien": true, `back\slash`: false, "hidden\u200bhere": false} {
		l, err := w.locks.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := w.get("/lock?name=" + url.QueryEscape(name))
		plain := html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, ""))
		want := fmt.Sprintf("select locks.holdfast_fence('%s', %d);", strings.ReplaceAll(name, "'", "''"), l.Token())
		if strings.Contains(plain, want) != shown || strings.Contains(plain, "holdfast_fence") != shown {
			t.Errorf("%q: the statement is shown: %v, want %v", name, !shown, shown)
		}
	}
}

// all may be done by its viewer.
func all(*http.Request) page.Viewer {
	return page.Viewer{Name: "ana", Break: func(string) bool { return true }, Configure: true}
}

func (w *site) hold(name string, opts ...holdfast.Option) *holdfast.Lock {
	w.t.Helper()
	l, err := w.locks.TryAcquire(w.t.Context(), name, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *site) get(path string) (status int, body string, head http.Header) {
	w.t.Helper()
	r, err := http.Get(w.server.URL + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.StatusCode, string(text), r.Header
}

func (w *site) post(path string, form url.Values, header ...string) (status int, body, where string) {
	w.t.Helper()
	q, err := http.NewRequest("POST", w.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	r, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.StatusCode, string(text), r.Header.Get("Location")
}

var screens = []string{"/", "/?show=contended", "/?q=a&sort=name", "/lock?name=a", "/hosts", "/history", "/settings", "/doctor"}

func doctor(context.Context) []driver.Finding {
	return []driver.Finding{{Level: driver.Good, Subject: "server", Text: "PostgreSQL 15"}, {Level: driver.Warning, Subject: "<b>", Text: "\u202eslow"}}
}

// Nothing inline is served that the policy would have to allow, and what strangers have written
// is shown escaped.
func TestHostile(t *testing.T) {
	const name = `<script>alert("a")</script>/'"><b>`
	bidi := "\u202egnihtemos\u200b"
	w := newSite(t, &page.Options{Store: "sqlite:<x>", Viewer: all, Doctor: doctor})
	evil := newClient(t, w.store, holdfast.Owner{Host: "<img src=x onerror=alert(1)>" + bidi, User: "\x1b[31mroot", Program: "<p>"})
	l, err := evil.Acquire(t.Context(), name, holdfast.Reason(`"><svg onload=alert(1)>`+bidi))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release(t.Context())
	long := strings.Repeat("n", 255)
	w.hold(long)
	for _, path := range append(screens, "/lock?name="+url.QueryEscape(name), "/lock?name="+long, "/lock?name="+url.QueryEscape(name)+"&break=x") {
		status, body, head := w.get(path)
		if status != 200 {
			t.Errorf("%s: status %d:\n%s", path, status, body)
		}
		if policy := head.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q", path, policy)
		}
		for _, bad := range []string{`<script>alert`, "<img src=x", "<svg onload", "\x1b", "\u202e", "\u200b"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s: %q is there as it was written", path, bad)
			}
		}
		if m := regexp.MustCompile(`(?i)<[a-z]+(\s+[a-z0-9-]+(="[^"]*")?)*\s+(style|on[a-z]+)=|<style|<script>|javascript:`).FindString(body); m != "" {
			t.Errorf("%s: inline %q", path, m)
		}
	}
	if _, body, _ := w.get("/"); !strings.Contains(body, `&lt;script&gt;`) || !strings.Contains(body, `\u202e`) {
		t.Error("the hostile name and owner are not in the table")
	}
}

// A viewer without rights sees no button, and is refused if he sends the form all the same.
func TestRights(t *testing.T) {
	w := newSite(t, &page.Options{Viewer: func(*http.Request) page.Viewer {
		return page.Viewer{Name: "bob", Look: func(n string) bool { return strings.HasPrefix(n, "open/") }}
	}})
	l, secret := w.hold("open/1"), w.hold("secret/2")
	_, body, _ := w.get("/")
	if !strings.Contains(body, "open/") || strings.Contains(body, "secret/") {
		t.Errorf("of open/1 and secret/2 only the first may be seen:\n%s", body)
	}
	if _, body, _ := w.get("/lock?name=open/1"); strings.Contains(body, "reak…") {
		t.Error("a break is offered to a viewer who may not break")
	}
	if _, body, _ := w.get("/lock?name=open/1&break=" + url.QueryEscape("x")); strings.Contains(body, "<form method=\"post\" action=\"/break\"") {
		t.Error("the form of a break is shown to a viewer who may not break")
	}
	if status, _, _ := w.get("/lock?name=secret/2"); status != 403 {
		t.Errorf("a lock that may not be looked at: status %d", status)
	}
	for _, one := range []*holdfast.Lock{l, secret} {
		if status, _, _ := w.post("/break", url.Values{"name": {one.Name()}, "token": {strconv.FormatInt(one.Token(), 10)}, "reason": {"x"}}); status != 403 {
			t.Errorf("break of %q: status %d", one.Name(), status)
		}
		if err := one.Err(); err != nil {
			t.Error(err)
		}
	}
	if status, _, _ := w.post("/settings", url.Values{"ttl": {"3"}}); status != 403 {
		t.Errorf("settings: status %d", status)
	}
}

func TestOtherSites(t *testing.T) {
	w := newSite(t, &page.Options{Viewer: all})
	l := w.hold("a")
	form := url.Values{"name": {"a"}, "token": {strconv.FormatInt(l.Token(), 10)}, "reason": {"x"}}
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}} {
		if status, _, _ := w.post("/break", form, header...); status != 403 {
			t.Errorf("%v: status %d", header, status)
		}
	}
	if err := l.Err(); err != nil {
		t.Error("another site has broken the lock:", err)
	}
}

// A store with so many locks that it takes a while to list them is shown all the same.
func TestManyLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		locks, looker := newClient(t, store, holdfast.Owner{}), newClient(t, &slow{store}, holdfast.Owner{})
		for i := range 6000 {
			if _, err := locks.TryAcquire(t.Context(), fmt.Sprintf("orders/%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		h := page.New(looker, nil)
		defer h.Close()
		w := httptest.NewRecorder()
		began := time.Now()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if body := w.Body.String(); !strings.Contains(body, "6,000") || strings.Contains(body, "does not answer") || time.Since(began) < 10*time.Second {
			t.Errorf("after %v:\n%s", time.Since(began), body)
		}
		if err := errors.Join(looker.Close(), locks.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A slow store takes three seconds for each page of a list.
type slow struct{ driver.Store }

func (s *slow) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	select {
	case <-time.After(3 * time.Second):
		return s.Store.Keys(ctx, space, after, n)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A break ends exactly the hold that its form named, with the reason and the viewer on record.
func TestBreak(t *testing.T) {
	w := newSite(t, &page.Options{Viewer: all})
	l := w.hold("deploy/shop")
	token := strconv.FormatInt(l.Token(), 10)
	if _, body, _ := w.get("/lock?name=deploy/shop"); !strings.Contains(body, "Break…") || !strings.Contains(body, token) {
		t.Fatalf("no break is offered, or the token is missing:\n%s", body)
	}
	if status, body, _ := w.post("/break", url.Values{"name": {"deploy/shop"}, "token": {token}, "reason": {" "}}); status != 400 || !strings.Contains(body, "needs a reason") {
		t.Errorf("without a reason: status %d", status)
	}
	form := url.Values{"name": {"deploy/shop"}, "token": {token}, "reason": {"hangs " + strings.Repeat("…", 100)}}
	if first, err := w.locks.Show(t.Context(), "deploy/shop"); err == nil {
		form.Set("id", first.Holders[0].FullID())
	}
	if status, body, _ := w.post("/break", form); status != 400 || !strings.Contains(body, "takes 306 bytes") || !strings.Contains(body, "value=\"hangs ……") {
		t.Errorf("with a long reason: status %d\n%s", status, body)
	}
	if l.Err() != nil {
		t.Fatal("broken without a reason that can be kept")
	}
	released := make(chan error, 1)
	go func() {
		<-l.Context().Done()
		released <- l.Release(context.WithoutCancel(t.Context()))
	}()
	status, body, where := w.post("/break", url.Values{"name": {"deploy/shop"}, "token": {token}, "reason": {"hangs, ticket 815"}})
	if status != 303 || where != "/lock?name=deploy%2Fshop" {
		t.Fatalf("status %d, to %q:\n%s", status, where, body)
	}
	<-released
	info, err := w.locks.Show(t.Context(), "deploy/shop")
	if err != nil || len(info.Breaks) != 1 || info.Breaks[0].By.User != "ana" || info.Breaks[0].By.Program != "holdfast page" {
		t.Errorf("the break is on record as %+v, %v", info.Breaks, err)
	}
	if _, body, _ := w.get(where); !strings.Contains(body, "<td class=\"why\">hangs, ticket 815</td>") {
		t.Errorf("the break is not on record:\n%s", body)
	}
	next := w.hold("deploy/shop")
	if status, body, _ := w.post("/break", url.Values{"name": {"deploy/shop"}, "token": {token}, "reason": {"again"}}); status != 409 || !strings.Contains(body, "let go already") {
		t.Errorf("a break of what has gone: status %d", status)
	}
	if err := next.Err(); err != nil {
		t.Error("the next holder was broken:", err)
	}
}

func TestSettings(t *testing.T) {
	w := newSite(t, &page.Options{Viewer: all})
	for _, bad := range []string{"", "x", "0.1", "-3", "NaN", "1e99"} {
		if status, body, _ := w.post("/settings", url.Values{"ttl": {bad}}); status != 400 || !strings.Contains(body, `role="alert"`) {
			t.Errorf("TTL %q: status %d", bad, status)
		}
	}
	if status, _, _ := w.post("/settings", url.Values{"ttl": {"20"}, "history": {"33"}}); status != 400 {
		t.Errorf("33 holds of each name: status %d", status)
	}
	if status, _, where := w.post("/settings", url.Values{"ttl": {"20"}, "history": {"128"}}); status != 303 || where != "/settings?done" {
		t.Errorf("status %d to %q", status, where)
	}
	if ttl, err := w.locks.StoreTTL(t.Context()); err != nil || ttl != 20*time.Second {
		t.Errorf("TTL %v, %v", ttl, err)
	}
	if n, err := w.locks.StoreHistory(t.Context()); err != nil || n != 128 {
		t.Errorf("history %d, %v", n, err)
	}
}

// What has ended is on the page of its lock, as a table and as a picture, and among all.
func TestHistory(t *testing.T) {
	w := newSite(t, nil)
	if _, body, _ := w.get("/history"); !strings.Contains(body, "Nothing is on record") {
		t.Error("an empty history says nothing")
	}
	c := newClient(t, w.store, holdfast.Owner{Host: "runner-07", User: "ci", Program: "<b>deploy"})
	l, err := c.Acquire(t.Context(), "deploy/shop", holdfast.Reason("release <4>"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-l.Context().Done(); l.Release(context.WithoutCancel(t.Context())) }()
	if err := w.locks.Break(t.Context(), "deploy/shop", l.Token(), "hangs, <815>"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil { // what has ended is on record now
		t.Fatal(err)
	}
	for _, path := range []string{"/history", "/history?q=deploy/", "/lock?name=deploy/shop"} {
		_, body, _ := w.get(path)
		for _, want := range []string{"broken", "ci@runner-07", "hangs, &lt;815&gt;", "release &lt;4&gt;", strconv.FormatInt(l.Token(), 10)} {
			if !strings.Contains(body, want) {
				t.Errorf("%s: %q is missing:\n%s", path, want, body)
			}
		}
	}
	if _, body, _ := w.get("/lock?name=deploy/shop"); !strings.Contains(body, `<rect class="broken"`) {
		t.Error("the break is not in the picture")
	}
	if _, body, _ := w.get("/history?q=other"); strings.Contains(body, "deploy/") {
		t.Error("a filter lets others through")
	}
}

// Thousands of rows come in pages of a hundred, filtered and sorted by the server.
func TestPages(t *testing.T) {
	w := newSite(t, nil)
	for i := range 250 {
		w.hold(fmt.Sprintf("a/%03d", i))
	}
	w.hold("b/1")
	rows := regexp.MustCompile(`<tr id="n-([^"]*)"`)
	path, seen := "/?sort=name", map[string]bool{}
	for n := 0; path != ""; n++ {
		_, body, _ := w.get(path)
		for _, m := range rows.FindAllStringSubmatch(body, -1) {
			if seen[m[1]] {
				t.Errorf("%s is on two pages", m[1])
			}
			seen[m[1]] = true
		}
		path = ""
		if m := regexp.MustCompile(`rel="next" href="\./([^"]*)"`).FindStringSubmatch(body); m != nil {
			path = "/" + strings.ReplaceAll(m[1], "&amp;", "&")
		}
		if n > 5 {
			t.Fatal("pages without end")
		}
	}
	if len(seen) != 251 {
		t.Errorf("%d of 251 locks are on the pages", len(seen))
	}
	_, body, _ := w.get("/?q=b/")
	if got := rows.FindAllString(body, -1); len(got) != 1 {
		t.Errorf("%d rows begin with b/, want 1", len(got))
	}
	if _, body, _ := w.get("/?q=zzz"); !strings.Contains(body, "No lock is like that") {
		t.Error("nothing is said where nothing fits")
	}
}

// All viewers share one list.
func TestOneList(t *testing.T) {
	w := newSite(t, nil)
	w.hold("a")
	done := make(chan int)
	for range 50 {
		go func() {
			r, err := http.Get(w.server.URL + "/")
			if err != nil {
				done <- 0
				return
			}
			r.Body.Close()
			done <- r.StatusCode
		}()
	}
	for range 50 {
		if got := <-done; got != 200 {
			t.Errorf("status %d", got)
		}
	}
	if n := w.store.lists.Load(); n > 5 { // one a second: on a slow machine the viewers take some
		t.Errorf("50 viewers have listed the store %d times", n)
	}
}

// A lock that was taken for a time has ended when that is over: nobody has died.
func TestEnded(t *testing.T) {
	w := newSite(t, nil)
	if _, err := w.locks.AcquireFor(t.Context(), "cron", time.Second); err != nil {
		t.Fatal(err)
	}
	locks := ""
	for until := time.Now().Add(time.Minute); !strings.Contains(locks, `class="state ended"`); _, locks, _ = w.get("/") {
		if time.Now().After(until) {
			t.Fatalf("it has not ended: %s", locks)
		}
	}
	if strings.Contains(locks, `class="bad"`) {
		t.Error("it counts as trouble")
	}
	if _, hosts, _ := w.get("/hosts"); strings.Contains(hosts, "dead") {
		t.Error("its host is shown as dead")
	}
}

// A store that does not answer is said aloud, with what was known last and how old that is.
func TestStoreGone(t *testing.T) {
	w := newSite(t, nil)
	w.hold("nightly")
	w.get("/")
	w.store.cut.Store(true)
	for {
		if status, body, _ := w.get("/"); strings.Contains(body, "does not answer") {
			if status != 200 || !strings.Contains(body, "nightly") || !strings.Contains(body, "was read") {
				t.Errorf("status %d:\n%s", status, body)
			}
			return
		}
		select {
		case <-time.After(100 * time.Millisecond): // the last list is good for a second
		case <-t.Context().Done():
			t.Fatal("the page never says that the store is gone")
		}
	}
}

// Mounted below a prefix every link leads below it.
func TestPrefix(t *testing.T) {
	w := newSite(t, &page.Options{Prefix: "/locks", Doctor: doctor})
	w.hold("a")
	links := regexp.MustCompile(`(?:href|src|action|data-events)="([^"]*)"`)
	seen := map[string]bool{}
	for _, screen := range screens {
		status, body, _ := w.get("/locks" + screen)
		if status != 200 {
			t.Errorf("%s: status %d", screen, status)
		}
		for _, m := range links.FindAllStringSubmatch(body, -1) {
			if !strings.HasPrefix(m[1], "/locks/") && !strings.HasPrefix(m[1], "./") && !strings.HasPrefix(m[1], "#") {
				t.Errorf("%s: link to %q", screen, m[1])
			}
			if at, ok := strings.CutPrefix(m[1], "/locks/"); ok && !seen[at] && at != "events" && at != "break" {
				seen[at] = true
				if status, _, _ := w.get("/locks/" + strings.ReplaceAll(at, "&amp;", "&")); status != 200 {
					t.Errorf("%s: %q gives %d", screen, at, status)
				}
			}
		}
	}
	if _, body, _ := w.get("/locks"); !strings.Contains(body, "held") {
		t.Error("the prefix itself leads nowhere")
	}
}

// A viewer who is not let in gets the login page, and nothing else but the sheet.
func TestLogin(t *testing.T) {
	keys := make(chan string, 9)
	w := newSite(t, &page.Options{Store: "postgres://secret.example/", Viewer: func(*http.Request) page.Viewer { return page.Viewer{Denied: true} },
		Login: func(rw http.ResponseWriter, r *http.Request, key string) bool {
			keys <- key
			if key != "right" {
				return false
			}
			http.Redirect(rw, r, "/"+r.PostFormValue("to"), http.StatusSeeOther)
			return true
		}})
	w.hold("confidential")
	for _, path := range append(screens, "/events") {
		_, body, _ := w.get(path)
		if strings.Contains(body, "confidential") || strings.Contains(body, "secret.example") {
			t.Errorf("%s tells what may not be seen:\n%s", path, body)
		}
	}
	if _, body, _ := w.get("/lock?name=conf"); !strings.Contains(body, `name="key"`) || !strings.Contains(body, `value="lock?name=conf"`) {
		t.Error("no login page, or it does not know where the viewer wanted to go")
	}
	if status, body, _ := w.post("/login", url.Values{"key": {"wrong"}}); status != 401 || !strings.Contains(body, "not known") {
		t.Errorf("wrong key: status %d", status)
	}
	if status, _, where := w.post("/login", url.Values{"key": {" right\n"}, "to": {"hosts"}}); status != 303 || where != "/hosts" {
		t.Errorf("right key: status %d to %q", status, where)
	}
	if got := []string{<-keys, <-keys}; got[0] != "wrong" || got[1] != "right" {
		t.Errorf("keys %q", got)
	}
	if status, _, _ := w.post("/break", url.Values{"name": {"confidential"}, "token": {"1"}, "reason": {"x"}}); status != 403 {
		t.Errorf("break: status %d", status)
	}
}

// Text has a contrast of 5:1 at least to what it stands on, in both palettes.
func TestContrast(t *testing.T) {
	sheet, err := os.ReadFile("holdfast.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, ok := strings.Cut(string(sheet), "prefers-color-scheme: dark")
	if !ok {
		t.Fatal("no dark palette")
	}
	dark, _, _ = strings.Cut(dark, "--shadow: none; } }")
	pairs := [][2]string{{"ink", "bg"}, {"ink", "panel"}, {"ink", "sunk"}, {"ink-2", "bg"}, {"ink-2", "panel"}, {"ink-2", "sunk"}, {"ink-3", "panel"}, {"ink-3", "bg"},
		{"wait", "panel"}, {"wait", "wait-soft"}, {"bad", "panel"}, {"bad", "bad-soft"}, {"det", "panel"}, {"ink", "accent-soft"}, {"ink", "ok-soft"}, {"accent-ink", "accent"}}
	for palette, text := range map[string]string{"light": light, "dark": dark} {
		colors := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z0-9-]+): #([0-9a-f]{6})`).FindAllStringSubmatch(text, -1) {
			colors[m[1]] = luminance(m[2])
		}
		for _, p := range pairs {
			a, b := colors[p[0]], colors[p[1]]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 5 || colors[p[0]] == colors[p[1]] {
				t.Errorf("%s: %s on %s has a contrast of %.2f, want 5", palette, p[0], p[1], ratio)
			}
		}
	}
}

// luminance is the relative luminance of WCAG 2.
func luminance(hex string) float64 {
	n, _ := strconv.ParseUint(hex, 16, 32)
	part := func(v uint64) float64 {
		c := float64(v&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(n>>16) + 0.7152*part(n>>8) + 0.0722*part(n)
}
