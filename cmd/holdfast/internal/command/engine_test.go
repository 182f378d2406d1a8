package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without the program that has the client the way out is told.
func TestNoEngine(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := parseStore("etcd://app:hunter2@db")
	if err == nil || !strings.Contains(err.Error(), "needs the program holdfast-etcd") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

// A file that cannot be run is not taken for an answer.
func TestEngineNotRun(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if err := os.WriteFile(filepath.Join(dir, "holdfast-etcd"), []byte("\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := parseStore("etcd://db"); err == nil || !strings.Contains(err.Error(), "holdfast-etcd cannot be run") {
		t.Errorf("got %v", err)
	}
}

// A program of the current directory is not run, whatever PATH says: it would find
// the store's password in its environment.
func TestEngineOfTheCurrentDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("TEST", t.Name())
	for _, name := range []string{"holdfast-etcd", "sub/holdfast-etcd"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("#!/bin/sh\necho \"--- FAIL: $TEST: it was run in place of this test\"\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, debug := range []string{"execerrdot=1", "execerrdot=0"} {
		t.Setenv("GODEBUG", debug)
		for _, path := range []string{".", "", ":" + t.TempDir(), t.TempDir() + ":", "./sub", "sub"} {
			t.Setenv("PATH", path)
			_, err := parseStore("etcd://app:hunter2@db")
			if err == nil || !strings.Contains(err.Error(), "needs the program holdfast-etcd") || strings.Contains(err.Error(), "hunter2") ||
				path != "" && !strings.Contains(err.Error(), "that of the current directory is not run") {
				t.Errorf("PATH=%q, GODEBUG=%s: got %v", path, debug, err)
			}
		}
	}
}

func TestEtcdURL(t *testing.T) {
	for _, name := range []string{"ETCD_USER", "ETCD_PASSWORD", "ETCD_PASSWORD_FILE"} {
		t.Setenv(name, "")
	}
	parse := func(in string) target {
		t.Helper()
		target := target{kind: &etcdKind, scheme: "etcd"}
		if err := target.parseServer(strings.TrimPrefix(in, "etcd:")); err != nil {
			t.Fatal(err)
		}
		return target
	}
	for in, want := range map[string]string{
		"etcd://db":                                "db:2379",
		"etcd://a,b,c:9999":                        "a:9999 b:9999 c:9999",
		"etcd://a:1,b:2,c:3/?prefix=locks/":        "a:1 b:2 c:3",
		"etcd://app:x@[::1],[::2]:9999?tls=verify": "[::1]:9999 [::2]:9999",
	} {
		at, err := parse(in).etcdCluster()
		if got := strings.Join(at.Hosts, " "); err != nil || got != want {
			t.Errorf("%s: got %s, want %s: %v", in, got, want, err)
		}
	}
	at, err := parse("etcd://me%40corp:p%25w@db?prefix=a/b/").etcdCluster()
	if err != nil || at.User != "me@corp" || at.Password != "p%w" || at.Prefix != "a/b/" || at.TLS != nil {
		t.Errorf("got %+v: %v", at, err)
	}
	for in, skip := range map[string]bool{"tls=verify": false, "tls=skip-verify": true} {
		at, err := parse("etcd://db?" + in).etcdCluster()
		if err != nil || at.TLS == nil || at.TLS.InsecureSkipVerify != skip {
			t.Errorf("%s: got %+v, error %v", in, at.TLS, err)
		}
	}
	for in, want := range map[string]string{
		"etcd://":                    "names no host",
		"etcd://db/shop":             "no databases in it",
		"etcd://db?password=hunter2": "ETCD_PASSWORD",
		"etcd://db?frob=1":           `unknown setting "frob"`,
		"etcd://db?tls=hunter2":      "tls is verify or skip-verify",
		"etcd://db?ca=/no/such":      "the settings of etcd://db cannot be used: open /no/such: ",
		"etcd://db?ca=/dev/null":     "has no certificate",
		"etcd://db?cert=/dev/null":   "cannot be used: cert and key: ",
	} {
		if _, err := parse(in).etcdCluster(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	t.Setenv("ETCD_USER", "app")
	t.Setenv("ETCD_PASSWORD_FILE", writeFile(t, "password", "of the file\n"))
	if at, err := parse("etcd://db").etcdCluster(); err != nil || at.User != "app" || at.Password != "of the file" {
		t.Errorf("got %+v: %v", at, err)
	}
}
