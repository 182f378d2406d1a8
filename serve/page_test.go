package serve

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// The page is behind the same door as the API: a key logs in, for as long as its line stands, and
// shows what the line allows.
func TestPage(t *testing.T) {
	secret, hash := access.NewSecret()
	blind, blindHash := access.NewSecret()
	tokens := t.TempDir() + "/tokens"
	var lines []string
	for _, l := range [][]string{{"ana", hash, "look,break", "deploy/"}, {"ci", blindHash, "take", "*"}} {
		line, err := access.TokenLine(l[0], l[1], l[2], l[3:])
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := os.WriteFile(tokens, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := access.Open(tokens, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.New(memory.New(), &holdfast.Options{RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	mine, err := client.Acquire(t.Context(), "deploy/shop")
	if err != nil {
		t.Fatal(err)
	}
	other, err := client.Acquire(t.Context(), "payroll")
	if err != nil {
		t.Fatal(err)
	}
	shown := NewPage(client, list, nil)
	defer shown.Close()
	server := httptest.NewServer(New(client, &Options{Access: list, Page: shown}))
	defer server.Close()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	text := func(r *http.Response, err error) (int, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
	if status, body := text(browser.Get(server.URL + "/hosts")); status != 200 || !strings.Contains(body, `name="key"`) || strings.Contains(body, "deploy") {
		t.Fatalf("without a key: status %d:\n%s", status, body)
	}
	for _, wrong := range []string{"", "hf_wrong", blind} {
		if status, _ := text(browser.PostForm(server.URL+"/login", url.Values{"key": {wrong}})); status != 401 {
			t.Errorf("key %.6q: status %d, want 401", wrong, status)
		}
	}
	status, _ := text(browser.PostForm(server.URL+"/login", url.Values{"key": {secret}, "to": {"//evil.example"}}))
	if status != 404 { // a path of this server, and none that there is
		t.Errorf("a login that leads away: status %d", status)
	}
	if status, body := text(browser.Get(server.URL + "/")); status != 200 || !strings.Contains(body, "deploy/") || strings.Contains(body, "payroll") || !strings.Contains(body, "ana") {
		t.Errorf("ana sees with status %d:\n%s", status, body)
	}
	if status, _ := text(browser.PostForm(server.URL+"/break", url.Values{"name": {"payroll"}, "token": {strconv.FormatInt(other.Token(), 10)}, "reason": {"x"}})); status != 403 || other.Err() != nil {
		t.Errorf("a break beyond the prefix: status %d, the lock %v", status, other.Err())
	}
	if status, _ := text(browser.PostForm(server.URL+"/settings", url.Values{"ttl": {"20"}})); status != 403 {
		t.Errorf("a setting without the verb: status %d", status)
	}
	go func() { <-mine.Context().Done(); mine.Release(t.Context()) }()
	if status, body := text(browser.PostForm(server.URL+"/break", url.Values{"name": {"deploy/shop"}, "token": {strconv.FormatInt(mine.Token(), 10)}, "reason": {"ticket 815"}})); status != 200 || !strings.Contains(body, ">ticket 815</td>") || !strings.Contains(body, "<td>ana@") {
		t.Errorf("a break: status %d:\n%s", status, body)
	}
	if status, body := text(browser.PostForm(server.URL+"/logout", nil)); status != 200 || !strings.Contains(body, `name="key"`) {
		t.Errorf("after logging out: status %d", status)
	}
	if status, body := text(browser.Get(server.URL + "/")); strings.Contains(body, "deploy") {
		t.Errorf("after logging out the page shows locks: status %d", status)
	}
}
