// Command election shows who leads. Start it in several terminals:
//
//	go run ./examples/election
//
// One leads, the others wait in line. End it (Ctrl-C) or kill it (kill -9): the next
// one leads, with a higher term. Stop it (Ctrl-Z) for longer than a lease, and resume
// it: it says that it has lost the lead.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/directory"
)

func main() {
	log.SetFlags(log.Ltime)
	dir := flag.String("dir", filepath.Join(os.TempDir(), fmt.Sprint("election-", os.Getuid())), "a `directory` that all candidates share")
	name := flag.String("name", "leader", "what they stand for")
	lease := flag.Duration("lease", 5*time.Second, "how long a leader may be silent, at least 1s")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *name, *lease); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir, name string, lease time.Duration) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := directory.Migrate(dir); err != nil {
		return err
	}
	store, err := directory.New(dir)
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := holdfast.New(store, &holdfast.Options{TTL: lease})
	if err != nil {
		return err
	}
	defer client.Close()

	began := time.Now()
	err = client.Do(ctx, name+"/greeting", func(context.Context, *holdfast.Lock) error {
		log.Printf("pid %d is here: a plain lock takes %v, not a lease", os.Getpid(), time.Since(began).Round(10*time.Microsecond))
		return nil
	})
	if err != nil {
		return err
	}
	seat := client.Election(name)
	go func() {
		for leader, err := range seat.Observe(ctx) {
			switch {
			case err != nil:
				log.Print(err)
			case leader.Token == 0:
				log.Print("nobody leads")
			default:
				log.Printf("pid %d leads, term %d", leader.Owner.PID, leader.Token)
			}
		}
	}()
	return seat.Run(ctx, func(ctx context.Context, lock *holdfast.Lock) error {
		log.Printf("I lead, term %d", lock.Token())
		for {
			select {
			case <-time.After(time.Second):
				// Work. What it writes elsewhere carries lock.Token(), and is refused
				// there if a higher token has been seen: see docs/fence.md.
			case <-ctx.Done():
				log.Printf("I lead no more: %v", context.Cause(ctx))
				return context.Cause(ctx)
			}
		}
	})
}
