package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// A fenced write: who has lost the lock cannot commit. The locks live in the
// application's own file, so the check is part of its transaction.
func ExampleFence() {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "app.db")
	ctx := context.Background()

	store, err := sqlite.Open(ctx, path, &sqlite.Options{Create: true})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`create table orders (id integer primary key, state text)`); err != nil {
		log.Fatal(err)
	}

	pay := func(lock *holdfast.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.Exec(`insert or replace into orders values (42, 'paid')`); err != nil {
			return err
		}
		if err := sqlite.Fence(ctx, tx, lock); err != nil { // last before Commit
			return err
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
