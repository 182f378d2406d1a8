package postgres

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/reach"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Kind is a PostgreSQL store by its URL: postgres://app@db.example/shop?schema=NAME&prefix=NAME.
// What the URL leaves out may be in the environment and the files that psql reads: PGPASSFILE,
// PGSERVICE and so on.
var Kind = server.Kind(&driver.Kind{
	Schemes: []string{"postgres", "postgresql"}, Form: "postgres://…", Example: "postgres://app@db.example/shop",
	Settings: []string{"allow", "schema", "prefix"}, Secrets: []string{"PGPASSWORD"},
	Reach: func(err error) driver.Reach {
		var way *pgconn.ConnectError
		var server *pgconn.PgError
		answered, connecting := errors.As(err, &server), errors.As(err, &way)
		switch {
		case answered && connecting:
			return driver.NotLetIn
		case answered:
			return driver.Answered
		case connecting:
			return driver.Unreachable
		}
		return driver.Unknown
	},
	Explain: explain,
})

var server = &sqlstore.Server[*pgxpool.Pool, *pgx.Conn]{
	Name: "postgres", Version: schemaVersion,
	Options: func(at *driver.Location) func() (sqlstore.Tables, error) { return optionsOf(at).tables },
	Pool:    poolOf,
	Leave:   leave,
	New: func(ctx context.Context, pool *pgxpool.Pool, at *driver.Location) (sqlstore.Closer, error) {
		return New(ctx, pool, optionsOf(at))
	},
	Quote: `"`, Fence: "select {fence}(:name, :token)", Texts: texts, Script: script, Verify: verify, Run: run,
	Use: func(ctx context.Context, pool *pgxpool.Pool, _ sqlstore.Tables, f func(*pgx.Conn) error) error {
		return pooled(ctx, pool, f)
	},
}

func optionsOf(at *driver.Location) *Options {
	return &Options{Schema: at.Schema, Prefix: at.Prefix, Allow: at.Allow, ReadOnly: at.ReadOnly}
}

// poolOf connects to nothing yet. limit is the time to connect to each of the hosts and to answer.
func poolOf(ctx context.Context, at *driver.Location) (pool *pgxpool.Pool, limit time.Duration, err error) {
	u := "postgres://"
	if at.HasUser {
		u += at.User
		if at.HasPassword {
			u += ":" + at.Password
		}
		u += "@"
	}
	config, err := pgxpool.ParseConfig(u + at.Host + at.Database + "?" + at.Query)
	if err != nil {
		var parse *pgconn.ParseConfigError
		if errors.As(err, &parse) { // it repeats the whole URL
			text := err.Error()
			err = errors.New("")
			if i := strings.LastIndex(text, "`: "); i >= 0 {
				err = errors.New(text[i+len("`: "):])
			}
		}
		return nil, 0, at.BadSettings(err)
	}
	if !at.Sets("pool_max_conns") {
		config.MaxConns = reach.MaxConns
	}
	if !at.Sets("default_query_exec_mode") {
		// One round trip: few statements of a command run twice.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = reach.Patience
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "holdfast"
	}
	pool, err = pgxpool.NewWithConfig(ctx, config)
	return pool, config.ConnConfig.ConnectTimeout * time.Duration(2+len(config.ConnConfig.Fallbacks)), err
}

// leave closes a pool, which waits for all its connections.
func leave(pool *pgxpool.Pool) error {
	return reach.Parting(func() error { pool.Close(); return nil })()
}

// explain leaves out what repeats the URL in a connection error.
func explain(err error) string {
	var way *pgconn.ConnectError
	if !errors.As(err, &way) {
		return strings.TrimPrefix(err.Error(), "postgres: ")
	}
	var refused *pgconn.PgError
	var lookup *net.DNSError
	var op *net.OpError
	switch err := way.Unwrap(); {
	case errors.As(err, &refused):
		return refused.Message
	case errors.As(err, &lookup):
		return lookup.Error()
	case errors.As(err, &op):
		return op.Error()
	case pgconn.Timeout(err):
		return (&reach.Timeout{Limit: way.Config.ConnectTimeout, Err: err}).Error()
	default:
		return err.Error()
	}
}
