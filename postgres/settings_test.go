package postgres

import (
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// findings are what Diagnose says, a line for each.
func findings(t *testing.T, s *Store) (lines []string) {
	t.Helper()
	list, err := s.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		lines = append(lines, fmt.Sprintf("%s %s: %s", [...]string{"ok", "slow", "FAIL"}[f.Level], f.Subject, f.Text))
	}
	return lines
}

func says(t *testing.T, s *Store, want ...string) {
	t.Helper()
	got := findings(t, s)
	for _, w := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, w) }) {
			t.Errorf("doctor says\n%s\nand not %q", strings.Join(got, "\n"), w)
		}
	}
}

func TestDiagnose(t *testing.T) {
	r := fresh(t, nil)
	says(t, r.Store, "ok server: PostgreSQL ", "ok schema: version 2 in schema public; may read and write, may alter;",
		"ok durability: synchronous_commit on, fsync on, full_page_writes on", "ok notifications: they arrive", "ok connections: a pool of 4, ")
	if got := findings(t, r.Store); len(got) != 5 || !strings.HasSuffix(got[0], ", primary") {
		t.Errorf("doctor says %q", got)
	}
}

// What would cost a lock is refused unless it is allowed by name.
func TestRefused(t *testing.T) {
	server := servers.Postgres(t, &servers.Options{Settings: []string{"fsync=off", "full_page_writes=off", "synchronous_commit=off"}})
	if !server.Own {
		t.Skip("this needs a server of its own")
	}
	pool := connect(t, server.Database(t))
	ctx := t.Context()
	if err := Migrate(ctx, pool, nil); err != nil {
		t.Fatal(err)
	}
	var allowed []string
	for _, danger := range []string{"fsync-off", "full-page-writes-off", "async-commit"} {
		_, err := New(ctx, pool, &Options{Allow: allowed})
		if err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf("allow %q", danger)) {
			t.Errorf("allowing %q: error %v, want a refusal because of %s", allowed, err, danger)
		}
		allowed = append(allowed, danger)
	}
	s := open(t, pool, &Options{Allow: allowed})
	says(t, s, "slow durability: fsync-off is accepted: ", "slow durability: full-page-writes-off is accepted: ", "slow durability: async-commit is accepted: ")
	for _, line := range findings(t, s) {
		if strings.HasPrefix(line, "FAIL") {
			t.Errorf("doctor says %s, though it is allowed", line)
		}
	}
	if !s.async {
		t.Error("it waits for the disk")
	}
	hold(t, s, "a", "1")
}

// What no server here is like.
func TestRefuse(t *testing.T) {
	but := func(changes ...string) sqlstore.Facts {
		f := sqlstore.Facts{"number": "150004", "version": "15.4", "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
			"session_replication_role": "origin", "name": "PostgreSQL 15.4", "schema": fmt.Sprint(schemaVersion), "may": "true"}
		for i := 0; i < len(changes); i += 2 {
			f[changes[i]] = changes[i+1]
		}
		return f
	}
	refuse := func(f sqlstore.Facts) error { return new(Store).refuse(f, sqlstore.Tables{}) }
	if err := refuse(but()); err != nil {
		t.Error(err)
	}
	if err := refuse(but("number", "110022", "version", "11.22")); err == nil || err.Error() != "the server is PostgreSQL 11.22; it takes 12 or newer" {
		t.Errorf("got %v", err)
	}
	for product, want := range map[string]string{
		"PostgreSQL 15.12-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang": "the server is PostgreSQL 15.12-YB-2025.1.0.0-b0; it takes PostgreSQL",
		"CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, built 2025/06/03)":             "the server is CockroachDB CCL v25.2.1 (x86_64-pc-linux-gnu, built 2025/06/03); it takes PostgreSQL",
		"PostgreSQL 12.12 (Greenplum Database 7.1.0 build a) on x86_64-pc-linux-gnu":  "the server is PostgreSQL 12.12 (Greenplum Database 7.1.0 build a); it takes PostgreSQL",
	} {
		name, _, _ := strings.Cut(product, " on ")
		if err := refuse(but("product", product, "name", name)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", product, err, want)
		}
	}
	local := but("synchronous_commit", "local", "synchronous_standby_names", "ANY 1 (a, b)")
	if err := refuse(local); err != nil {
		t.Error(err)
	}
	var found driver.Findings
	new(Store).replicas(t.Context(), local, &found)
	if len(found) != 1 || found[0].Level != driver.Warning || !strings.Contains(found[0].Text, "synchronous_commit is local") {
		t.Errorf("it says %+v", found)
	}
}

