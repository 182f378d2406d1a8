package mysql_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net/url"
	"os"
	"strings"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/mysql"
)

// The examples need a server: TestExamples runs them on one.

// Locks in the application's own database.
func ExampleNew() {
	err := func(ctx context.Context) error {
		db, err := sql.Open("mysql", os.Getenv("DATABASE_DSN")) // it stays yours
		if err != nil {
			return err
		}
		defer db.Close()
		store, err := mysql.New(ctx, db, nil) // makes no tables: see Migrate
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

// The tables are made by the user who will own the view and the procedure; the
// locks are then taken by one who may not make any.
func ExampleMigrate() {
	ctx := context.Background()
	db, err := sql.Open("mysql", os.Getenv("DATABASE_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	fmt.Println(mysql.Migrate(ctx, db, nil))
	fmt.Println(mysql.Verify(ctx, db, nil))
}

// A fenced write: who has lost the lock cannot commit.
func ExampleFence() {
	db, client := open()
	defer db.Close()
	defer client.Close()
	ctx := context.Background()

	pay := func(lock *holdfast.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, `update orders set state = 'paid' where id = 42`); err != nil {
			return err
		}
		if err := mysql.Fence(ctx, tx, lock); err != nil { // last before Commit
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
// the token. The server does not roll back by itself.
func ExampleFence_sql() {
	db, client := open()
	defer db.Close()
	defer client.Close()
	ctx := context.Background()

	lock, err := client.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	pay := func(token int64) (err error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, statement := range strings.SplitAfter(`
start transaction;
update orders set state = 'paid' where id = 42;
call holdfast_fence('orders/42', 1795226403001234);
commit;`, ";") {
			statement = strings.ReplaceAll(statement, "1795226403001234", fmt.Sprint(token))
			if strings.TrimSpace(statement) == "" {
				continue
			}
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				conn.ExecContext(ctx, `rollback`)
				return err
			}
		}
		return nil
	}
	fmt.Println("as the holder:", pay(lock.Token()))
	fmt.Println("with an old token:", pay(17))
	lock.Release(ctx)
}

// A trigger fences whatever is written into a table, whoever writes it: each row
// has to bring the token of its writer.
func ExampleFence_trigger() {
	db, client := open()
	defer db.Close()
	defer client.Close()
	ctx := context.Background()

	for _, statement := range []string{
		`create table ledger (amount bigint not null, token bigint not null);`, `
create trigger ledger_fenced before insert on ledger
for each row call holdfast_fence('ledger', new.token);`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			log.Fatal(err)
		}
	}
	err := client.Do(ctx, "ledger", func(ctx context.Context, lock *holdfast.Lock) error {
		_, err := db.ExecContext(ctx, `insert into ledger values (7, ?)`, lock.Token())
		return err
	})
	fmt.Println("as the holder:", err)
	_, err = db.ExecContext(ctx, `insert into ledger values (8, 17)`)
	fmt.Println("with an old token:", err)
}

// open opens the database of the examples.
func open() (*sql.DB, *holdfast.Client) {
	db, err := sql.Open("mysql", os.Getenv("DATABASE_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := mysql.New(context.Background(), db, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	return db, client
}

func TestExamples(t *testing.T) {
	dsn := dsn(t, servers.MySQL(t, nil).Database(t), nil)
	t.Setenv("DATABASE_DSN", dsn)
	db := connect(t, dsn)
	for _, q := range []string{`create table orders (id int primary key, state text)`, `insert into orders values (42, 'new')`} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []struct {
		name    string
		example func()
		want    string
	}{
		{"Migrate", ExampleMigrate, "<nil>\n<nil>\n"},
		{"New", ExampleNew, "holding nightly\n<nil>\n"},
		{"Fence", ExampleFence, "as the holder: <nil>\nafterwards refused: true\n"},
		{"Fence_sql", ExampleFence_sql, "as the holder: <nil>\n" +
			"with an old token: Error 1644 (HF002): token 17 no longer holds \"orders/42\"; roll back\n"},
		{"Fence_trigger", ExampleFence_trigger, "as the holder: <nil>\n" +
			"with an old token: Error 1644 (HF002): token 17 no longer holds \"ledger\"; roll back\n"},
	} {
		t.Run(e.name, func(t *testing.T) {
			if got := printed(t, e.example); got != e.want {
				t.Errorf("it printed\n%s\nwant\n%s", got, e.want)
			}
		})
	}
	var state string
	if err := db.QueryRow(`select state from orders`).Scan(&state); err != nil || state != "paid" {
		t.Errorf("the order is %q, error %v", state, err)
	}
}

// grants are what docs/stores/mysql.md gives to users.
const grants = `
grant select, insert, update, delete on shop.holdfast_records to app;
grant select, update on shop.holdfast_meta to app;
grant execute on procedure shop.holdfast_fence to app;
grant select on shop.holdfast_records to dba;
grant select on shop.holdfast_meta to dba;
grant select on shop.holdfast_locks to dba;
grant select on shop.holdfast_history to dba;
`

func TestGrants(t *testing.T) {
	target := servers.MySQL(t, nil).Database(t)
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	db := connect(t, dsn(t, target, nil))
	if err := mysql.Migrate(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	suffix := "_" + strings.ToLower(rand.Text()[:12])
	for _, user := range []string{"app", "dba"} {
		if _, err := db.Exec("create user " + user + suffix + " identified by 'secret'"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := db.Exec("drop user " + user + suffix); err != nil {
				t.Error(err)
			}
		})
	}
	given := strings.NewReplacer(" app;", " app"+suffix, " dba;", " dba"+suffix, "shop.", u.Path[1:]+".").Replace(strings.TrimSpace(grants))
	for grant := range strings.Lines(given) {
		if _, err := db.Exec(grant); err != nil {
			t.Fatal(err)
		}
	}

	app := connect(t, dsn(t, target, url.UserPassword("app"+suffix, "secret")))
	store, err := mysql.New(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client, err := holdfast.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lock, err := client.Acquire(t.Context(), "orders/42")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := app.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`call holdfast_fence('orders/42', ?)`, lock.Token()); err != nil {
		t.Errorf("the fence as app: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	dba := connect(t, dsn(t, target, url.UserPassword("dba"+suffix, "secret")))
	var name, state string
	if err := dba.QueryRow(`select name, state from holdfast_locks`).Scan(&name, &state); err != nil || name != "orders/42" || state != "held" {
		t.Errorf("the view shows %q %q, error %v", name, state, err)
	}
}

// dsn is the data source name of a URL, for its user or another one.
func dsn(t *testing.T, target string, user *url.Userinfo) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	if user == nil {
		user = u.User
	}
	c := mysqldriver.NewConfig()
	c.Net, c.Addr, c.DBName, c.User = "tcp", u.Host, u.Path[1:], user.Username()
	c.Passwd, _ = user.Password()
	return c.FormatDSN()
}

func connect(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
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
