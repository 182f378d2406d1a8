package postgres

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Verify compares the schema in the database with that of this program: tables
// and view column by column, functions word by word and with their settings. All
// of it has to belong to one role, and there may be nothing that would be called
// in its place. It needs no rights but to read the version.
func Verify(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	t, err := opts.tables()
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	err = pooled(pool)(ctx, func(c *pgx.Conn) error {
		_, err := verify(ctx, c, t)
		return err
	})
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
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
	if state(err) == "42501" {
		return 0, errNotGranted(c.Config().User, t, err)
	}
	if err != nil {
		return 0, err
	}
	if err := sqlstore.CheckSchema(t, version, schemaVersion, "postgres.Migrate"); err != nil {
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
		case name == "locks calls":
			return driver.NewSchemaError("make it anew: holdfast schema apply", "schema of %q: the view %slocks calls %s, which is not Holdfast's", t, t.Prefix, got[name])
		case strings.Contains(name, "(") && !ours:
			return driver.NewSchemaError("drop it", "schema of %q: the function %s is not Holdfast's, and may be called instead of one that is", t, t.Prefix+name)
		}
	}
	return nil
}

// objects are those in the database: names without their prefix, and what they are.
func objects(ctx context.Context, tx pgx.Tx, t sqlstore.Tables) (map[string]string, error) {
	var functions []string
	for _, f := range function.FindAllStringSubmatch(schema, -1) {
		functions = append(functions, t.Prefix+f[1])
	}
	rows, err := tx.Query(ctx, texts()["objects"],
		pgx.QueryExecModeExec, strings.ReplaceAll(t.Schema, `""`, `"`), []string{t.Prefix + "records", t.Prefix + "meta", t.Prefix + "locks"}, functions)
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

var function = regexp.MustCompile(`(?s)create or replace function \{(\w+)\}\(([^)]*)\)[^$]*?(language .*?) as \$\$(.*?)\$\$`)

// published are the objects of the schema as they should be.
func published(t sqlstore.Tables) map[string]string {
	objects := map[string]string{
		"meta":                    "r",
		"meta!":                   "primary key",
		"meta.key":                "text not null",
		"meta.value":              "bigint not null",
		"records":                 "r",
		"records!":                "primary key",
		"records!holdfast_insert": "O " + t.Prefix + "inserted()",
		"records.id":              "bytea not null",
		"records.version":         "bigint not null",
		"records.prev":            "bigint not null",
		"records.value":           "bytea not null",
		"records.fence":           "bigint not null",
		"locks":                   "v",
	}
	columns := map[string][]string{
		"text":                     {"name", "mode", "state", "holder", "host", "user", "program", "session", "reason", "suspected_by"},
		"bigint":                   {"position", "pid", "nr", "token", "last_token", "retries"},
		"timestamp with time zone": {"requested", "acquired", "last_beat", "suspected_since"},
		"double precision":         {"waited", "ttl"},
		"boolean":                  {"dead"},
	}
	for kind, names := range columns {
		for _, name := range names {
			objects["locks."+name] = kind
		}
	}
	for _, f := range function.FindAllStringSubmatch(schema, -1) {
		var types []string
		for _, arg := range strings.Split(f[2], ", ") {
			_, kind, _ := strings.Cut(arg, " ")
			types = append(types, kind)
		}
		objects[f[1]+"("+strings.Join(types, ", ")+")"] = strings.Join(strings.Fields(f[3]), " ") + full(t, f[4])
	}
	return objects
}