// A session of the caller's that does not wait for the disk does not keep a
// grant from doing so; and what need not wait does not.
func TestWaitsForDisk(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	// What the server does within the statement shows in a trigger.
	if _, err := r.pool.Exec(ctx, `
create table seen (name text, setting text);
create function look() returns trigger language plpgsql as $$ begin
  insert into seen values (convert_from(substr(new.id, 2), 'UTF8'), current_setting('synchronous_commit'));
  return null;
end $$;
create trigger look after insert or update on holdfast_records for each row execute function look();`); err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, nil)
	for _, session := range []string{"on", "off", "local"} {
		exec(t, pool, `set synchronous_commit = `+session)
		for _, lazy := range []bool{false, true} {
			k := driver.Key{Name: fmt.Sprintf("%s, lazy %v", session, lazy)}
			second := driver.Key{Name: k.Name + "'"}
			take, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1"), Lazy: lazy}})
			if err != nil {
				t.Fatal(err)
			}
			swap, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: take[0].Record.Version, Value: []byte("1"), Lazy: lazy}})
			if err != nil {
				t.Fatal(err)
			}
			for _, ws := range [][]driver.Write{
				{{Key: k, Old: swap[0].Record.Version, Lazy: lazy}},
				{{Key: k, Old: driver.IfEmpty, Value: []byte("1"), Lazy: lazy}, {Key: second, Old: driver.IfEmpty, Value: []byte("1"), Lazy: lazy}},
			} {
				if out, err := s.CompareAndSwap(ctx, ws); err != nil || !out[0].Won {
					t.Fatalf("%+v, error %v", out, err)
				}
			}
			want := map[bool]string{false: session, true: "off"}[lazy]
			if want == "off" && !lazy {
				want = "on"
			}
			var n, wrong int
			if err := pool.QueryRow(ctx, `select count(*), count(*) filter (where setting <> $2) from seen where name like $1`, k.Name+"%", want).Scan(&n, &wrong); err != nil || n != 5 || wrong != 0 {
				t.Errorf("%s: %d of %d writes were not committed with synchronous_commit %s, error %v", k.Name, wrong, n, want, err)
			}
		}
		var after string
		if err := pool.QueryRow(ctx, `show synchronous_commit`).Scan(&after); err != nil || after != session {
			t.Errorf("after it the session has %s, error %v, want %s", after, err, session)
		}
	}
	// One write of a batch that must wait has all of it wait, wherever it stands.
	for waits := range 3 {
		var batch []driver.Write
		for i := range 3 {
			batch = append(batch, driver.Write{Key: driver.Key{Name: fmt.Sprintf("mixed %d %d", waits, i)}, Old: driver.IfEmpty, Value: []byte("1"), Lazy: i != waits})
		}
		out, err := s.CompareAndSwap(ctx, batch)
		if err != nil || !out[0].Won || !out[1].Won || !out[2].Won {
			t.Fatalf("%+v, error %v", out, err)
		}
		var lazy, all int
		if err := pool.QueryRow(ctx, `select count(*) filter (where setting = 'off'), count(*) from seen where name like $1`, fmt.Sprintf("mixed %d %%", waits)).Scan(&lazy, &all); err != nil || lazy != 0 || all != 3 {
			t.Errorf("of a batch whose write %d must wait %d of %d did not, error %v", waits, lazy, all, err)
		}
	}
}

func TestReadOnly(t *testing.T) {
	r := fresh(t, nil)
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := New(t.Context(), pool, nil); err == nil || !strings.Contains(err.Error(), "default_transaction_read_only") {
		t.Errorf("New: %v, want a refusal", err)
	}
}

// A standby is refused, also when the primary has become one under a store that
// is open.
func TestStandby(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t, &servers.Options{})
	if !server.Own {
		t.Skip("this needs a server of its own")
	}
	ctx := t.Context()
	pool := connect(t, server.URL)
	if err := Migrate(ctx, pool, nil); err != nil {
		t.Fatal(err)
	}
	s := open(t, pool, nil)
	hold(t, s, "a", "1")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	signal := filepath.Join(server.Dir, "data", "standby.signal")
	if err := os.WriteFile(signal, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(ctx, []driver.Key{{Name: "a"}}, driver.Fresh); err == nil || !strings.Contains(err.Error(), "is a standby") {
		t.Errorf("Load: %v, want a refusal", err)
	}
	if _, err := New(ctx, pool, nil); err == nil || !strings.Contains(err.Error(), "is a standby") {
		t.Errorf("New: %v, want a refusal", err)
	}
	if out, err := s.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "b"}, Old: driver.IfEmpty, Value: []byte("1")}}); err == nil {
		t.Errorf("a standby took a write: %+v", out)
	}
	says(t, s, "FAIL server: ")
}

// Heartbeats go on while the caller's pool is exhausted.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	r := fresh(t, nil)
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	ctx := t.Context()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, nil)
	const ttl = 1500 * time.Millisecond
	c, err := holdfast.New(s, &holdfast.Options{TTL: ttl, RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	lock, err := c.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	taken, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-lock.Context().Done():
		t.Errorf("lost: %v", lock.Err())
	case <-time.After(3 * ttl):
	}
	// A heartbeat that loses learns to what.
	k := driver.Key{Space: driver.Sessions, Name: "x"}
	for i := range 2 {
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		out, err := s.CompareAndSwap(within, []driver.Write{{Key: k, Old: driver.IfEmpty, Value: []byte("1")}})
		cancel()
		if err != nil || out[0].Won != (i == 0) || out[0].Record.Version == 0 {
			t.Errorf("heartbeat %d: %+v, error %v", i, out, err)
		}
	}
	taken.Release()
	if err := lock.Release(ctx); err != nil {
		t.Error(err)
	}
}

