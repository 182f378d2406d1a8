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
)

// Kind is a MySQL or MariaDB store by its URL: mysql://app@db.example/shop?prefix=NAME&socket=PATH.
// The other settings are those of the driver. The password may be in MYSQL_PWD.
var Kind = &driver.Kind{
	Name: "mysql", Schemes: []string{"mysql"}, Form: "mysql://…", Example: "mysql://app@db.example/shop",
	Server: true, Settings: []string{"allow", "prefix", "socket"}, Secrets: []string{"MYSQL_PWD"},
	Open: func(ctx context.Context, at *driver.Location) (driver.Store, func() error, error) {
		db, limit, err := poolOf(at)
		if err != nil {
			return nil, nil, err
		}
		var s *Store
		err = reach.InTime(ctx, limit, func(ctx context.Context) error {
			s, err = New(ctx, db, optionsOf(at))
			return err
		})
		if err != nil {
			db.Close()
			return nil, nil, err
		}
		return s, reach.Parting(s.Close, db.Close), nil
	},
	Schema:  func(at *driver.Location) (string, error) { return Schema(optionsOf(at)) },
	Migrate: func(ctx context.Context, at *driver.Location) error { return withPool(ctx, at, Migrate) },
	Verify:  func(ctx context.Context, at *driver.Location) error { return withPool(ctx, at, Verify) },
	Grants:  grants,
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
}

func optionsOf(at *driver.Location) *Options {
	return &Options{Prefix: at.Prefix, Allow: at.Allow, ReadOnly: at.ReadOnly}
}

// configOf is the URL in the driver's words, which knows no URLs.
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

// poolOf connects to nothing yet. limit is how long the server may take to do
// so and to answer; of the driver's timeout that is only the connection's part.
func poolOf(at *driver.Location) (db *sql.DB, limit time.Duration, err error) {
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

func withPool(ctx context.Context, at *driver.Location, do func(context.Context, *sql.DB, *Options) error) error {
	db, limit, err := poolOf(at)
	if err != nil {
		return err
	}
	defer db.Close()
	// The driver's timeout is not for the server's greeting.
	if err := reach.InTime(ctx, limit, db.PingContext); err != nil {
		return err
	}
	return do(ctx, db, optionsOf(at))
}
