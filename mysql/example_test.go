package mysql_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/mysql"
)

// A fenced write: who has lost the lock cannot commit. The locks live in the
// application's own database, so the check is part of its transaction.
func ExampleFence() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "app:secret@tcp(db.example:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	store, err := mysql.New(ctx, db, nil) // once for each process; mysql.Migrate has made the tables
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(ctx, "orders/42", func(ctx context.Context, lock *holdfast.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, `update orders set state = 'paid' where id = 42`); err != nil {
			return err
		}
		if err := mysql.Fence(ctx, tx, lock); err != nil { // last before Commit
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		log.Fatal(err)
	}
}
