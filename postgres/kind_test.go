package postgres

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"

	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/reach"
	storeurl "github.com/holdfast-lock/holdfast/open"
	"github.com/jackc/pgx/v5"
)

// at understands a URL of a store.
func at(in string) (*driver.Location, error) { return storeurl.Parse(in, Kind) }

func TestURL(t *testing.T) {
	for _, name := range []string{"PGHOST", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGPASSFILE"} {
		t.Setenv(name, "")
	}
	target, err := at("postgres://me%40corp:p%25w%3D@db:5433/shop?schema=locks&sslmode=disable&statement_timeout=9s&pool_max_conns=7")
	if err != nil {
		t.Fatal(err)
	}
	pool, _, err := poolOf(t.Context(), target)
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
	if o := optionsOf(target); o.Schema != "locks" || o.Prefix != "" || o.Allow != nil {
		t.Errorf("got options %+v", o)
	}
	// A password from a file, as psql has it.
	t.Setenv("PGPASSFILE", writeFile(t, "pass", "db:5432:shop:ana:from the file\n"))
	target, err = at("postgres://ana@db/shop?connect_timeout=3&default_query_exec_mode=cache_describe&application_name=x")
	if err != nil {
		t.Fatal(err)
	}
	pool, _, err = poolOf(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c = pool.Config()
	if c.ConnConfig.Password != "from the file" || c.MaxConns != reach.MaxConns || c.ConnConfig.ConnectTimeout != 3*time.Second ||
		c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe || c.ConnConfig.RuntimeParams["application_name"] != "x" {
		t.Errorf("got %+v", c.ConnConfig)
	}
	// A service of one's own file.
	t.Setenv("PGSERVICEFILE", writeFile(t, "services", "[shop]\nhost=elsewhere\nuser=bob\npassword=hunter2\ndbname=shop\n"))
	target, err = at("postgres://?service=shop")
	if err != nil {
		t.Fatal(err)
	}
	if pool, _, err = poolOf(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if c := pool.Config().ConnConfig; c.Host != "elsewhere" || c.User != "bob" || c.Password != "hunter2" {
		t.Errorf("got %s, %s", c.Host, c.User)
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
	for _, name := range []string{"PGHOST", "PGUSER", "PGDATABASE", "PGSERVICE", "PGPASSFILE", "PGSERVICEFILE"} {
		f.Setenv(name, "")
	}
	drivertest.FuzzKind(f, Kind, func(at *driver.Location) (string, error) {
		if strings.ContainsAny(at.Query, "%") || strings.Contains(at.Query, "pass") || strings.Contains(at.Query, "service") {
			return "", errors.New("it may name files, or another password")
		}
		pool, _, err := poolOf(context.Background(), at)
		if err != nil {
			return "", err
		}
		defer pool.Close()
		return pool.Config().ConnConfig.Password, nil
	})
}
