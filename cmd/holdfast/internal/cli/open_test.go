package cli

import (
	"strings"
	"testing"
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
		got, err := ParseStore(in)
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
		if _, err := ParseStore(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
}
