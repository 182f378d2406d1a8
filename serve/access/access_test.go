package access

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	if !lines[1].principal.MayAll(Look) || lines[0].principal.MayAll(Take) || !lines[4].principal.Verbs.Has(Metrics) {
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
	if _, err := TokenLine("ci", hash, "take", []string{""}); err == nil {
		t.Error("an empty prefix, which a line cannot say")
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
		if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	os.Chmod(path, 0o640)
	var log bytes.Buffer
	list, err := Open(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	as := func(secret string) bool {
		r := httptest.NewRequest("GET", "/v1/config/ttl", nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		p, err := list.Authenticate(r)
		if (p == nil) != (err != nil) {
			t.Errorf("%.10q is %v, %v", secret, p, err)
		}
		return err == nil
	}
	later := func() { list.mu.Lock(); list.looked = time.Time{}; list.mu.Unlock() } // a second has passed
	if !as(one) || as(two) || as(hashOne) || as("") {
		t.Error("who is known")
	}
	writeTokens(t, path, line("two", hashTwo), "# and more")
	later()
	if as(one) || !as(two) {
		t.Error("the file was exchanged")
	}
	writeTokens(t, path, line("two", hashTwo), "nonsense")
	later()
	if !as(two) {
		t.Error("a file that cannot be understood")
	}
	os.Remove(path)
	later()
	if !as(two) {
		t.Error("no file")
	}
	if strings.Contains(log.String(), one) || strings.Contains(log.String(), two) {
		t.Errorf("a secret in the log:\n%s", &log)
	}
}
