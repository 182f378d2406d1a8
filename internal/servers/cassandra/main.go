// Command cassandra starts a cluster of three Cassandra nodes for tests, prints
// its URL, and stops it when its standard input ends. With
//
//	HOLDFAST_TEST_CASSANDRA=cassandra://127.0.0.1,127.0.0.2,127.0.0.3:PORT
//
// the tests of many processes share it. "cassandra fetch" only puts the jars,
// JanusGraph's too, into the user's cache. The command exits with 69 if Java or Maven
// is not installed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

func main() {
	run := serve
	if len(os.Args) > 1 {
		if run = fetch; os.Args[1] != "fetch" {
			fmt.Fprintln(os.Stderr, "usage: cassandra [fetch]")
			os.Exit(64)
		}
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, servers.ErrMissing) {
			os.Exit(69)
		}
		os.Exit(1)
	}
}

func fetch() error {
	ctx := context.Background()
	_, lib, _, err := servers.PrepareCassandra(ctx)
	if err != nil {
		return err
	}
	janus, err := servers.Jars(ctx, servers.JanusGraphJars)
	if err != nil {
		return err
	}
	fmt.Println(lib)
	fmt.Println(janus)
	return nil
}

func serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	c, err := servers.StartCassandra(ctx, servers.Quick)
	if err != nil {
		return err
	}
	fmt.Println(c.URL)
	<-ctx.Done()
	return c.Stop()
}
