package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
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

// looks has a role that only reads, also if its transactions cannot do more, do all that
// looks: it finds these names held.
func looks(t *testing.T, pool *pgxpool.Pool, opts *Options, held ...string) {
	t.Helper()
	ctx, own := t.Context(), *opts
	own.ReadOnly = true
	config := pool.Config()
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s, err := New(ctx, pool, &own)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := holdfast.New(s, &holdfast.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var names []string
	for info, err := range c.List(ctx, "") {
		if err != nil || len(info.Holders) != 1 || info.Holders[0].BeatAge < 0 {
			t.Errorf("list: %+v, error %v", info, err)
		}
		names = append(names, info.Name)
	}
	if !slices.Equal(names, held) {
		t.Errorf("held is %q, want %q", names, held)
	}
	for info, err := range c.Watch(ctx, held[0]) {
		if err != nil || len(info.Holders) != 1 {
			t.Errorf("watch: %+v, error %v", info, err)
		}
		break
	}
	findings, err := s.Diagnose(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, f := range findings {
		if f.Level == driver.Failure {
			t.Errorf("doctor fails: %+v", f)
		}
	}
	if text := fmt.Sprint(findings); !strings.Contains(text, "may read, and not write") {
		t.Errorf("doctor says %s", text)
	}
	if err := Verify(ctx, pool, &own); err != nil {
		t.Error(err)
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
	if _, err := New(ctx, before, opts); err == nil || !strings.Contains(err.Error(), `may not read the tables of "locks.hf_": grant what holdfast schema grants prints`) {
		t.Errorf("New of a role without rights: %v", err)
	}
	looker := as(t, r, "look \"only\"")
	grant(t, r, looker, opts, true)
	var rights *driver.RightsError
	if _, err := New(ctx, looker, opts); !errors.As(err, &rights) || rights.Role != looker.Config().ConnConfig.User || rights.What != `may not write the tables of "locks.hf_"` {
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
	if err := dba.QueryRow(ctx, `select count(*) from locks.hf_locks where holder is not null and granted is not null`).Scan(&n); err != nil || n != 2 {
		t.Errorf("the view shows %d locks, error %v", n, err)
	}
	refused(t, dba, `select from locks.hf_records`, `select locks.hf_fence('orders/42', 1)`, `delete from locks.hf_records`)

	if err := looker.QueryRow(ctx, `select count(*) from locks.hf_locks where holder is not null`).Scan(&n); err != nil || n != 2 {
		t.Errorf("the view shows %d locks, error %v", n, err)
	}
	looks(t, looker, opts, "orders/42", "orders/43")
	refused(t, looker, `update locks.hf_records set fence = 0`, `insert into locks.hf_records (id, version, value) values ('', 1, '')`,
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
