package command

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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
		"postgre://db/shop":                  `unknown store "postgre": one of sqlite:PATH, dir:PATH, postgres://…, mysql://…, cassandra://…, etcd://…, spanner://…, memory:`,
		"postgres:host=db dbname=shop":       "as in postgres://app@db.example/shop",
		"sqlite:":                            "needs a path",
		"sqlite:app.db?schema=x":             `unknown setting "schema"`,
		"dir:":                               "dir: needs a path: dir:/srv/locks",
		"dir://":                             "dir: needs a path: dir:/srv/locks",
		"dir:/srv/locks?prefix=x":            `dir: unknown setting "prefix" in --store: allow is the only one`,
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

func TestPostgresConfig(t *testing.T) {
	for _, name := range []string{"PGHOST", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGPASSFILE"} {
		t.Setenv(name, "")
	}
	target, err := parseStore("postgres://me%40corp:p%25w%3D@db:5433/shop?schema=locks&sslmode=disable&statement_timeout=9s&pool_max_conns=7")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := target.postgresPool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c := pool.Config()
	if c.ConnConfig.User != "me@corp" || c.ConnConfig.Password != "p%w=" || c.ConnConfig.Host != "db" || c.ConnConfig.Port != 5433 || c.ConnConfig.Database != "shop" {
		t.Errorf("got %s, %s, %s, %d, %s", c.ConnConfig.User, c.ConnConfig.Password, c.ConnConfig.Host, c.ConnConfig.Port, c.ConnConfig.Database)
	}
	if got := c.ConnConfig.RuntimeParams; len(got) != 2 || got["statement_timeout"] != "9s" || got["application_name"] != "holdfast" {
		t.Errorf("the server is told %v", got)
	}
	if c.MaxConns != 7 || c.MinConns != 0 || c.ConnConfig.ConnectTimeout != 10*time.Second || c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeExec {
		t.Errorf("got %+v", c)
	}
	if o := target.postgresOptions(); o.Schema != "locks" || o.Prefix != "" || o.Allow != nil {
		t.Errorf("got options %+v", o)
	}
	// A password from a file, as psql has it.
	t.Setenv("PGPASSFILE", writeFile(t, "pass", "db:5432:shop:ana:from the file\n"))
	target, err = parseStore("postgres://ana@db/shop?connect_timeout=3&default_query_exec_mode=cache_describe&application_name=x")
	if err != nil {
		t.Fatal(err)
	}
	pool, err = target.postgresPool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c = pool.Config()
	if c.ConnConfig.Password != "from the file" || c.MaxConns != maxConns || c.ConnConfig.ConnectTimeout != 3*time.Second ||
		c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe || c.ConnConfig.RuntimeParams["application_name"] != "x" {
		t.Errorf("got %+v", c.ConnConfig)
	}
	// A service of one's own file.
	t.Setenv("PGSERVICEFILE", writeFile(t, "services", "[shop]\nhost=elsewhere\nuser=bob\npassword=hunter2\ndbname=shop\n"))
	target, err = parseStore("postgres://?service=shop")
	if err != nil {
		t.Fatal(err)
	}
	if pool, err = target.postgresPool(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if c := pool.Config().ConnConfig; c.Host != "elsewhere" || c.User != "bob" || c.Password != "hunter2" {
		t.Errorf("got %s, %s", c.Host, c.User)
	}
}

func TestMySQLConfig(t *testing.T) {
	t.Setenv("MYSQL_PWD", "of the environment")
	for in, want := range map[string]string{
		"mysql://app:p%25w%2F@db/shop?readTimeout=3s":       "app p%w/ tcp db:3306 shop",
		"mysql://app@db:3307/shop":                          "app of the environment tcp db:3307 shop",
		"mysql://app:@[::1]/shop":                           "app  tcp [::1]:3306 shop",
		"mysql://app@[::1]:3308/a%2Fb?loc=Europe/Berlin":    "app of the environment tcp [::1]:3308 a/b",
		"mysql://app@/shop?socket=/run/mysqld/mysqld.sock":  "app of the environment unix /run/mysqld/mysqld.sock shop",
		"mysql://app@h/shop?socket=%2Frun%2Fmy.sock&tls=no": "",
	} {
		target, err := parseStore(in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := target.mysqlConfig()
		if want == "" {
			if err == nil {
				t.Errorf("%s: no error", in)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := strings.Join([]string{c.User, c.Passwd, c.Net, c.Addr, c.DBName}, " "); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
		if !c.InterpolateParams || c.Timeout != 10*time.Second {
			t.Errorf("%s: got %+v", in, c)
		}
	}
	for in, want := range map[string]string{
		"mysql://app@db":                                "names no database",
		"mysql://app@db/shop?password=hunter2":          "MYSQL_PWD",
		"mysql://app@db/shop?tls=hunter2":               "the settings of mysql://app@db/shop cannot be used: ",
		"mysql://app@db/shop?timeout=soon":              "the settings of mysql://app@db/shop cannot be used: ",
		"mysql://app@db/shop?tls=true&serverPubKey=x&y": "the settings of mysql://app@db/shop cannot be used: ",
	} {
		target, err := parseStore(in)
		if err == nil {
			_, err = target.mysqlConfig()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	// The name that a certificate must have is that of the URL.
	target, err := parseStore("mysql://app@db.example/shop?tls=true")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := target.mysqlConfig(); err != nil || c.TLS == nil || c.TLS.ServerName != "db.example" || c.TLS.InsecureSkipVerify {
		t.Errorf("got %+v, %v", c, err)
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
		said := redactURL("dial " + in + ": refused")
		if in == "hunter2" || strings.Contains(in, "%77") || strings.Contains(in, "%zz") || strings.Contains(in, "token") {
			said = "" // only by its target
		}
		target, err := parseStore(in)
		if err == nil {
			said += " " + target.String() + " " + target.redact(in)
			for _, secret := range target.secrets {
				plain, _ := url.PathUnescape(secret)
				said += target.redact(" they said " + secret + " or " + plain)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err = target.open(ctx, target)
			if err == nil {
				t.Fatalf("%s could be opened", in)
			}
			d := &checkup{}
			d.fail("store", "%s: %s", target, target.redact(cause(err)))
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
	if got := target.redact(`password authentication failed for user "app"`); err != nil || !strings.Contains(got, `"app"`) {
		t.Errorf("got %s, %v", got, err)
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
