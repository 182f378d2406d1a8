package etcd

import (
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"

	"os"
	"path/filepath"
	"strings"
	"testing"

	storeurl "github.com/holdfast-lock/holdfast/open"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestURL(t *testing.T) {
	for _, name := range []string{"ETCD_USER", "ETCD_PASSWORD", "ETCD_PASSWORD_FILE"} {
		t.Setenv(name, "")
	}
	parse := func(in string) (clientv3.Config, error) {
		t.Helper()
		at, err := storeurl.Parse(in, Kind)
		if err != nil {
			t.Fatal(err)
		}
		return configOf(at)
	}
	for in, want := range map[string]string{
		"etcd://db":                                "db:2379",
		"etcd://a,b,c:9999":                        "a:9999 b:9999 c:9999",
		"etcd://a:1,b:2,c:3/?prefix=locks/":        "a:1 b:2 c:3",
		"etcd://app:x@[::1],[::2]:9999?tls=verify": "[::1]:9999 [::2]:9999",
	} {
		at, err := parse(in)
		if got := strings.Join(at.Endpoints, " "); err != nil || got != want {
			t.Errorf("%s: got %s, want %s: %v", in, got, want, err)
		}
	}
	at, err := parse("etcd://me%40corp:p%25w@db?prefix=a/b/")
	if err != nil || at.Username != "me@corp" || at.Password != "p%w" || at.TLS != nil {
		t.Errorf("got %+v: %v", at, err)
	}
	for in, skip := range map[string]bool{"tls=verify": false, "tls=skip-verify": true} {
		at, err := parse("etcd://db?" + in)
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
		if _, err := parse(in); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	t.Setenv("ETCD_USER", "app")
	t.Setenv("ETCD_PASSWORD_FILE", writeFile(t, "password", "of the file\n"))
	if at, err := parse("etcd://db"); err != nil || at.Username != "app" || at.Password != "of the file" {
		t.Errorf("got %+v: %v", at, err)
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The driver is given the password that stands in the URL, however odd it is, and nothing that
// is said shows it.
func FuzzURL(f *testing.F) {
	drivertest.FuzzKind(f, Kind, func(at *driver.Location) (string, error) {
		c, err := configOf(at)
		return c.Password, err
	})
}