// The connections of our own are made like those of the pool, and named.
func TestOwnConnections(t *testing.T) {
	r := fresh(t, nil)
	exec(t, r.pool, `create role somebody; grant all on all tables in schema public to somebody; grant somebody to current_user`)
	t.Cleanup(func() { r.pool.Exec(context.Background(), `drop owned by somebody; drop role somebody`) })
	for _, name := range []string{"", "shop"} {
		config, err := pgxpool.ParseConfig(r.url)
		if err != nil {
			t.Fatal(err)
		}
		if name != "" {
			config.ConnConfig.RuntimeParams["application_name"] = name
		}
		before, after := 0, 0
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			before++
			c.RuntimeParams["work_mem"] = "4321kB"
			return nil
		}
		config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			after++
			_, err := c.Exec(ctx, `set role somebody`)
			return err
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s := open(t, pool, nil)
		put(t, s, driver.Key{Space: driver.Sessions, Name: "a"}, "1")
		var is, mem, role string
		if err := s.beats.Use(t.Context(), func(c *pgx.Conn) error {
			return c.QueryRow(t.Context(), `select current_setting('application_name'), current_setting('work_mem'), current_user`).Scan(&is, &mem, &role)
		}); err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"": "holdfast", "shop": "shop"}[name]; is != want || mem != "4321kB" || role != "somebody" || before != 2 || after != 2 {
			t.Errorf("it is called %q, want %q; work_mem %s, role %s, %d and %d hooks", is, want, mem, role, before, after)
		}
	}
}

// The replica of a server, for its doctor.
func TestReplicas(t *testing.T) {
	server := servers.Postgres(t, &servers.Options{Settings: []string{"wal_level=replica", "max_wal_senders=4"}})
	if !server.Own {
		t.Skip("this needs a server of its own")
	}
	if _, err := osexec.LookPath("pg_receivewal"); err != nil {
		t.Skip("pg_receivewal is not on PATH")
	}
	r := migrated(t, server.URL, nil)
	dir := t.TempDir()
	receive := osexec.Command("pg_receivewal", "-D", dir, "-d", server.URL+"&application_name=far_away")
	if err := receive.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { receive.Process.Kill(); receive.Wait() }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var n int
		if err := r.pool.QueryRow(t.Context(), `select count(*) from pg_stat_replication where state = 'streaming'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			break
		}
		if time.Now().After(end) {
			t.Skip("the replica does not stream")
		}
	}
	says(t, r.Store, "slow replication: asynchronous only (far_away): ")
}

// A program that takes one lock and ends needs one connection.
func TestOneConnection(t *testing.T) {
	r := fresh(t, nil)
	config, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { made++; return nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, nil)
	began := time.Now()
	c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); made != 1 && took < time.Second {
		t.Errorf("it made %d connections in %v, want 1", made, took)
	}
}

// as a role of its own that logs in with a setting.
func setFor(t *testing.T, r reopener, role, setting string, grants ...string) *pgxpool.Pool {
	t.Helper()
	pool := as(t, r, role, grants...)
	exec(t, r.pool, `alter role `+pool.Config().ConnConfig.User+` set `+setting)
	return pool
}

// Rows that a policy hides would be free names.
func TestRowSecurity(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	app := as(t, r, "app", documented(t, "app", &Options{Schema: "public", Prefix: "holdfast_"})...)
	s := open(t, app, nil)
	hold(t, s, "a", "1")
	for _, table := range []string{"holdfast_records", "holdfast_meta"} {
		exec(t, r.pool, `alter table `+table+` enable row level security`)
		if _, err := New(ctx, app, nil); err == nil || !strings.Contains(err.Error(), "row-level security") {
			t.Errorf("New of a role that %s hides its rows from: %v", table, err)
		}
		says(t, s, "FAIL schema: ")
		open(t, r.pool, nil) // the owner is not concerned
		exec(t, r.pool, `alter table `+table+` disable row level security`)
	}
	says(t, s, "ok schema: ")
	exec(t, r.pool, `alter table holdfast_records enable row level security, force row level security; alter role `+app.Config().ConnConfig.User+` bypassrls`)
	if _, err := New(ctx, app, nil); err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("New where rows are hidden from the fence: %v", err)
	}
}

// Without our trigger a version may repeat.
func TestReplicationRole(t *testing.T) {
	r := fresh(t, nil)
	app := setFor(t, r, "app", "session_replication_role = replica", documented(t, "app", &Options{Schema: "public", Prefix: "holdfast_"})...)
	if _, err := New(t.Context(), app, nil); err == nil || !strings.Contains(err.Error(), "session_replication_role is replica") {
		t.Errorf("New: %v, want a refusal", err)
	}
}

// Where everybody may create beside the tables, the doctor says so.
func TestOpenSchema(t *testing.T) {
	r := fresh(t, nil)
	exec(t, r.pool, `grant create on schema public to public`)
	says(t, r.Store, "slow schema: everybody may create in the schema public ")
}
