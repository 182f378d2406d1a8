package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schema string

const schemaVersion = 1

// Schema returns the statements that create what Holdfast needs, for those who
// run them with psql or a tool of their own. They may be repeated.
func Schema(opts *Options) (string, error) {
	t, err := opts.tables()
	if err != nil {
		return "", fmt.Errorf("postgres: %w", err)
	}
	// The script chooses the schema itself, so its names need none.
	text := strings.ReplaceAll(schema, "{}", "'"+t.Schema+"'")
	return sqlstore.Tables{Prefix: t.Prefix}.Expand(text, `"`), nil
}

// Migrate creates the schema as far as it is missing, in one transaction. It may
// be repeated, and by several at once. Where all is there it changes nothing.
//
// It needs a role that may create in the schema, which will own the tables; and,
// for an Options.Schema that is missing, one that may create it:
//
//	grant usage, create on schema locks to migrator;
//
// A role that takes locks, fences and sweeps needs only these:
//
//	grant usage on schema locks to app;
//	grant select, insert, update, delete on locks.holdfast_records to app;
//	grant select, update on locks.holdfast_meta to app;
//	grant execute on function locks.holdfast_fence(text, bigint), locks.holdfast_fence(bytea, bigint) to app;
//
// Who fences, but takes no locks, and who looks at them, besides usage on the
// schema:
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
	err = pooled{pool}.use(ctx, func(c *pgx.Conn) error {
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

// Verify compares the schema in the database with that of this program: tables
// and view column by column, functions word by word. It needs no rights on them.
func Verify(ctx context.Context, pool *pgxpool.Pool, opts *Options) error {
	t, err := opts.tables()
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	err = pooled{pool}.use(ctx, func(c *pgx.Conn) error {
		_, err := verify(ctx, c, t)
		return err
	})
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

func verify(ctx context.Context, c *pgx.Conn, t sqlstore.Tables) (version int64, err error) {
	rows, err := c.Query(ctx, t.Expand(`
with home as (
	select relnamespace as oid from pg_class where oid = to_regclass('{meta}')
)
select c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || case when a.attnotnull then ' not null' else '' end
from pg_class c, home h, pg_attribute a
where c.relnamespace = h.oid and a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and c.relname = any ($1::text[])
union all
select c.relname || '!', 'primary key'
from pg_class c, home h, pg_index i
where c.relnamespace = h.oid and i.indrelid = c.oid and i.indisprimary and c.relname = any ($1::text[])
union all
select c.relname || '!' || g.tgname, g.tgenabled::text
from pg_class c, home h, pg_trigger g
where c.relnamespace = h.oid and g.tgrelid = c.oid and not g.tgisinternal and c.relname = any ($1::text[])
union all
select p.proname || '(' || oidvectortypes(p.proargtypes) || ')', case when p.prosecdef then 'definer' else '' end || p.prosrc
from pg_proc p, home h
where p.pronamespace = h.oid and starts_with(p.proname, $2)
union all
select '', coalesce((select m.value from {meta} m where m.key = 'version'), 0)::text`, `"`),
		pgx.QueryExecModeExec, []string{t.Prefix + "meta", t.Prefix + "records", t.Prefix + "locks"}, t.Prefix)
	if err != nil {
		return 0, err
	}
	got := make(map[string]string)
	var name, is string
	_, err = pgx.ForEachRow(rows, []any{&name, &is}, func() error {
		got[strings.TrimPrefix(name, t.Prefix)] = is
		return nil
	})
	switch state(err) {
	case "42P01", "3F000": // no such table, no such schema
		return 0, sqlstore.CheckSchema(t, 0, schemaVersion, "postgres.Migrate")
	case "42501":
		return 0, fmt.Errorf("the role may not read the tables of %q: grant it what the doc comment of postgres.Migrate says: %w", t, err)
	}
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(got[""], &version); err != nil {
		return 0, err
	}
	if err := sqlstore.CheckSchema(t, version, schemaVersion, "postgres.Migrate"); err != nil {
		return version, err
	}
	want := published(t)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		switch is, ok := got[name]; {
		case !ok:
			return version, fmt.Errorf("schema of %q: %s is missing; create it with postgres.Migrate or: holdfast schema apply", t, t.Prefix+name)
		case is != want[name]:
			return version, fmt.Errorf("schema of %q: %s is not as published; compare it with: holdfast schema print", t, t.Prefix+name)
		}
	}
	return version, nil
}

var function = regexp.MustCompile(`(?s)create or replace function \{(\w+)\}\(([^)]*)\)(.*?) as \$\$(.*?)\$\$`)

// published are the objects of the schema as verify sees them.
func published(t sqlstore.Tables) map[string]string {
	objects := map[string]string{
		"meta!":                   "primary key",
		"meta.key":                "text not null",
		"meta.value":              "bigint not null",
		"records!":                "primary key",
		"records!holdfast_insert": "O",
		"records.id":              "bytea not null",
		"records.version":         "bigint not null",
		"records.prev":            "bigint not null",
		"records.value":           "bytea not null",
		"records.fence":           "bigint not null",
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
		body := sqlstore.Tables{Prefix: t.Prefix}.Expand(f[4], `"`)
		if strings.Contains(f[3], "security definer") {
			body = "definer" + body
		}
		objects[f[1]+"("+strings.Join(types, ", ")+")"] = body
	}
	return objects
}
