package command

import (
	"cmp"
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"os/user"
	"strings"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/holdfast-lock/holdfast/mysql"
)

var mysqlKind = kind{
	example:  "mysql://app@db.example/shop",
	server:   true,
	settings: []string{"allow", "prefix", "socket"},
	open: func(ctx context.Context, t target) (handle, error) {
		db, limit, err := t.mysqlPool()
		if err != nil {
			return handle{}, err
		}
		var s *mysql.Store
		err = inTime(ctx, limit, func(ctx context.Context) error {
			s, err = mysql.New(ctx, db, t.mysqlOptions())
			return err
		})
		if err != nil {
			db.Close()
			return handle{}, err
		}
		return handle{s, parting(s.Close, db.Close)}, nil
	},
	schemaText: func(t target) (string, error) { return mysql.Schema(t.mysqlOptions()) },
	migrate: func(ctx context.Context, t target) error {
		return t.withMySQL(ctx, mysql.Migrate)
	},
	verify: func(ctx context.Context, t target) error {
		return t.withMySQL(ctx, mysql.Verify)
	},
}

func (t target) mysqlOptions() *mysql.Options {
	return &mysql.Options{Prefix: t.prefix, Allow: t.allow}
}

// mysqlConfig is the URL in the driver's words, which knows no URLs.
func (t target) mysqlConfig() (*mysqldriver.Config, error) {
	a := t.address
	network, addr := "tcp", a.host
	if _, _, err := net.SplitHostPort(a.host); err != nil {
		addr = net.JoinHostPort(cmp.Or(strings.Trim(a.host, "[]"), "127.0.0.1"), "3306")
	}
	if t.socket != "" {
		network, addr = "unix", t.socket
	}
	config, err := mysqldriver.ParseDSN(network + "(" + addr + ")/?" + strings.ReplaceAll(a.query, "/", "%2F"))
	if err != nil {
		return nil, usage("the settings of %s cannot be used: %s", t, t.redact(err.Error()))
	}
	for key := range config.Params {
		if secretKey().MatchString(key) {
			return nil, usage("mysql: the password stands behind the user, or in MYSQL_PWD, not in %s=", quote(key))
		}
	}
	config.User, _ = url.PathUnescape(a.user)
	config.Passwd, _ = url.PathUnescape(a.password)
	config.DBName, _ = url.PathUnescape(strings.TrimPrefix(a.path, "/"))
	if config.DBName == "" {
		return nil, usage("%s names no database: write it as in %s", t, t.example)
	}
	if config.User == "" {
		if u, err := user.Current(); err == nil {
			config.User = u.Username
		}
	}
	if !a.secret {
		config.Passwd = os.Getenv("MYSQL_PWD")
	}
	if !a.sets("timeout") {
		config.Timeout = patience
	}
	if !a.sets("interpolateParams") {
		config.InterpolateParams = true // one round trip: few statements of a command run twice
	}
	if !a.sets("connectionAttributes") {
		config.ConnectionAttributes = "program_name:holdfast"
	}
	config.Logger = &mysqldriver.NopLogger{} // what goes wrong is told by errors
	return config, nil
}

// mysqlPool connects to nothing yet. limit is how long the server may take to do
// so and to answer; of the driver's timeout that is only the connection's part.
func (t target) mysqlPool() (db *sql.DB, limit time.Duration, err error) {
	config, err := t.mysqlConfig()
	if err != nil {
		return nil, 0, err
	}
	connector, err := mysqldriver.NewConnector(config)
	if err != nil {
		return nil, 0, usage("the settings of %s cannot be used: %s", t, t.redact(err.Error()))
	}
	db = sql.OpenDB(connector)
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	return db, config.Timeout, nil
}

func (t target) withMySQL(ctx context.Context, do func(context.Context, *sql.DB, *mysql.Options) error) error {
	db, limit, err := t.mysqlPool()
	if err != nil {
		return err
	}
	defer db.Close()
	// The driver's timeout is not for the server's greeting.
	if err := inTime(ctx, limit, db.PingContext); err != nil {
		return err
	}
	return do(ctx, db, t.mysqlOptions())
}
