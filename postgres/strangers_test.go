package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// called are the names of all that looks like a function in the SQL of this package.
func called(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "schema.sql") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b([a-z_0-9]+) ?\(`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// plantFew makes, as a stranger, overloads that do what those do that they stand
// for, and besides try to make the role a superuser with the rights of their caller.
func plantFew(t *testing.T, stranger *pgxpool.Pool, role string) {
	t.Helper()
	exec(t, stranger, `
create function public.rise() returns void language plpgsql as $$ begin
  execute 'alter role `+role+` superuser';
exception when others then
end $$;
create function public.convert_from(bytea, text) returns text language plpgsql as $$ begin perform public.rise(); return pg_catalog.convert_from($1, $2::name); end $$;
create function public.format(text, text) returns text language plpgsql as $$ begin perform public.rise(); return pg_catalog.format($1, $2); end $$;
create function public.format(text, integer, smallint) returns text language plpgsql as $$ begin perform public.rise(); return pg_catalog.format($1, $2, $3); end $$;
create function public.times(integer, numeric) returns numeric language plpgsql as $$ begin perform public.rise(); return $1 operator(pg_catalog.*) $2; end $$;
create operator public.* (function = public.times, leftarg = integer, rightarg = numeric);
create function public.times(numeric, integer) returns numeric language plpgsql as $$ begin perform public.rise(); return $1 operator(pg_catalog.*) $2; end $$;
create operator public.* (function = public.times, leftarg = numeric, rightarg = integer);`)
}

// plantMany makes overloads of every function and operator that Holdfast's SQL may
// mean, with arguments of types for which PostgreSQL, or we, have none.
func plantMany(t *testing.T, stranger *pgxpool.Pool) {
	t.Helper()
	exec(t, stranger, `
do $do$
declare
  kinds constant text[] := '{smallint,integer,bigint,numeric,text,name,varchar,bytea,jsonb,oid,xid,tid,timestamptz,anyelement}';
  few constant text[] := '{text,varchar,name,bytea,bigint}';
  f record;
  args text;
begin
  set local search_path = pg_catalog;
  for f in
    select distinct on (p.proname, p.pronargs) p.proname as name, p.pronargs as n, format_type(p.prorettype, null) as returns
    from pg_proc p where p.prokind = 'f' and p.pronargs between 1 and 3
      and (p.pronamespace = 'pg_catalog'::regnamespace and not p.proretset and p.proname = any ('{`+strings.Join(called(t), ",")+`}') or p.proname ~ '^holdfast_')
  loop
    for args in
      select distinct concat_ws(', ', a, b, c) from unnest(case when f.n < 3 then kinds else few end) a,
        unnest(case f.n when 1 then '{null}' when 2 then kinds else few end) b, unnest(case f.n when 3 then few else '{null}' end) c
      except select oidvectortypes(p.proargtypes) from pg_proc p where p.proname = f.name
    loop
      begin
        execute format('create function public.%I(%s) returns %s language plpgsql as $$ begin perform public.rise(); return %s; end $$',
          f.name, args, f.returns, case when f.returns <> 'void' then 'null' end);
      exception when others then -- it cannot be
      end;
    end loop;
  end loop;
  for f in
    select o.name, o.returns, a, b from (values ('=', 'boolean'), ('<>', 'boolean'), ('<', 'boolean'), ('>', 'boolean'), ('<=', 'boolean'), ('>=', 'boolean'),
      ('~', 'boolean'), ('@>', 'boolean'), ('+', 'numeric'), ('-', 'numeric'), ('*', 'numeric'), ('/', 'numeric'), ('||', 'text'), ('->', 'jsonb'), ('->>', 'text')) o (name, returns),
      unnest(kinds) a, unnest(kinds) b
    where not exists (select from pg_operator p where p.oprname = o.name and format_type(p.oprleft, null) = a and format_type(p.oprright, null) = b)
  loop
    if to_regprocedure(format('public.returns_%s(%s, %s)', f.returns, f.a, f.b)) is null then
      execute format('create function public.returns_%s(%s, %s) returns %s language plpgsql as $$ begin perform public.rise(); return null; end $$', f.returns, f.a, f.b, f.returns);
    end if;
    execute format('create operator public.%s (function = public.returns_%s, leftarg = %s, rightarg = %s)', f.name, f.returns, f.a, f.b);
  end loop;
end $do$`)
}

func rose(t *testing.T, r reopener, role, by string) {
	t.Helper()
	var is bool
	if err := r.pool.QueryRow(t.Context(), `select rolsuper from pg_catalog.pg_roles where rolname operator(pg_catalog.=) $1`, pgx.QueryExecModeExec, role).Scan(&is); err != nil {
		t.Fatal(err)
	}
	if is {
		t.Errorf("a role that may only lock became a superuser by %s", by)
		exec(t, r.pool, `alter role `+role+` nosuperuser`)
	}
}

// In a schema where everybody may create, nobody gets the rights of the owner, or
// of whoever looks, by functions and operators that fit a statement of ours better
// than those of PostgreSQL.
func TestOverloads(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	app := as(t, r, "app", documented(t, "app", &Options{Schema: "public", Prefix: "holdfast_"})...)
	exec(t, r.pool, `grant create on schema public to public`)
	role := app.Config().ConnConfig.User
	exec(t, app, `set role none`)
	s := open(t, app, nil)
	token := hold(t, s, "a", `{"holders":[{"session":"8f3ac1d2","nr":1,"slots":1,"n":3,"ttl":15000,"since":1795226403001234}],"waiters":[{"session":"b","slots":0}]}`)
	put(t, s, driver.Key{Space: driver.Sessions, Name: "8f3ac1d2"}, `{"owner":{"host":"h","pid":7,"user":"u"},"suspected":{"by":"x","age":5}}`)
	hold(t, s, "not json", "\xff\\")
	su := reopener{open(t, connect(t, r.url), nil), r.url} // before there is anything
	plantFew(t, app, role)
	if err := inTx(t, app, `select holdfast_fence('a', $1::bigint)`, token); err != nil {
		t.Error(err)
	}
	rose(t, r, role, "a fence and a few overloads")
	exec(t, r.pool, `select * from holdfast_locks`)
	rose(t, r, role, "a superuser's look and a few overloads")
	everything(t, su)
	rose(t, r, role, "a superuser's client and a few overloads")
	plantMany(t, app)
	rose(t, r, role, "planting")

	for _, form := range []string{`select holdfast_fence('a', $1::bigint)`, `select holdfast_fence('a'::bytea, $1::bigint)`, `select public.holdfast_fence('a'::text, $1::bigint + 1)`} {
		if err := inTx(t, app, form, token); err != nil {
			t.Errorf("%s: %v", form, err)
		}
		rose(t, r, role, form)
	}
	inTx(t, app, `select public.holdfast_fence('none', 1::bigint)`)
	inTx(t, app, `select public.holdfast_fence('a', 1::bigint)`)
	app.Exec(ctx, `select public.holdfast_fence('a', 1::bigint)`)
	rose(t, r, role, "a fence that fails")

	// What a superuser does.
	for _, q := range []string{`select * from public.holdfast_locks`, `select public.holdfast_json(bytea '{}')`, `select public.holdfast_json(bytea '\xff5c')`, `select public.holdfast_text(bytea '\x61')`,
		`select public.holdfast_text(bytea '\xff')`, `select public.holdfast_number(jsonb '7')`, `select public.holdfast_list(jsonb '[]')`} {
		if _, err := r.pool.Exec(ctx, q); err != nil {
			t.Errorf("%s: %v", q, err)
		}
		rose(t, r, role, q)
	}
	su = reopener{open(t, connect(t, r.url), nil), r.url}
	rose(t, r, role, "a superuser's New")
	everything(t, su)
	rose(t, r, role, "a superuser's client")
	if _, err := su.Diagnose(ctx); err != nil {
		t.Error(err)
	}
	rose(t, r, role, "a superuser's doctor")
	// There are functions that may be taken for ours.
	if err := Verify(ctx, su.pool, nil); err == nil || !strings.Contains(err.Error(), "is not Holdfast's, and may be called instead of one that is") {
		t.Errorf("verify: %v", err)
	}
	rose(t, r, role, "a superuser's verify")
	script, err := Schema(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := su.pool.Exec(ctx, script); err == nil || !strings.Contains(err.Error(), "belongs to "+role) {
		t.Errorf("schema apply: %v", err)
	}
	exec(t, su.pool, `rollback`)
	rose(t, r, role, "a superuser's schema apply")
}

// everything is each statement of a store, once at least.
func everything(t *testing.T, r reopener) {
	t.Helper()
	ctx := t.Context()
	s := r.Store
	notifications, _, stop := watching(t, s)
	expect(t, notifications, driver.Notification{})
	k := func(n string) driver.Key { return driver.Key{Name: n} }
	cas := func(ws ...driver.Write) []driver.Outcome {
		t.Helper()
		out, err := s.CompareAndSwap(ctx, ws)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			if !o.Won {
				t.Fatalf("write %d lost: %+v", i, o)
			}
		}
		return out
	}
	one := []byte("1")
	defer func() {
		for _, n := range []string{"e4", "e5", "e6"} { // for another time
			put(t, s, k(n), "")
		}
	}()
	v := cas(driver.Write{Key: k("e1"), Old: driver.IfEmpty, Value: one, Notify: "w"})[0].Record.Version
	expect(t, notifications, driver.Notification{Key: k("e1"), To: "w"})
	v = cas(driver.Write{Key: k("e1"), Old: v, Value: one, Notify: driver.Everyone})[0].Record.Version
	cas(driver.Write{Key: k("e1"), Old: v})
	for _, wake := range []string{"", "w"} { // a row that is known
		v = cas(driver.Write{Key: k("e1"), Old: driver.IfEmpty, Value: one, Notify: wake})[0].Record.Version
		v = cas(driver.Write{Key: k("e1"), Old: v, Value: one})[0].Record.Version
		cas(driver.Write{Key: k("e1"), Old: v})
	}
	out := cas(driver.Write{Key: k("e2"), Old: driver.IfEmpty, Value: one, Lazy: true}, driver.Write{Key: k("e3"), Old: driver.IfEmpty, Value: one, Notify: "w"})
	cas(driver.Write{Key: k("e2"), Old: out[0].Record.Version}, driver.Write{Key: k("e3"), Old: out[1].Record.Version})
	if got, err := s.Load(ctx, []driver.Key{k("e1"), k("e2"), k("none")}, driver.Fresh); err != nil || got[0].Version == 0 || got[2].Version != 0 {
		t.Errorf("load: %+v, error %v", got, err)
	}
	if got, err := s.Load(ctx, []driver.Key{k("e1")}, driver.Fresh); err != nil || got[0].Version == 0 {
		t.Errorf("load: %+v, error %v", got, err)
	}
	if n, err := s.Sweep(ctx, 0); err != nil || n == 0 {
		t.Errorf("%d rows swept, error %v", n, err)
	}
	cas(driver.Write{Key: k("e4"), Old: driver.IfEmpty, Value: one})
	cas(driver.Write{Key: k("e5"), Old: driver.IfEmpty, Value: one}, driver.Write{Key: k("e6"), Old: driver.IfEmpty, Value: one})
	if keys, err := s.Keys(ctx, driver.Names, "", 100); err != nil || !slices.Contains(keys, "e6") {
		t.Errorf("keys %q, error %v", keys, err)
	}
	d := s.Names.(*dialect)
	for _, q := range []string{d.sql["insert above"], d.sql["insert above"+quietly], d.sql["swaps above"], d.sql["swaps above"+quietly]} {
		if _, err := r.pool.Exec(ctx, "explain "+q, explained(q)...); err != nil {
			t.Errorf("%s: %v", q, err)
		}
	}
	stop()
	c := client(t, s)
	l, err := c.Acquire(ctx, "everything")
	if err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return Fence(ctx, tx, l) }); err != nil {
		t.Error(err)
	}
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
}

// explained are arguments for a statement that is not run.
func explained(q string) []any {
	args, notify := []any{[]byte("a"), []byte("1"), false, "1", int64(1)}, []any{"", []string{}}
	if strings.Contains(q, "$4::bigint[]") {
		args, notify = []any{[][]byte{}, [][]byte{}, false, []int64{}}, []any{[][]byte{}, []string{}, "", []string{}}
	}
	if strings.Contains(q, "pg_notify") {
		args = append(args, notify...)
	}
	return append([]any{pgx.QueryExecModeExec}, args...)
}

// shadow fills a schema with a copy of each function, operator and type of
// PostgreSQL, each of which fails.
func shadow(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `
create schema evil;
grant usage on schema evil to public;
create function evil.no() returns boolean language plpgsql as $$ begin raise exception using errcode = 'XX666', message = 'a stranger''s function was called'; end $$;
do $do$
declare r record; begin
  for r in select p.oid, p.proname, pg_get_function_identity_arguments(p.oid) as args, pg_get_function_result(p.oid) as result, p.provariadic <> 0 as variadic
    from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f'
  loop
    begin
      execute format('create function evil.%I(%s) returns %s language plpgsql as $$ begin perform evil.no(); end $$', r.proname, r.args, r.result);
    exception when others then
    end;
  end loop;
  for r in select o.oprname, format_type(o.oprleft, null) as l, format_type(o.oprright, null) as r, o.oprcode::oid::regproc::text as f,
      o.oprleft = 0 as prefix
    from pg_operator o where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprcode <> 0
  loop
    begin
      execute format('create operator evil.%s (function = evil.%s, %s rightarg = %s)', r.oprname, r.f, case when r.prefix then '' else 'leftarg = ' || r.l || ',' end, r.r);
    exception when others then
    end;
  end loop;
  for r in select t.typname from pg_type t where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typcategory <> 'A'
  loop
    execute format('create type evil.%I', r.typname); -- what nobody can use
  end loop;
end $do$`)
	var functions, operators, types int
	if err := pool.QueryRow(t.Context(), `
select (select count(*) from pg_proc where pronamespace = 'evil'::regnamespace), (select count(*) from pg_operator where oprnamespace = 'evil'::regnamespace),
  (select count(*) from pg_type where typnamespace = 'evil'::regnamespace)`).Scan(&functions, &operators, &types); err != nil || functions < 1500 || operators < 500 || types < 40 {
		t.Fatalf("only %d functions, %d operators and %d types, error %v", functions, operators, types, err)
	}
}

// Whatever the caller's search_path has ahead of PostgreSQL's own, no statement of
// ours calls it: not when tables are made, nor when they are used or looked at.
func TestShadows(t *testing.T) {
	for name, opts := range map[string]*Options{"by the search_path": nil, "elsewhere": {Schema: "locks"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servers.Postgres(t, nil).Database(t)
			admin := connect(t, url)
			shadow(t, admin)
			config, err := pgxpool.ParseConfig(url)
			if err != nil {
				t.Fatal(err)
			}
			config.ConnConfig.RuntimeParams["search_path"] = "public, evil, pg_catalog"
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			if _, err := pool.Exec(t.Context(), `select pg_catalog.length('a') + 1`); state(err) != "XX666" {
				t.Fatalf("it does not shadow: %v", err)
			}
			for range 2 {
				if err := Migrate(t.Context(), pool, opts); err != nil {
					t.Fatal(err)
				}
			}
			script, err := Schema(opts)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), script); err != nil {
				t.Error(err)
			}
			if err := Verify(t.Context(), pool, opts); err != nil {
				t.Error(err)
			}
			r := reopener{open(t, pool, opts), url}
			everything(t, r)
			token := hold(t, r, "a", `{"holders":[{"session":"8f3ac1d2","nr":1,"slots":1,"n":3,"ttl":15000,"since":1795226403001234}],"waiters":[{"session":"b","slots":0}]}`)
			hold(t, r, "b", "\xff\\")
			if got := findings(t, r.Store); slices.ContainsFunc(got, func(line string) bool { return !strings.HasPrefix(line, "ok ") }) {
				t.Errorf("doctor says %q", got)
			}
			schema := "public"
			if opts != nil {
				schema = opts.Schema
			}
			for _, q := range []string{`select %s.holdfast_fence('a', ` + fmt.Sprint(token) + `)`, `select %s.holdfast_fence('\x61'::pg_catalog.bytea, ` + fmt.Sprint(token) + `)`, `select * from %s.holdfast_locks`} {
				if err := inTx(t, pool, fmt.Sprintf(q, schema)); err != nil {
					t.Errorf("%s: %v", q, err)
				}
			}
		})
	}
}
