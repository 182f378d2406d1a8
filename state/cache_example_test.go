//go:build linux || darwin

package state_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

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

// The refs of a real repository, from git or from the cache. Pushes take part
// as docs/git.md tells.
func ExampleCache_Get_git() {
	dir, err := os.MkdirTemp("", "git")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cache, err := state.OpenCache(filepath.Join(dir, "cache"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	repo := filepath.Join(dir, "shop.git")
	told := new(strings.Builder)
	if err := exec.Command("git", "init", "-q", "--bare", repo).Run(); err == nil {
		if err := advertise(context.Background(), cache, repo, told); err != nil {
			log.Fatal(err)
		}
	} else { // no git here
		told.WriteString("0000")
	}
	fmt.Println(strings.HasSuffix(told.String(), "0000")) // how it ends
	// Output: true
}

func advertise(ctx context.Context, cache *state.Cache, repo string, w io.Writer) error {
	refs, err := state.Dir(repo, nil) // pushes run inside refs.Write, or holdfast state write
	if err != nil {
		return err
	}
	blob, err := cache.Get(ctx, refs, "info/refs v1", func(ctx context.Context, w io.Writer) error {
		git := exec.CommandContext(ctx, "git", "upload-pack", "--advertise-refs", repo)
		git.Stdout = w
		return git.Run()
	})
	if err != nil {
		return err
	}
	defer blob.Close()
	_, err = io.Copy(w, blob)
	return err
}
