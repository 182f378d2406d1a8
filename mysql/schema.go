package mysql

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"

	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

//go:embed schema.sql
var schema string

// Schema returns the statements that create what Holdfast needs, for those who
// run them with a tool of their own. They may be repeated.
func Schema(opts *Options) (string, error) {
	t, err := opts.tables()
	if err != nil {
		return "", fmt.Errorf("mysql: %w", err)
	}
	return t.Expand(schema, "`"), nil
}

// Migrate creates the schema as far as it is missing.
func Migrate(ctx context.Context, db *sql.DB, opts *Options) error {
	script, err := Schema(opts)
	if err != nil {
		return err
	}
	l, err := openLane(ctx, db)
	if err != nil {
		return fmt.Errorf("mysql: %w", err)
	}
	defer l.close()
	for _, q := range sqlstore.Statements(script) {
		if _, err := l.conn.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("mysql: create the schema: %w", err)
		}
	}
	return nil
}
