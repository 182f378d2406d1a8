package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

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
func Schema(opts *Options) (string, error) { return server.Schema(opts.tables) }

func script(t sqlstore.Tables) string {
	home := "'" + t.Schema + "'"
	if t.Schema == "" {
		home = "coalesce(" + texts()["first"] + ", pg_catalog.current_schema()::pg_catalog.text)"
		t.Schema = "@" // the script puts the name there
	}
	text := strings.ReplaceAll(schema, "{home}", home)
	return full(t, strings.ReplaceAll(text, "{prefix}", t.Prefix))
}

func checkVersion(t sqlstore.Tables, found int64) error {
	return sqlstore.CheckSchema(t, found, schemaVersion, "postgres.Migrate")
}

// locate says where the tables are; if they are not found, in no schema.
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
// one transaction. It may be repeated, even by several at once. Where all is there
// it changes nothing. Any objects of Holdfast that exist have to belong to the role
// itself: not even a superuser creates anything around what another role has made.
//
// A schema of its own is the better place. Where others may create, they may add
// functions with the names of Holdfast's and other arguments, which are then called
// by SQL that does not name its types.
//
// It needs a role that may create in the schema, which will own the tables; and,
// for an Options.Schema that is missing, one that may create it:
//
//	grant usage, create on schema locks to migrator;
//
// A role that takes locks, fences and sweeps needs only the rights of Kind.Grants, and so does
// one that only reads, with Options.ReadOnly. A role that fences but takes no locks, and one
// that only looks at the view, need usage on the schema and one of these:
//
//	grant execute on function locks.holdfast_fence(text, bigint), locks.holdfast_fence(bytea, bigint) to writer;
//	grant select on locks.holdfast_locks to dba;
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	return server.Migrate(ctx, pool, opts.tables)
}

func run(ctx context.Context, c *pgx.Conn, script string) error {
	_, err := c.PgConn().Exec(ctx, script).ReadAll()
	if err != nil && !c.IsClosed() {
		c.PgConn().Exec(ctx, `rollback`).ReadAll()
	}
	return err
}

// Verify compares the schema in the database with that of this program: tables
// and view column by column, functions word by word and with their settings. All
// of it has to belong to one role, and there may be nothing that would be called
// in its place. It needs no rights but to read the version.
func Verify(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	return server.Compare(ctx, pool, opts.tables)
}

func verify(ctx context.Context, c *pgx.Conn, t sqlstore.Tables) (version int64, err error) {
	at, err := locate(ctx, c, t)
	if err != nil {
		return 0, err
	}
	var got map[string]string
	err = pgx.BeginTxFunc(ctx, c, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local search_path = pg_catalog, pg_temp`); err != nil {
			return err
		}
		if got, err = objects(ctx, tx, at); err != nil || got["meta.value"] == "" {
			return err
		}
		return tx.QueryRow(ctx, at.Expand(`select coalesce((select m.value from {meta} m where m.key = 'version'), 0)`, `"`),
			pgx.QueryExecModeExec).Scan(&version)
	})
	if codes.Meaning(err) == sqlstore.Denied {
		return 0, sqlstore.NotGranted(c.Config().User, "read", t, err)
	}
	if err != nil {
		return 0, err
	}
	if err := checkVersion(t, version); err != nil {
		return version, err
	}
	return version, compare(t, published(at), got)
}

// compare says what is not as it should be.
func compare(t sqlstore.Tables, want, got map[string]string) error {
	if err := sqlstore.Compare(fmt.Sprintf("of %q", t), t.Prefix, "postgres.Migrate", want, got); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		_, ours := want[name]
		switch owner, owned := strings.CutPrefix(name, "owner of "); {
		case owned:
			return driver.NewSchemaError("give it to that owner", "schema of %q: %s belongs to %s, and not to the owner of the tables", t, owner, got[name])
		case strings.HasSuffix(name, " calls"):
			return driver.NewSchemaError("make it anew: holdfast schema apply", "schema of %q: the view %s%s %s, which is not Holdfast's", t, t.Prefix, name, got[name])
		case strings.Contains(name, "(") && !ours:
			return driver.NewSchemaError("drop it", "schema of %q: the function %s is not Holdfast's, and may be called instead of one that is", t, t.Prefix+name)
		}
	}
	return nil
}

// objects are those in the database: names without their prefix, and what they are.
func objects(ctx context.Context, tx pgx.Tx, t sqlstore.Tables) (map[string]string, error) {
	var functions []string
	for _, f := range function().FindAllStringSubmatch(schema, -1) {
		functions = append(functions, t.Prefix+f[1])
	}
	rows, err := tx.Query(ctx, texts()["objects"],
		pgx.QueryExecModeExec, strings.ReplaceAll(t.Schema, `""`, `"`), []string{t.Prefix + "records", t.Prefix + "meta", t.Prefix + "locks", t.Prefix + "history"}, functions)
	if err != nil {
		return nil, err
	}
	got := make(map[string]string)
	var name, is string
	_, err = pgx.ForEachRow(rows, []any{&name, &is}, func() error {
		got[strings.TrimPrefix(name, t.Prefix)] = is
		return nil
	})
	return got, err
}

var function = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)create or replace function \{(\w+)\}\(([^)]*)\)[^$]*?(language .*?) as \$\$(.*?)\$\$`)
})

// published are the objects of the schema as they should be.
func published(t sqlstore.Tables) map[string]string {
	objects := sqlstore.Objects(strings.ReplaceAll(texts()["published"], "{prefix}", t.Prefix))
	for _, f := range function().FindAllStringSubmatch(schema, -1) {
		var types []string
		for _, arg := range strings.Split(f[2], ", ") {
			_, kind, _ := strings.Cut(arg, " ")
			types = append(types, kind)
		}
		objects[f[1]+"("+strings.Join(types, ", ")+")"] = strings.Join(strings.Fields(f[3]), " ") + full(t, f[4])
	}
	return objects
}
