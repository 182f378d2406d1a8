package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What is published is what runs, also after a repetition, and where several
// create it at once.
func TestSchema(t *testing.T) {
	for name, opts := range map[string]*Options{"default": nil, "elsewhere": hostile} {
		t.Run(name, func(t *testing.T) {
			url := servers.Postgres(t, nil).Database(t)
			pool := connect(t, url)
			ctx := t.Context()
			err := Verify(ctx, pool, opts)
			if err == nil || !strings.Contains(err.Error(), "is missing; create it with postgres.Migrate or: holdfast schema apply") {
				t.Errorf("Verify before: %v", err)
			}
			if _, err := New(ctx, pool, opts); err == nil || !strings.Contains(err.Error(), "is missing; create it with postgres.Migrate or: holdfast schema apply") {
				t.Errorf("New before: %v", err)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if err := Migrate(ctx, pool, opts); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			script, err := Schema(opts)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := Verify(ctx, pool, opts); err != nil {
					t.Error(err)
				}
				if _, err := pool.Exec(ctx, script); err != nil {
					t.Fatalf("the script again: %v", err)
				}
			}
			open(t, pool, opts)
		})
	}
}

func TestPublished(t *testing.T) {
	text, err := os.ReadFile("schema.sql")
	if err != nil || string(text) != schema {
		t.Errorf("the schema differs from schema.sql, error %v", err)
	}
	r := fresh(t, nil)
	if n := strings.Count(schema, "create or replace function"); len(function().FindAllString(schema, -1)) != n {
		t.Errorf("Verify knows %d of %d functions", len(function().FindAllString(schema, -1)), n)
	}
	for _, damage := range []struct{ by, named string }{
		{`drop view holdfast_locks`, "holdfast_locks is missing"},
		{`alter table holdfast_records disable trigger holdfast_insert`, "holdfast_records!holdfast_insert"},
		{`alter table holdfast_records enable trigger holdfast_insert; create or replace function holdfast_fence(name bytea, token bigint) returns void language sql as ''`, "holdfast_fence(bytea, bigint)"},
		{`drop function holdfast_idle`, "holdfast_idle"},
		{`alter function holdfast_keys(bytea, bytea, integer) reset search_path`, "holdfast_keys(bytea, bytea, integer) is not as published"},
		{`alter function holdfast_text(bytea) set search_path = public`, "holdfast_text(bytea) is not as published"},
		{`alter function holdfast_fence(text, bigint) security invoker`, "holdfast_fence(text, bigint) is not as published"},
		{`alter function holdfast_json(bytea) volatile`, "holdfast_json(bytea) is not as published"},
		{`create function up(text) returns text language sql as 'select $1';
			do $$ begin
				execute 'create or replace view holdfast_locks as ' || replace(pg_get_viewdef('holdfast_locks'::regclass), 'holdfast_plain(', 'up(');
			end $$`, "the view holdfast_locks calls function public.up(text), which is not Holdfast's"},
	} {
		if _, err := r.pool.Exec(t.Context(), damage.by); err != nil {
			t.Fatal(err)
		}
		if err := Verify(t.Context(), r.pool, nil); err == nil || !strings.Contains(err.Error(), damage.named) {
			t.Errorf("after %s: %v, want it to name %s", damage.by, err, damage.named)
		}
		if strings.Contains(damage.by, "disable") {
			continue // the script leaves a trigger that is there
		}
		if err := Migrate(t.Context(), r.pool, nil); err != nil {
			t.Fatal(err)
		}
		if err := Verify(t.Context(), r.pool, nil); err != nil {
			t.Errorf("after Migrate: %v", err)
		}
	}
	// What only its owner can mend.
	other := as(t, r, "other").Config().ConnConfig.User
	for _, damage := range []struct{ by, named, cure string }{
		{`create function holdfast_number(text) returns bigint language sql as 'select 1::bigint'`,
			"the function holdfast_number(text) is not Holdfast's, and may be called instead of one that is", `drop function holdfast_number(text)`},
		{`alter function holdfast_plain(text) owner to ` + other, "holdfast_plain(text) belongs to " + other, `alter function holdfast_plain(text) owner to current_user`},
		{`alter view holdfast_locks owner to ` + other, "holdfast_locks belongs to " + other, `alter view holdfast_locks owner to current_user`},
		{`drop trigger holdfast_insert on holdfast_records; create function up() returns trigger language plpgsql as 'begin return null; end';
			create trigger holdfast_insert after insert on holdfast_records for each row execute function up()`, "holdfast_records!holdfast_insert is missing",
			`drop trigger holdfast_insert on holdfast_records`},
	} {
		exec(t, r.pool, damage.by)
		if err := Verify(t.Context(), r.pool, nil); err == nil || !strings.Contains(err.Error(), damage.named) {
			t.Errorf("after %s: %v, want it to name %s", damage.by, err, damage.named)
		}
		says(t, r.Store, `FAIL schema: schema of "public.holdfast_": `)
		exec(t, r.pool, damage.cure)
		if err := Migrate(t.Context(), r.pool, nil); err != nil {
			t.Fatal(err)
		}
		if err := Verify(t.Context(), r.pool, nil); err != nil {
			t.Errorf("after %s: %v", damage.cure, err)
		}
	}
}

