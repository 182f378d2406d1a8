package postgres

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A role that may create in the schema may have made something with our names before the
// owner comes. Nothing of it is called, nor taken for ours.
func TestSquatters(t *testing.T) {
	for _, test := range []struct{ what, by string }{
		{"holdfast_meta", `create table public.holdfast_meta (key text primary key, value bigint not null);
			create function public.up() returns trigger language plpgsql as $$ begin perform public.rise(); return new; end $$;
			create trigger up before insert on public.holdfast_meta for each row execute function public.up()`},
		{"holdfast_meta", `create function public.up() returns bigint language plpgsql as $$ begin perform public.rise(); return 1; end $$;
			create view public.holdfast_meta as select 'version'::text as key, public.up() as value`},
		{"holdfast_number(jsonb)", `create function public.holdfast_number(value jsonb) returns bigint language plpgsql as $$ begin perform public.rise(); return null; end $$`},
		{"holdfast_fence(character varying, bigint)", `create function public.holdfast_fence(varchar, bigint) returns void language plpgsql as $$ begin perform public.rise(); end $$`},
		{"holdfast_locks", `create view public.holdfast_locks as select 1 as a`},
		{"holdfast_history", `create view public.holdfast_history as select 1 as a`},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := reopener{url: servers.Postgres(t, nil).Database(t)}
			r.Store = &Store{pool: connect(t, r.url)}
			app := as(t, r, "app", `grant create on schema public`)
			role := app.Config().ConnConfig.User
			exec(t, app, `create function public.rise() returns void language plpgsql as $$ begin execute 'alter role `+role+` superuser'; exception when others then end $$; `+test.by)
			err := Migrate(t.Context(), r.pool, nil)
			rose(t, r, role, "a superuser's schema apply")
			if want := fmt.Sprintf("%s belongs to %s, not to ", test.what, role); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Migrate: %v, want it to say that %s", err, want)
			}
			exec(t, r.pool, `drop owned by `+role+`; grant create on schema public to `+role)
			if err := Migrate(t.Context(), r.pool, nil); err != nil {
				t.Error(err)
			}
			if err := Verify(t.Context(), r.pool, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// Version 1, which was open to overloads, becomes version 2 where it is, with all
// locks, and what was bound to a stranger's functions is bound no longer.
func TestUpgrade(t *testing.T) {
	script, err := os.ReadFile("testdata/version-1.sql")
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]*Options{"by the search_path": nil, "elsewhere": {Schema: "public", Prefix: "hf_"}} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			r := reopener{url: servers.Postgres(t, nil).Database(t)}
			r.Store = &Store{pool: connect(t, r.url)}
			tables, _ := opts.tables()
			app := as(t, r, "app", `grant create on schema public`)
			role := app.Config().ConnConfig.User
			plantFew(t, app, role)
			exec(t, r.pool, `alter role `+role+` nosuperuser`)
			old := (sqlstore.Tables{Prefix: tables.Prefix}).Expand(strings.ReplaceAll(string(script), "{}", "'"+tables.Schema+"'"), `"`)
			exec(t, r.pool, old)
			exec(t, r.pool, (sqlstore.Tables{Prefix: tables.Prefix}).Expand(`
insert into {records} (id, version, value) values ('\x0061', 17, '{"holders":[{"session":"x","nr":1,"slots":1}]}'), ('\x0062', 18, '');
update {meta} set value = 19 where key = 'floor';
create view public.rest as select name, acquired as granted from {locks}`, `"`)) // a view of theirs rests on ours
			// A schema that was made since, and comes first in the search_path.
			user, err := pgxpool.ParseConfig(r.url)
			if err != nil {
				t.Fatal(err)
			}
			user.ConnConfig.RuntimeParams["search_path"] = "newer, public"
			exec(t, r.pool, `create schema newer`)
			pool, err := pgxpool.NewWithConfig(ctx, user)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)

			for what, f := range map[string]func() error{
				"New":    func() error { _, err := New(ctx, pool, opts); return err },
				"Verify": func() error { return Verify(ctx, pool, opts) },
			} {
				if err := f(); err == nil || !strings.Contains(err.Error(), "is version 1, this program needs 2; the owner of the tables runs: holdfast schema apply") {
					t.Errorf("%s of version 1: %v", what, err)
				}
			}
			if err := Migrate(ctx, app, opts); state(err) != "42501" && (err == nil || !strings.Contains(err.Error(), "belongs to")) {
				t.Errorf("a role that is not the owner: %v", err)
			}
			exec(t, r.pool, `alter role `+role+` nosuperuser`)
			if err := Migrate(ctx, pool, opts); err != nil {
				t.Fatal(err)
			}
			if err := Verify(ctx, pool, opts); err != nil {
				t.Error(err)
			}
			s := open(t, pool, opts)
			got, err := s.Load(ctx, []driver.Key{{Name: "a"}, {Name: "b"}}, driver.Fresh)
			if err != nil || got[0].Version != 17 || len(got[0].Value) == 0 || got[1].Version != 18 {
				t.Errorf("it holds %+v, error %v", got, err)
			}
			if err := inTx(t, pool, s.Tables.Expand(`select {fence}('a', 17)`, `"`)); err != nil {
				t.Error(err)
			}
			exec(t, pool, s.Tables.Expand(`select granted, labels from {locks}`, `"`))
			exec(t, pool, s.Tables.Expand(`select granted, name from rest`, `"`))
			if n := floorNow(t, reopener{s, r.url}); n != 19 {
				t.Errorf("the floor is %d, want 19", n)
			}
			rose(t, r, role, "what version 1 has left")
			if _, err := r.pool.Exec(ctx, old); err == nil {
				t.Error("the older script made version 1 again")
			}
		})
	}
}
