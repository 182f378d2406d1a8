package mysql

import (
	"database/sql"
	"net/url"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// A way is how a test reaches the store.
type way struct {
	dsn    string // parameters
	conns  int    // SetMaxOpenConns
	prefix string
	change func(sqlstore.Facts) // what it knows of the server
}

// connect is a pool for a database by its URL.
func connect(t testing.TB, target string, w way) *sql.DB {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.ParseDSN("tcp(" + u.Host + ")" + u.Path + "?" + w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(w.conns)
	t.Cleanup(func() { db.Close() })
	return db
}

// A handle is a store that a test can open once more, over a pool of its own.
type handle struct {
	*Store
	url string
	way way
}

func (h handle) Reopen(t *testing.T) driver.Store { return open(t, h.url, h.way).Store }

func open(t testing.TB, target string, w way) handle {
	t.Helper()
	s, err := newStore(t.Context(), connect(t, target, w), Options{Prefix: w.prefix}, w.change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return handle{s, target, w}
}

// fresh is a store in a new database.
func fresh(t testing.TB, w way) handle {
	t.Helper()
	target := servers.MySQL(t, nil).Database(t)
	if err := Migrate(t.Context(), connect(t, target, w), &Options{Prefix: w.prefix}); err != nil {
		t.Fatal(err)
	}
	return open(t, target, w)
}

var ways = map[string]way{
	"defaults":       {},
	"as on MySQL":    {change: func(s sqlstore.Facts) { s["mariadb"] = "" }},
	"READ COMMITTED": {dsn: "tx_isolation=" + url.QueryEscape("'READ-COMMITTED'"), prefix: "other_"},
	"two connections, found rows, odd settings": {
		conns: 2,
		dsn: "clientFoundRows=true&interpolateParams=true&parseTime=true&loc=Europe%2FBerlin&autocommit=0" +
			"&time_zone=" + url.QueryEscape("'+05:30'") + "&sql_mode=" + url.QueryEscape("'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"),
	},
}

func TestStore(t *testing.T) {
	t.Parallel()
	for name, w := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.Run(t, func(t *testing.T) driver.Store { return fresh(t, w) })
		})
	}
}

// A binary log changes how statements are locked and committed.
func TestStoreWithBinaryLog(t *testing.T) {
	t.Parallel()
	server := servers.MySQL(t, &servers.Options{Settings: []string{"log-bin=log", "sync-binlog=1", "binlog-format=mixed"}})
	if !server.Own {
		t.Skip("the settings of this server are not ours")
	}
	fresh := func(t *testing.T) handle {
		target := server.Database(t)
		if err := Migrate(t.Context(), connect(t, target, way{}), nil); err != nil {
			t.Fatal(err)
		}
		return open(t, target, way{})
	}
	drivertest.Run(t, func(t *testing.T) driver.Store { return fresh(t) })
	s := fresh(t)
	db := application(t, s, "")
	for form, fence := range fences {
		hold(t, s, form, `{"holders":[{"session":"a","nr":1,"slots":1,"token":7,"n":3}]}`)
		tx := begin(t, db)
		if _, err := tx.Exec(`insert into orders (paid) values ('yes')`); err != nil {
			t.Fatal(err)
		}
		if err := fence(t.Context(), tx, form, 8); err != nil {
			t.Errorf("%s: %v", form, err)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("%s: %v", form, err)
		}
	}
}

func TestClients(t *testing.T) {
	t.Parallel()
	clienttest.Run(t, func(t *testing.T) driver.Store { return fresh(t, way{}) })
}

func tables(t *testing.T, prefix string) sqlstore.Tables {
	t.Helper()
	tables, err := sqlstore.NewTables("", prefix)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}
