//go:build unix

package state_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/state"
)

// An answer is computed again only after its state was written to.
func ExampleCache_Get() {
	client, err := holdfast.New(memory.New(), nil) // or any other store
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	dir, err := os.MkdirTemp("", "cache")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cache, err := state.OpenCache(filepath.Join(dir, "refs"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	ctx := context.Background()
	refs := state.On(client, holdfast.JoinName("repo", "shop.git"))

	main := "e83c516"
	advertise := func() error {
		blob, err := cache.Get(ctx, refs, "info/refs v1", func(ctx context.Context, w io.Writer) error {
			fmt.Println("git is asked") // as in exec.CommandContext(ctx, "git", …) with Stdout = w
			_, err := fmt.Fprintln(w, main, "refs/heads/main")
			return err
		})
		if err != nil {
			return err
		}
		defer blob.Close()
		_, err = io.Copy(os.Stdout, blob)
		return err
	}
	for range 2 {
		if err := advertise(); err != nil {
			log.Fatal(err)
		}
	}
	err = refs.Write(ctx, func(ctx context.Context) error {
		main = "8bc9a0c" // a push
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := advertise(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// git is asked
	// e83c516 refs/heads/main
	// e83c516 refs/heads/main
	// git is asked
	// 8bc9a0c refs/heads/main
}
