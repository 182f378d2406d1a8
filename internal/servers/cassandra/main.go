// Command cassandra starts a cluster of three Cassandra nodes for tests, prints
// its URL, and stops it when its standard input ends:
//
//	HOLDFAST_TEST_CASSANDRA=cassandra://127.0.0.1,127.0.0.2,127.0.0.3:PORT
//
// is then for the tests of many processes. It exits with 69 if Java or Maven is
// not installed.
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
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	c, err := servers.StartCassandra(ctx, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, servers.ErrMissing) {
			os.Exit(69)
		}
		os.Exit(1)
	}
	fmt.Println(c.URL)
	<-ctx.Done()
	if err := c.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
