package spanner_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	hfspanner "github.com/holdfast-lock/holdfast/spanner"
)

// The example needs a database: TestExample runs it on an emulator.

// Locks in the database of the application, and a write that only their holder makes.
func ExampleNew() {
	err := func(ctx context.Context) error {
		conn, err := spanner.NewClient(ctx, os.Getenv("SPANNER_DATABASE")) // it stays yours: projects/P/instances/I/databases/D
		if err != nil {
			return err
		}
		defer conn.Close()
		store, err := hfspanner.New(ctx, conn, nil)
		if err != nil {
			return err // the table is missing: holdfast schema apply
		}
		client, err := holdfast.New(store, nil)
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
			fmt.Println("holding", lock.Name())
			_, err := conn.ReadWriteTransaction(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
				if err := hfspanner.Fence(ctx, txn, lock); err != nil {
					return err // ErrLost: nothing is done
				}
				return txn.BufferWrite([]*spanner.Mutation{
					spanner.InsertOrUpdate("accounts", []string{"name", "balance"}, []any{"ana", 90}),
				})
			})
			return err // pass ctx on to all that the work does
		})
	}(context.Background())
	fmt.Println(err)
}

func TestExample(t *testing.T) {
	name := strings.TrimPrefix(servers.Spanner(t, nil).Database(t), "spanner://")
	t.Setenv("SPANNER_DATABASE", name)
	conn, err := spanner.NewClient(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	admin, err := database.NewDatabaseAdminClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	if err := hfspanner.Migrate(t.Context(), admin, conn, nil); err != nil {
		t.Fatal(err)
	}
	accounts(t, admin, name)
	if got, want := printed(t, ExampleNew), "holding nightly\n<nil>\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func accounts(t *testing.T, admin *database.DatabaseAdminClient, name string) {
	t.Helper()
	op, err := admin.UpdateDatabaseDdl(t.Context(), &databasepb.UpdateDatabaseDdlRequest{
		Database: name, Statements: []string{`create table accounts (name string(max), balance int64) primary key (name)`}})
	if err == nil {
		err = op.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// printed is what f writes to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	old := os.Stdout
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	os.Stdout = file
	defer func() { os.Stdout = old }()
	f()
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
