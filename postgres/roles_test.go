package postgres

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// documented are the rights that the doc comment of Migrate gives to a role, with
// another schema and prefix; for app it refers to Kind.Grants.
func documented(t *testing.T, role string, opts *Options) (grants []string) {
	t.Helper()
	if role == "app" {
		statements, err := Kind.Grants(&driver.Location{Schema: opts.Schema, Prefix: opts.Prefix}, role, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range statements {
			grants = append(grants, strings.TrimSuffix(s, ` to "app"`))
		}
		return grants
	}
	text, err := os.ReadFile("schema.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^//\t(grant .*) to `+role+`;$`).FindAllStringSubmatch(string(text), -1) {
		grants = append(grants, strings.NewReplacer("holdfast_", opts.Prefix, "locks.holdfast_", opts.Schema+"."+opts.Prefix, "schema locks", "schema "+opts.Schema).Replace(m[1]))
	}
	if len(grants) == 0 {
		t.Fatalf("nothing is granted to %s", role)
	}
	return grants
}

// grant gives the role of a pool what Kind.Grants says, twice.
func grant(t *testing.T, r reopener, pool *pgxpool.Pool, opts *Options, readOnly bool) {
	t.Helper()
	statements, err := Kind.Grants(&driver.Location{Schema: opts.Schema, Prefix: opts.Prefix}, pool.Config().ConnConfig.User, readOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Repeat(statements, 2) {
		if _, err := r.pool.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func refused(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, q := range statements {
		if _, err := pool.Exec(t.Context(), q); state(err) != "42501" {
			t.Errorf("%s: error %v, want it to be refused", q, err)
		}
	}
}

// A role with the rights that are documented does all that a client does, and
// can create and alter nothing.
func TestRoles(t *testing.T) {
	opts := &Options{Schema: "locks", Prefix: "hf_"}
	r := fresh(t, nil) // which makes another schema, that nobody meets
	ctx := t.Context()
	if _, err := r.pool.Exec(ctx, `create schema locks`); err != nil {
		t.Fatal(err)
	}
	migrator := as(t, r, "migrator", documented(t, "migrator", opts)...)
	if err := Migrate(ctx, migrator, opts); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(ctx, migrator, opts); err != nil {
		t.Fatal(err)
	}

	before := as(t, r, "early", `grant usage on schema locks`)
	if _, err := New(ctx, before, opts); err == nil || !strings.Contains(err.Error(), "grant it what the doc comment of postgres.Migrate says") {
		t.Errorf("New of a role without rights: %v", err)
	}
	half := as(t, r, "half", `grant usage on schema locks`, `grant select on locks.hf_records, locks.hf_meta`)
	if _, err := New(ctx, half, opts); err == nil || !strings.Contains(err.Error(), "may not write") {
		t.Errorf("New of a role that may only read: %v", err)
	}

	app := as(t, r, "app")
	grant(t, r, app, opts, false)
	if err := Verify(ctx, app, opts); err != nil {
		t.Error(err)
	}
	if err := Migrate(ctx, app, opts); err != nil {
		t.Errorf("Migrate where there is nothing to do: %v", err)
	}
	s := open(t, app, opts)
	c := client(t, s)
	lock, err := c.Acquire(ctx, "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Acquire(ctx, "orders/43", holdfast.Shared())
	if err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(ctx, app, func(tx pgx.Tx) error { return Fence(ctx, tx, lock, other) }); err != nil {
		t.Error(err)
	}
	if findings, err := s.Diagnose(ctx); err != nil {
		t.Error(err)
	} else if text := fmt.Sprint(findings); !strings.Contains(text, "may not alter (good)") {
		t.Errorf("doctor says %s", text)
	}
	refused(t, app, `create table locks.mine (a int)`, `alter table locks.hf_records add column a int`, `drop view locks.hf_locks`,
		`truncate locks.hf_records`, `select from locks.hf_locks`, `delete from locks.hf_meta`,
		`create or replace function locks.hf_fence(name bytea, token bigint) returns void language sql as ''`)

	writer := as(t, r, "writer", append(documented(t, "writer", opts), `grant usage on schema locks`)...)
	if err := pgx.BeginFunc(ctx, writer, func(tx pgx.Tx) error { return Fence(ctx, tx, lock, other) }); err != nil {
		t.Error(err)
	}
	if _, err := writer.Exec(ctx, `select locks.hf_fence('orders/42', $1)`, lock.Token()+1); state(err) != stateLost {
		t.Errorf("the fence let in a token that nobody has: %v", err)
	}
	refused(t, writer, `select from locks.hf_records`, `update locks.hf_records set fence = 0`, `select from locks.hf_locks`, `select from locks.hf_meta`)

	dba := as(t, r, "dba", append(documented(t, "dba", opts), `grant usage on schema locks`)...)
	var n int
	if err := dba.QueryRow(ctx, `select count(*) from locks.hf_locks where holder is not null and acquired is not null`).Scan(&n); err != nil || n != 2 {
		t.Errorf("the view shows %d locks, error %v", n, err)
	}
	refused(t, dba, `select from locks.hf_records`, `select locks.hf_fence('orders/42', 1)`, `delete from locks.hf_records`)

	look := as(t, r, "look \"only\"")
	grant(t, r, look, opts, true)
	if err := Verify(ctx, look, opts); err != nil {
		t.Error(err)
	}
	if err := look.QueryRow(ctx, `select count(*) from locks.hf_locks where holder is not null`).Scan(&n); err != nil || n != 2 {
		t.Errorf("the view shows %d locks, error %v", n, err)
	}
	looking := &sqlstore.Store{Names: &dialect{&s.settings, pooled(look)}}
	if names, err := looking.Keys(ctx, driver.Names, "", 10); err != nil || len(names) != 2 {
		t.Errorf("a role that looks sees %q, error %v", names, err)
	}
	if records, err := looking.Load(ctx, []driver.Key{{Name: "orders/42"}}, driver.Fresh); err != nil || records[0].Value == nil {
		t.Errorf("a role that looks loads %v, error %v", records, err)
	}
	refused(t, look, `update locks.hf_records set fence = 0`, `insert into locks.hf_records (id, version, value) values ('', 1, '')`,
		`delete from locks.hf_records`, `update locks.hf_meta set value = 0`, `select locks.hf_fence('orders/42', 1)`, `create table locks.mine (a int)`)

	if err := lock.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := other.Release(ctx); err != nil {
		t.Error(err)
	}
	if _, err := s.Sweep(ctx, 0); err != nil {
		t.Error(err)
	}
}

// Nobody makes the functions that run with the rights of the owner look at
// tables of his own.
func TestSearchPath(t *testing.T) {
	r := fresh(t, &Options{Schema: "locks"})
	ctx := t.Context()
	version := hold(t, r, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	writer := as(t, r, "writer", `grant usage on schema locks`, `grant execute on function locks.holdfast_fence(text, bigint)`, `grant create on schema public`)
	c, err := writer.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	for _, q := range []string{
		`create temp table holdfast_records as select '\x006f72646572732f3432'::bytea as id, 17::bigint as version, 0::bigint as fence,
			convert_to('{"holders":[{"session":"a","nr":1,"slots":1}]}', 'UTF8') as value`,
		`create table public.holdfast_records as table pg_temp.holdfast_records`,
		`set search_path = pg_temp, public, pg_catalog`,
	} {
		if _, err := c.Exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Exec(ctx, `select locks.holdfast_fence('orders/42', $1)`, 17); state(err) != stateLost {
		t.Errorf("the fence looked at a table of its caller's: %v", err)
	}
	if _, err := c.Exec(ctx, `select locks.holdfast_fence('orders/42', $1)`, version); err != nil {
		t.Error(err)
	}
}

func client(t *testing.T, s driver.Store) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// hold makes a lock record by hand and returns its version.
func hold(t *testing.T, s driver.Store, name, value string) int64 {
	t.Helper()
	return put(t, s, driver.Key{Name: name}, value)
}

func put(t *testing.T, s driver.Store, k driver.Key, value string) int64 {
	t.Helper()
	r, err := s.Load(context.Background(), []driver.Key{k}, driver.Fresh)
	if err != nil {
		t.Fatal(err)
	}
	old := r[0].Version
	if old == 0 {
		old = driver.IfEmpty
	}
	out, err := s.CompareAndSwap(context.Background(), []driver.Write{{Key: k, Old: old, Value: []byte(value)}})
	if err != nil || !out[0].Won {
		t.Fatalf("write %s: %+v, error %v", value, out, err)
	}
	return out[0].Record.Version
}
