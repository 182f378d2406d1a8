package directory_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/directory"
)

// Several hosts mount the directory. It was prepared once, by one of them.
func Example() {
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := directory.Migrate(dir); err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), dir); err != nil {
		log.Fatal(err)
	}
	// Output:
	// exported
}

func run(ctx context.Context, dir string) error {
	store, err := directory.New(dir) // one that directory.Migrate has prepared
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := holdfast.New(store, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Do(ctx, "export", func(context.Context, *holdfast.Lock) error {
		fmt.Println("exported")
		return nil
	})
}
