package command

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-lock/holdfast/postgres"
)

var postgresKind = kind{
	example:  "postgres://app@db.example/shop",
	server:   true,
	settings: []string{"allow", "schema", "prefix"},
	open: func(ctx context.Context, t target) (handle, error) {
		pool, err := t.postgresPool(ctx)
		if err != nil {
			return handle{}, err
		}
		var s *postgres.Store
		cc := pool.Config().ConnConfig
		// To connect, to each of its hosts, and to answer.
		err = inTime(ctx, cc.ConnectTimeout*time.Duration(2+len(cc.Fallbacks)), func(ctx context.Context) error {
			s, err = postgres.New(ctx, pool, t.postgresOptions())
			return err
		})
		if err != nil {
			leave(pool)
			return handle{}, err
		}
		return handle{s, parting(s.Close, func() error { return leave(pool) })}, nil
	},
	schemaText: func(t target) (string, error) { return postgres.Schema(t.postgresOptions()) },
	migrate: func(ctx context.Context, t target) error {
		return t.withPostgres(ctx, postgres.Migrate)
	},
	verify: func(ctx context.Context, t target) error {
		return t.withPostgres(ctx, postgres.Verify)
	},
}

func (t target) postgresOptions() *postgres.Options {
	return &postgres.Options{Schema: t.schema, Prefix: t.prefix, Allow: t.allow}
}

// postgresPool connects to nothing yet. What the URL does not say, the
// environment and the files that psql reads may: PGPASSFILE, PGSERVICE and so on.
func (t target) postgresPool(ctx context.Context) (*pgxpool.Pool, error) {
	a := t.address
	u := "postgres://"
	if a.named {
		u += a.user
		if a.secret {
			u += ":" + a.password
		}
		u += "@"
	}
	config, err := pgxpool.ParseConfig(u + a.host + a.path + "?" + a.query)
	if err != nil {
		var parse *pgconn.ParseConfigError
		text := err.Error()
		if errors.As(err, &parse) { // it repeats the whole URL
			_, text, _ = cutLast(text, "`: ")
		}
		return nil, usage("the settings of %s cannot be used: %s", t, t.redact(text))
	}
	if !a.sets("pool_max_conns") {
		config.MaxConns = maxConns
	}
	if !a.sets("default_query_exec_mode") {
		// One round trip: few statements of a command run twice.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = patience
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "holdfast"
	}
	return pgxpool.NewWithConfig(ctx, config)
}

func (t target) withPostgres(ctx context.Context, do func(context.Context, *pgxpool.Pool, *postgres.Options) error) error {
	pool, err := t.postgresPool(ctx)
	if err != nil {
		return err
	}
	defer leave(pool)
	return do(ctx, pool, t.postgresOptions())
}

// leave closes a pool, which waits for all its connections.
func leave(pool *pgxpool.Pool) error {
	return parting(func() error { pool.Close(); return nil })()
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
