package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// The examples need a server: TestExamples runs them on one.

// Locks in the application's own database.
func ExampleNew() {
	err := func(ctx context.Context) error {
		pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL")) // it stays yours
		if err != nil {
			return err
		}
		defer pool.Close()
		store, err := postgres.New(ctx, pool, nil) // makes no tables: see Migrate
		if err != nil {
			return err
		}
		defer store.Close()
		client, err := holdfast.New(store, nil)
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
			fmt.Println("holding", lock.Name())
			return ctx.Err() // pass ctx on to all that the work does
		})
	}(context.Background())
	fmt.Println(err)
}

// The tables are made by the role that will own them; the locks are then taken by
// one that may not make any.
func ExampleMigrate() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	fmt.Println(postgres.Migrate(ctx, pool, nil))
	fmt.Println(postgres.Verify(ctx, pool, nil))
}

// A fenced write: who has lost the lock cannot commit.
func ExampleFence() {
	pool, client := open()
	defer pool.Close()
	defer client.Close()
	ctx := context.Background()

	lock, err := client.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	pay := func() error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `update orders set state = 'paid' where id = 42`); err != nil {
				return err
			}
			return postgres.Fence(ctx, tx, lock) // last before the commit; ErrLost rolls back
		})
	}
	fmt.Println("as the holder:", pay())
	lock.Release(ctx)
	fmt.Println("afterwards refused:", errors.Is(pay(), holdfast.ErrLost))
}

// The same with database/sql and any driver for PostgreSQL. The locks still need
// a pgxpool.Pool, which may be small.
func ExampleFenceSQL() {
	pool, client := open()
	defer pool.Close()
	defer client.Close()
	ctx := context.Background()
	db := stdlib.OpenDBFromPool(pool) // or sql.Open("postgres", …)
	defer db.Close()

	pay := func(lock *holdfast.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, `update orders set state = 'paid' where id = 42`); err != nil {
			return err
		}
		if err := postgres.FenceSQL(ctx, tx, lock); err != nil { // last before Commit
			return err // ErrLost: roll back
		}
		return tx.Commit()
	}
	lock, err := client.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("as the holder:", pay(lock))
	lock.Release(ctx)
	fmt.Println("afterwards refused:", errors.Is(pay(lock), holdfast.ErrLost))
}

// The fence in plain SQL, for programs in any language: they need the name and
// the token.
func ExampleFence_sql() {
	pool, client := open()
	defer pool.Close()
	defer client.Close()
	ctx := context.Background()

	lock, err := client.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	pay := func(token int64) error {
		_, err := pool.Exec(ctx, strings.ReplaceAll(`
begin;
update orders set state = 'paid' where id = 42;
select holdfast_fence('orders/42', 1795226403001234);
commit;`, "1795226403001234", fmt.Sprint(token)))
		return err
	}
	fmt.Println("as the holder:", pay(lock.Token()))
	fmt.Println("with an old token:", pay(17))
	lock.Release(ctx)
}

// A trigger fences whatever is written into a table, whoever writes it: each row
// has to bring the token of its writer.
func ExampleFence_trigger() {
	pool, client := open()
	defer pool.Close()
	defer client.Close()
	ctx := context.Background()

	if _, err := pool.Exec(ctx, `
create table ledger (amount bigint not null, token bigint not null);
create function ledger_fenced() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform public.holdfast_fence('ledger', new.token);
  return new;
end $$;
create trigger ledger_fenced before insert on ledger
for each row execute function ledger_fenced();`); err != nil {
		log.Fatal(err)
	}
	err := client.Do(ctx, "ledger", func(ctx context.Context, lock *holdfast.Lock) error {
		_, err := pool.Exec(ctx, `insert into ledger values (7, $1)`, lock.Token())
		return err
	})
	fmt.Println("as the holder:", err)
	_, err = pool.Exec(ctx, `insert into ledger values (8, 17)`)
	fmt.Println("with an old token:", err)
}

