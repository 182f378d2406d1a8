package postgres

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

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
		return 0, errNotGranted(t, err)
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
	for _, name := range slices.Sorted(maps.Keys(want)) {
		switch is, ok := got[name]; {
		case !ok:
			return fmt.Errorf("schema of %q: %s is missing; create it with postgres.Migrate or: holdfast schema apply", t, t.Prefix+name)
		case is != want[name]:
			return fmt.Errorf("schema of %q: %s is not as published; compare it with: holdfast schema print", t, t.Prefix+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		_, ours := want[name]
		switch owner, owned := strings.CutPrefix(name, "owner of "); {
		case owned:
			return fmt.Errorf("schema of %q: %s belongs to %s, and not to the owner of the tables", t, owner, got[name])
		case name == "locks calls":
			return fmt.Errorf("schema of %q: the view %slocks calls %s, which is not Holdfast's; make it anew: holdfast schema apply", t, t.Prefix, got[name])
		case strings.Contains(name, "(") && !ours:
			return fmt.Errorf("schema of %q: the function %s is not Holdfast's, and may be called instead of one that is: drop it", t, t.Prefix+name)
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
	rows, err := tx.Query(ctx, `
with
  home as (select n.oid from pg_namespace n where n.nspname = $1),
  relations as (
    select c.oid, c.relname as name, c.relkind, c.relowner as owner
    from pg_class c join home h on h.oid = c.relnamespace where c.relname = any ($2::text[])),
  functions as (
    select p.oid, p.proname || '(' || oidvectortypes(p.proargtypes) || ')' as name, p.proowner as owner,
      concat_ws(' ', 'language ' || l.lanname, case p.provolatile when 'i' then 'immutable' when 's' then 'stable' end,
        case when p.proparallel = 's' then 'parallel safe' end, case when p.prosecdef then 'security definer' end,
        (select string_agg('set ' || replace(s, '=', ' = '), ' ') from unnest(p.proconfig) s)) || p.prosrc as is
    from pg_proc p join home h on h.oid = p.pronamespace join pg_language l on l.oid = p.prolang where p.proname = any ($3::text[]))
select r.name, r.relkind::text from relations r
union all
select r.name || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || case when a.attnotnull then ' not null' else '' end
from relations r join pg_attribute a on a.attrelid = r.oid where a.attnum > 0 and not a.attisdropped
union all
select r.name || '!', 'primary key' from relations r join pg_index i on i.indrelid = r.oid where i.indisprimary
union all
select r.name || '!' || g.tgname, g.tgenabled::text || ' ' || f.name
from relations r join pg_trigger g on g.tgrelid = r.oid join functions f on f.oid = g.tgfoid where not g.tgisinternal
union all
select f.name, f.is from functions f
union all
select 'owner of ' || o.name, pg_get_userbyid(o.owner)
from (select name, owner from relations union all select name, owner from functions) o
where o.owner <> (select r.owner from relations r where r.name = $2[1])
union all
select r.name || ' calls', pg_describe_object(d.refclassid, d.refobjid, 0)
from relations r join pg_rewrite w on w.ev_class = r.oid join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
where exists (select from pg_proc p where d.refclassid = 'pg_proc'::regclass and p.oid = d.refobjid
    and p.pronamespace <> 'pg_catalog'::regnamespace and p.oid not in (select f.oid from functions f))
  or exists (select from pg_operator p where d.refclassid = 'pg_operator'::regclass and p.oid = d.refobjid
    and p.oprnamespace <> 'pg_catalog'::regnamespace)`,
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
