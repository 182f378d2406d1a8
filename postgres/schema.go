package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

const schemaVersion = 2

// Schema returns the statements that create what Holdfast needs, for those who
// run them with psql or a tool of their own. They may be repeated.
func Schema(opts *Options) (string, error) {
	t, err := opts.tables()
	if err != nil {
		return "", fmt.Errorf("postgres: %w", err)
	}
	home := "'" + t.Schema + "'"
	if t.Schema == "" {
		home = "coalesce(" + texts()["first"] + ", pg_catalog.current_schema()::pg_catalog.text)"
		t.Schema = "@" // the script puts the name there
	}
	text := strings.ReplaceAll(schema, "{home}", home)
	return full(t, strings.ReplaceAll(text, "{prefix}", t.Prefix)), nil
}

// grants are the statements that let a role take locks, or only look.
func grants(at *driver.Location, role string, readOnly bool) ([]string, error) {
	t, err := optionsOf(at).tables()
	if err != nil {
		return nil, err
	}
	text := texts()["grants"]
	if readOnly {
		text = texts()["grants to look"]
	}
	if t.Schema != "" {
		text = strings.ReplaceAll(texts()["grant usage"], "$schema", sqlstore.Quote(t.Schema, `"`)) + "\n" + text
	}
	return sqlstore.Grants(t, `"`, text, sqlstore.Quote(role, `"`))
}

// locate says where the tables are; if it is not found, in no schema.
func locate(ctx context.Context, c *pgx.Conn, t sqlstore.Tables) (sqlstore.Tables, error) {
	if t.Schema != "" {
		return t, nil
	}
	var schema *string
	err := c.QueryRow(ctx, full(t, `select `+strings.ReplaceAll(texts()["first"], "{prefix}", t.Prefix)), pgx.QueryExecModeExec).Scan(&schema)
	if schema != nil {
		t.Schema = strings.ReplaceAll(*schema, `"`, `""`)
	}
	return t, err
}

// Migrate creates the schema as far as it is missing or of an older version, in
// one transaction. It may be repeated, and by several at once. Where all is there
// it changes nothing. What is there of Holdfast has to belong to the role itself: a
// superuser, too, creates nothing around what another role has made.
//
// A schema of its own is the better place. Where others may create, they may add
// functions with the names of Holdfast's and other arguments, which then are called
// by SQL that does not name its types.
//
// It needs a role that may create in the schema, which will own the tables; and,
// for an Options.Schema that is missing, one that may create it:
//
//	grant usage, create on schema locks to migrator;
//
// A role that takes locks, fences and sweeps needs only what Kind.Grants says, and so does
// one that looks at all of it, with Options.ReadOnly. A role that fences, but takes no locks, and one that looks at
// the view alone need usage on the schema and one of these:
//
//	grant execute on function locks.holdfast_fence(text, bigint), locks.holdfast_fence(bytea, bigint) to writer;
//	grant select on locks.holdfast_locks to dba;
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	script, err := Schema(opts)
	if err != nil {
		return err
	}
	t, err := opts.tables()
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	err = pooled(pool)(ctx, func(c *pgx.Conn) error {
		switch version, err := verify(ctx, c, t); {
		case err == nil:
			return nil
		case version > schemaVersion:
			return err
		}
		_, err := c.PgConn().Exec(ctx, script).ReadAll()
		if err != nil && !c.IsClosed() {
			c.PgConn().Exec(ctx, `rollback`).ReadAll()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("postgres: create the schema of %q: %w", t, err)
	}
	return nil
}
