package postgres

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

const schemaVersion = 1

// Schema returns the statements that create what Holdfast needs, for those who
// run them with a tool of their own. They may be repeated.
func Schema(opts *Options) (string, error) {
	t, err := opts.tables()
	if err != nil {
		return "", fmt.Errorf("postgres: %w", err)
	}
	return t.Expand(schema, `"`), nil
}

// Migrate creates the schema as far as it is missing, in one transaction.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	script, err := Schema(opts)
	if err != nil {
		return err
	}
	err = pooled{pool}.use(ctx, func(c *pgx.Conn) error {
		_, err := c.PgConn().Exec(ctx, script).ReadAll()
		if err != nil && !c.IsClosed() {
			c.Exec(ctx, `rollback`, pgx.QueryExecModeSimpleProtocol)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("postgres: create the schema of %q: %w", opts.orDefault().Prefix, err)
	}
	return nil
}