func TestVersions(t *testing.T) {
	r := fresh(t, nil)
	for _, test := range []struct {
		version int
		want    string
	}{
		{0, `postgres: schema of "holdfast_" is missing; create it with postgres.Migrate or: holdfast schema apply`},
		{1, `postgres: schema of "holdfast_" is version 1, this program needs 2; the owner of the tables runs: holdfast schema apply`},
		{3, `postgres: schema of "holdfast_" is version 3, newer than this program (2); upgrade the program`},
	} {
		if _, err := r.pool.Exec(t.Context(), `update holdfast_meta set value = $1 where key = 'version'`, test.version); err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]func() error{
			"New":    func() error { _, err := New(t.Context(), r.pool, nil); return err },
			"Verify": func() error { return Verify(t.Context(), r.pool, nil) },
		} {
			if err := f(); err == nil || err.Error() != test.want {
				t.Errorf("%s of version %d: error %v, want %s", name, test.version, err, test.want)
			}
		}
	}
	if err := Migrate(t.Context(), r.pool, nil); err == nil || !strings.Contains(err.Error(), "newer than this program") {
		t.Errorf("Migrate of a newer schema: %v", err)
	}
	script, _ := Schema(nil)
	if _, err := r.pool.Exec(t.Context(), script); err == nil {
		t.Error("the script made an older schema of a newer one")
	}
}

func TestOptions(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, opts := range []*Options{
		{Schema: `a"b`}, {Schema: "a.b"}, {Prefix: "a-b"}, {Prefix: "1"}, {Prefix: strings.Repeat("x", 41)},
		{Schema: strings.Repeat("x", 64)}, {Allow: []string{"everything"}},
	} {
		_, err := New(t.Context(), pool, opts)
		if err == nil || strings.Contains(err.Error(), "connect") {
			t.Errorf("%+v: error %v, want a refusal", opts, err)
		}
		if len(opts.Allow) == 0 {
			if _, err := Schema(opts); err == nil {
				t.Errorf("there is a Schema for %+v", opts)
			}
		}
	}
}

// as is a pool of a new role of that name that may do what the grants say.
func as(t *testing.T, r reopener, role string, grants ...string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s_%s", role, config.ConnConfig.Database)
	ctx := t.Context()
	quoted := pgx.Identifier{name}.Sanitize()
	if _, err := r.pool.Exec(ctx, `create role `+quoted+` login; revoke create on schema public from public`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.pool.Exec(context.Background(), `drop owned by `+quoted+` cascade; drop role `+quoted)
	})
	for _, g := range grants {
		if _, err := r.pool.Exec(ctx, g+` to `+quoted); err != nil {
			t.Fatalf("%s: %v", g, err)
		}
	}
	config.ConnConfig.User = name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