// open opens the database of the examples.
func open() (*pgxpool.Pool, *holdfast.Client) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := postgres.New(ctx, pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	return pool, client
}

func TestExamples(t *testing.T) {
	url := servers.Postgres(t, nil).Database(t)
	t.Setenv("DATABASE_URL", url)
	db := connect(t, url)
	if _, err := db.Exec(t.Context(), `create table orders (id int primary key, state text); insert into orders values (42, 'new')`); err != nil {
		t.Fatal(err)
	}
	const fenced = "as the holder: <nil>\nafterwards refused: true\n"
	for _, e := range []struct {
		name    string
		example func()
		want    string
	}{
		{"Migrate", ExampleMigrate, "<nil>\n<nil>\n"},
		{"New", ExampleNew, "holding nightly\n<nil>\n"},
		{"Fence", ExampleFence, fenced},
		{"FenceSQL", ExampleFenceSQL, fenced},
		{"Fence_sql", ExampleFence_sql, "as the holder: <nil>\n" +
			"with an old token: ERROR: token 17 no longer holds \"orders/42\"; roll back (SQLSTATE HF002)\n"},
		{"Fence_trigger", ExampleFence_trigger, "as the holder: <nil>\n" +
			"with an old token: ERROR: token 17 no longer holds \"ledger\"; roll back (SQLSTATE HF002)\n"},
	} {
		t.Run(e.name, func(t *testing.T) {
			if got := printed(t, e.example); got != e.want {
				t.Errorf("it printed\n%s\nwant\n%s", got, e.want)
			}
		})
	}
	var state string
	if err := db.QueryRow(t.Context(), `select state from orders`).Scan(&state); err != nil || state != "paid" {
		t.Errorf("the order is %q, error %v", state, err)
	}
}

// grants are what docs/stores/postgres.md gives to roles.
const grants = `
grant select, insert, update, delete on holdfast_records to app;
grant select, update on holdfast_meta to app;
grant execute on function holdfast_fence(text, bigint), holdfast_fence(bytea, bigint) to app;
grant select on holdfast_records, holdfast_meta, holdfast_locks, holdfast_history to dba;
`

func TestGrants(t *testing.T) {
	ctx, url := t.Context(), servers.Postgres(t, nil).Database(t)
	pool := connect(t, url)
	if err := postgres.Migrate(ctx, pool, nil); err != nil {
		t.Fatal(err)
	}
	suffix := "_" + strings.ToLower(rand.Text()[:12])
	for _, q := range []string{
		"create role app" + suffix + "; create role dba" + suffix,
		strings.NewReplacer(" app;", " app"+suffix+";", " dba;", " dba"+suffix+";").Replace(grants),
		"create table orders (id int); grant insert on orders to app" + suffix,
	} {
		if _, err := pool.Exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		roles := "app" + suffix + ", dba" + suffix
		if _, err := pool.Exec(context.Background(), "drop owned by "+roles+"; drop role "+roles); err != nil {
			t.Error(err)
		}
	})

	store, err := postgres.New(ctx, connect(t, url, "app"+suffix), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client, err := holdfast.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lock, err := client.Acquire(ctx, "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	for _, fence := range []string{`select holdfast_fence('orders/42', $1)`, `select holdfast_fence('orders/42'::bytea, $1)`} {
		if _, err := connect(t, url, "app"+suffix).Exec(ctx, fence, lock.Token()); err != nil {
			t.Errorf("%s: %v", fence, err)
		}
	}
	var name, state string
	if err := connect(t, url, "dba"+suffix).QueryRow(ctx, `select name, state from holdfast_locks`).Scan(&name, &state); err != nil || name != "orders/42" || state != "held" {
		t.Errorf("the view shows %q %q, error %v", name, state, err)
	}
}

// connect makes a pool of the server's user, or of another role.
func connect(t *testing.T, url string, role ...string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range role {
		config.ConnConfig.RuntimeParams["role"] = r
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// printed is what f writes to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = out }()
	text := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		text <- string(b)
	}()
	f()
	w.Close()
	return <-text
}
