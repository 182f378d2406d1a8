package state_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/state"
)

// The refs of a repository go by a name. Whoever pushes does so within Write;
// whoever keeps answers made of the refs keeps them by the key.
func ExampleOn() {
	client, err := holdfast.New(memory.New(), nil) // or any other store
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	refs := state.On(client, holdfast.JoinName("repo", "shop.git"))

	before, err := refs.Key(ctx)
	if err != nil {
		log.Fatal(err)
	}
	err = refs.Write(ctx, func(ctx context.Context) error {
		during, err := refs.Key(ctx)
		fmt.Println("readers know of the write:", during.Writing)
		return err // push here; ctx ends when the lease is lost
	})
	if err != nil {
		log.Fatal(err)
	}
	after, err := refs.Key(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same state:", after.Equal(before))
	// Output:
	// readers know of the write: true
	// the same state: false
}

// The same in two files of a directory that other hosts and scripts share.
func ExampleDir() {
	repo, err := os.MkdirTemp("", "shop.git") // of your repository
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(repo)
	refs, err := state.Dir(repo, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	before, err := refs.Key(ctx)
	if err != nil {
		log.Fatal(err)
	}
	answer := "what the refs are" // asked of git
	after, err := refs.Key(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if !before.Writing && !after.Writing && after.Equal(before) {
		fmt.Println("may be kept by the key:", answer)
	}
	// Output: may be kept by the key: what the refs are
}

// A write that is no one function: its lease is renewed until End.
func ExampleState_Begin() {
	repo, err := os.MkdirTemp("", "shop.git")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(repo)
	refs, err := state.Dir(repo, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	w, err := refs.Begin(ctx)
	if err != nil {
		log.Fatal(err) // nothing may be written
	}
	if err := w.Context().Err(); err == nil { // in front of each change
		fmt.Println("writing")
	}
	fmt.Println(w.End(ctx))
	// Output:
	// writing
	// <nil>
}
