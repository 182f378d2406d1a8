package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// Run a function under a lock in the application's own file.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "app.db")
	backup := func(ctx context.Context) error {
		fmt.Println("backing up")
		return ctx.Err()
	}

	err = func(ctx context.Context) error {
		store, err := sqlite.Open(ctx, path, &sqlite.Options{Create: true})
		if err != nil {
			return err
		}
		defer store.Close()
		client, err := holdfast.New(store, nil) // one per process
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
			return backup(ctx) // ctx ends when the lock is lost
		})
	}(context.Background())
	fmt.Println(err)
	// Output:
	// backing up
	// <nil>
}

// A fenced write: who has lost the lock cannot commit. The locks live in the
// application's own file, so the check is part of its transaction.
func ExampleFence() {
	db, client, done := open()
	defer done()
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
		if err := sqlite.Fence(ctx, tx, lock); err != nil { // last before Commit
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
	// Output:
	// as the holder: <nil>
	// afterwards refused: true
}

// The fence in plain SQL, for programs in any language: they need the name and the
// token.
func ExampleFence_sql() {
	db, client, done := open()
	defer done()
	ctx := context.Background()

	lock, err := client.Acquire(ctx, "orders/42")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)
	pay := func(token int64) error {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.ExecContext(ctx, strings.ReplaceAll(`
begin immediate;
update orders set state = 'paid' where id = 42;
insert into holdfast_fence (name, token) values ('orders/42', 1795226403001234);
commit;
`, "1795226403001234", fmt.Sprint(token)))
		return err
	}
	fmt.Println("as the holder:", pay(lock.Token()))
	fmt.Println("with an old token refused:", pay(17) != nil)
	// Output:
	// as the holder: <nil>
	// with an old token refused: true
}

// A trigger fences whatever is written into a table, whoever writes it: each row has
// to bring the token of its writer.
func ExampleFence_trigger() {
	db, client, done := open()
	defer done()
	ctx := context.Background()

	if _, err := db.ExecContext(ctx, `
create table ledger (amount integer not null, token integer not null);
create trigger ledger_fenced after insert on ledger
begin
  insert into holdfast_fence (name, token) values ('ledger', new.token);
end;
`); err != nil {
		log.Fatal(err)
	}
	err := client.Do(ctx, "ledger", func(ctx context.Context, lock *holdfast.Lock) error {
		_, err := db.ExecContext(ctx, `insert into ledger values (7, ?)`, lock.Token())
		return err
	})
	fmt.Println("as the holder:", err)
	_, err = db.ExecContext(ctx, `insert into ledger values (8, 17)`)
	fmt.Println("with an old token refused:", err != nil)
	// Output:
	// as the holder: <nil>
	// with an old token refused: true
}

// open makes the application's database with one order, and a client of the locks in it.
func open() (db *sql.DB, client *holdfast.Client, done func()) {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(dir, "app.db")
	store, err := sqlite.Open(context.Background(), path, &sqlite.Options{Create: true})
	if err != nil {
		log.Fatal(err)
	}
	client, err = holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec(`create table orders (id integer primary key, state text); insert into orders values (42, 'new')`); err != nil {
		log.Fatal(err)
	}
	return db, client, func() { db.Close(); client.Close(); store.Close(); os.RemoveAll(dir) }
}
