package command

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

func TestParseStore(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	for in, want := range map[string]string{
		"":                                 "sqlite:/state/holdfast/holdfast.db",
		"sqlite:app.db":                    "sqlite:app.db",
		"sqlite:///srv/app.db?allow=a,b":   "sqlite:/srv/app.db?allow=a,b",
		"memory:":                          "memory:",
		"dir:locks":                        "dir:locks",
		"dir:/srv/locks":                   "dir:/srv/locks",
		"dir:///srv/locks":                 "dir:/srv/locks",
		"dir:../my%20locks":                "dir:../my%20locks",
		"postgres://":                      "postgres://",
		"postgres://app@db/shop":           "postgres://app@db/shop",
		"postgresql://app:x%40y@db:1/shop": "postgresql://app@db:1/shop",
		"postgres://a,b:2/shop?sslmode=disable&schema=locks&prefix=hf_&target_session_attrs=read-write": "postgres://a,b:2/shop?schema=locks&prefix=hf_",
		"postgres:///shop?host=/run/postgresql&password=hunter2":                                        "postgres:///shop?host=/run/postgresql",
		"mysql://app:hunter2@db/shop?socket=/run/x.sock&tls=true&prefix=hf_&allow=x":                    "mysql://app@db/shop?socket=/run/x.sock&prefix=hf_&allow=x",
		"cassandra://app:hunter2@a,b:9999/shop?dc=eu&ca=/x.pem&prefix=hf_&allow=few-replicas":           "cassandra://app@a,b:9999/shop?dc=eu&prefix=hf_&allow=few-replicas",
	} {
		got, err := parseStore(in)
		if err != nil || got.String() != want {
			t.Errorf("%s: got %s, %v, want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"app.db":                             "a store is written SCHEME:",
		"postgre://db/shop":                  `unknown store "postgre": one of sqlite:PATH, dir:PATH, postgres://…, mysql://…, cassandra://…, memory:, etcd://…`,
		"postgres:host=db dbname=shop":       "as in postgres://app@db.example/shop",
		"sqlite:":                            "needs a path",
		"sqlite:app.db?schema=x":             `unknown setting "schema"`,
		"dir:":                               "dir: needs a path: dir:/srv/locks",
		"dir://":                             "dir: needs a path: dir:/srv/locks",
		"dir:/srv/locks?prefix=x":            `dir: unknown setting "prefix" in the URL: allow is the only one`,
		"memory:?x":                          `unknown setting "x"`,
		"postgres://app:pa@ss@db/shop":       "write %40 for @",
		"postgres://app:pa/ss@db/shop":       "%2F for /",
		"postgres://app:100%@db/shop":        "write %25 for %",
		"postgres://app@db/shop?allow=100%x": "write %25 for a %",
	} {
		if _, err := parseStore(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
}

// Whatever is wrong with the URL of a store, or with the store, nothing that is
// said of it has its password.
func TestRedact(t *testing.T) {
	t.Setenv("PGPASSWORD", "hunter2-of-the-environment")
	t.Setenv("MYSQL_PWD", "hunter2-of-the-environment")
	t.Setenv("CASSANDRA_PASSWORD", "hunter2-of-the-environment")
	t.Setenv("PGCONNECT_TIMEOUT", "1")
	for _, in := range []string{
		"postgres://app:hunter2@127.0.0.1:1/shop",
		"postgresql://app:hunter2@127.0.0.1:1/shop",
		"postgres://app:%68unter2@127.0.0.1:1/shop",
		"postgres://app:x%2Fhunter2%40@127.0.0.1:1/shop",
		"postgres://:hunter2@127.0.0.1:1/",
		"postgres://app@127.0.0.1:1/shop?password=hunter2",
		"postgres://app@127.0.0.1:1/shop?password=%68unter2&sslmode=disable",
		"postgres://app@127.0.0.1:1/shop?pass%77ord=hunter2",
		"postgres://app@127.0.0.1:1/shop?sslpassword=hunter2&sslmode=nonsense",
		"postgres://app@127.0.0.1:1/shop?password=hunter2&port=nonsense",
		"postgres://app@127.0.0.1:1/shop?my.secret_token=hunter2",
		"postgres://app:hunter2@127.0.0.1:nonsense/shop",
		"postgres://app:hunter2/with@slash@127.0.0.1:1/shop",
		"postgres://app:1/hunter2@127.0.0.1:1/shop",
		"postgres://app:1?hunter2@127.0.0.1:1/shop",
		"postgres://app:1#hunter2@127.0.0.1:1/shop",
		"postgres://app:hunter2%zz@127.0.0.1:1/shop",
		"postgres://app:hunter2@127.0.0.1:1/shop?allow=%zz",
		"postgres://app:hunter2@127.0.0.1:1/shop?passfile=/no/such&sslrootcert=/no/such&sslmode=verify-full",
		"postgres://app:hunter2@127.0.0.1:1/shop?service=none",
		"postgres:host=127.0.0.1 port=1 password=hunter2",
		"host=127.0.0.1 port=1 user=app password=hunter2 dbname=shop",
		"host=127.0.0.1 password='hunter2 too:' dbname=shop",
		"mysql://app:hunter2@127.0.0.1:1/shop",
		"mysql://app:%68unter2@127.0.0.1:1/shop",
		"mysql://app:hunter2@127.0.0.1:1/",
		"mysql://app:hunter2@127.0.0.1:1/shop?tls=nonsense",
		"mysql://app:hunter2@127.0.0.1:nonsense/shop",
		"mysql://app@127.0.0.1:1/shop?password=hunter2",
		"mysql://app@127.0.0.1:1/shop?passwd=hunter2",
		"mysql://app:hunter2@tcp(127.0.0.1:1)/shop",
		"app:hunter2@tcp(127.0.0.1:1)/shop",
		"cassandra://app:hunter2@127.0.0.1:1/shop",
		"cassandra://app:%68unter2@127.0.0.1:1,127.0.0.2:1/shop",
		"cassandra://app:hunter2@127.0.0.1:nonsense/shop",
		"cassandra://app:hunter2@127.0.0.1:1/",
		"cassandra://app@127.0.0.1:1/shop?password=hunter2",
		"cassandra://app@127.0.0.1:1/shop?key_password=hunter2",
		"cassandra://app:hunter2@127.0.0.1:1/shop?cert=/no/such",
		"hunter2",
		"//app:hunter2@db/shop",
		"postgre://app:hunter2@db/shop",
	} {
		said := driver.Redact("dial " + in + ": refused")
		if in == "hunter2" || strings.Contains(in, "%77") || strings.Contains(in, "%zz") || strings.Contains(in, "token") {
			said = "" // only by its target
		}
		target, err := parseStore(in)
		if err == nil {
			said += " " + target.String() + " " + target.Redact(in)
			for _, secret := range []string{target.Password, "hunter2", "hunter2-of-the-environment"} {
				plain, _ := url.PathUnescape(secret)
				if strings.Contains(in, "hunter2") && secret == "hunter2" && !strings.Contains(in, ":hunter2@") {
					continue
				}
				said += target.Redact(" they said " + secret + " or " + plain)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err = target.open(ctx)
			if err == nil {
				t.Fatalf("%s could be opened", in)
			}
			d := &checkup{}
			d.fail("store", "%s: %s", target, target.cause(err))
			var b strings.Builder
			d.write(&b, true)
			d.write(&b, false)
			err = target.unusable(err, "; nothing was run")
			said += " " + b.String()
			cancel()
		}
		if err == nil {
			t.Fatalf("%s: no error", in)
		}
		said += " " + err.Error()
		for _, secret := range []string{"hunter2", "%68unter2", "unter2"} {
			if strings.Contains(said, secret) {
				t.Errorf("%s: said %s", in, said)
				break
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than a line: %q", in, err)
		}
	}
	// What is shown anyway is no secret: to hide it would tell that it is one.
	target, err := parseStore("postgres://app:app@db/shop")
	if got := target.Redact(`password authentication failed for user "app"`); err != nil || !strings.Contains(got, `"app"`) {
		t.Errorf("got %s, %v", got, err)
	}
}
