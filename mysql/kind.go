package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/printable"
	"github.com/holdfast-lock/holdfast/internal/reach"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Kind is a MySQL or MariaDB store by its URL: mysql://app@db.example/shop?prefix=NAME&socket=PATH.
// The other settings are those of the driver. The password may be in MYSQL_PWD.
var Kind = server.Kind(&driver.Kind{
	Schemes: []string{"mysql"}, Form: "mysql://…", Example: "mysql://app@db.example/shop",
	Settings: []string{"allow", "prefix", "socket"}, Secrets: []string{"MYSQL_PWD"},
	Reach: func(err error) driver.Reach {
		var server *mysql.MySQLError
		switch {
		case errors.Is(err, mysql.ErrInvalidConn):
			return driver.Unreachable
		case !errors.As(err, &server):
			return driver.Unknown
		}
		switch server.Number {
		case 1040, 1044, 1045, 1049, 1129, 1130, 1203, 1698:
			return driver.NotLetIn // too many, denied, no such database, blocked
		}
		return driver.Answered
	},
})

var server = &sqlstore.Server[*sql.DB, *lane]{
	Name: "mysql", Version: schemaVersion,
	Options: func(at *driver.Location) func() (sqlstore.Tables, error) { return optionsOf(at).tables },
	Pool:    poolOf,
	Ready:   func(ctx context.Context, db *sql.DB) error { return db.PingContext(ctx) }, // the driver's timeout does not cover the greeting
	Leave:   (*sql.DB).Close,
	New: func(ctx context.Context, db *sql.DB, at *driver.Location) (sqlstore.Closer, error) {
		return New(ctx, db, optionsOf(at))
	},
	Quote: "`", Fence: "call {fence}(:name, :token)", Texts: texts, Role: roleOf, Script: script, Use: alone, Lock: lock, Run: run,
	Verify: func(ctx context.Context, l *lane, t sqlstore.Tables) (int64, error) {
		found, err := ask(ctx, l, t)
		if err != nil {
			return -1, err
		}
		return found.Int("schema"), verify(ctx, l, t, found)
	},
}

func optionsOf(at *driver.Location) *Options {
	return &Options{Prefix: at.Prefix, Allow: at.Allow, ReadOnly: at.ReadOnly}
}

// configOf translates the URL for the driver, which knows no URLs.
func configOf(at *driver.Location) (*mysql.Config, error) {
	network, addr := "tcp", at.Host
	if _, _, err := net.SplitHostPort(at.Host); err != nil {
		addr = net.JoinHostPort(cmp.Or(strings.Trim(at.Host, "[]"), "127.0.0.1"), "3306")
	}
	if at.Socket != "" {
		network, addr = "unix", at.Socket
	}
	config, err := mysql.ParseDSN(network + "(" + addr + ")/?" + strings.ReplaceAll(at.Query, "/", "%2F"))
	if err != nil {
		return nil, at.BadSettings(err)
	}
	for key := range config.Params {
		if driver.IsSecret(key) {
			return nil, driver.BadURL("mysql: the password stands behind the user, or in MYSQL_PWD, not in %s=", printable.Quote(key))
		}
	}
	config.User, _ = url.PathUnescape(at.User)
	config.Passwd, _ = url.PathUnescape(at.Password)
	config.DBName, _ = url.PathUnescape(strings.TrimPrefix(at.Database, "/"))
	if config.DBName == "" {
		return nil, driver.BadURL("%s names no database: write it as in %s", at, at.Kind.Example)
	}
	if config.User == "" {
		if u, err := user.Current(); err == nil {
			config.User = u.Username
		}
	}
	if !at.HasPassword {
		config.Passwd = os.Getenv("MYSQL_PWD")
	}
	if !at.Sets("timeout") {
		config.Timeout = reach.Patience
	}
	if !at.Sets("interpolateParams") {
		config.InterpolateParams = true // one round trip: few statements of a command run twice
	}
	if !at.Sets("connectionAttributes") {
		config.ConnectionAttributes = "program_name:holdfast"
	}
	config.Logger = &mysql.NopLogger{} // errors report what goes wrong
	return config, nil
}

// poolOf connects to nothing yet. limit is how long the server may take to accept
// a connection and to answer; the driver's timeout only covers the connection.
func poolOf(_ context.Context, at *driver.Location) (db *sql.DB, limit time.Duration, err error) {
	config, err := configOf(at)
	if err != nil {
		return nil, 0, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, 0, at.BadSettings(err)
	}
	db = sql.OpenDB(connector)
	db.SetMaxOpenConns(reach.MaxConns)
	db.SetMaxIdleConns(reach.MaxConns)
	return db, config.Timeout, nil
}
