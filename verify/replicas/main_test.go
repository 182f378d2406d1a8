//go:build linux

package replicas

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	full     = flag.Bool("full", false, "five minutes instead of half a one, and 50 episodes on each store; also on Cassandra")
	onStores = flag.String("stores", "", "postgres,mysql,sqlite,etcd,cassandra: on these alone")
	episodes = flag.Int("episodes", 0, "so many on each store")
	seed     = flag.Uint64("seed", 1, "of what is drawn")

	holdfastPath string // the command under test, built once
)

// TestMain is also a program that takes locks: this one, started again in a role.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := work(role, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(70)
		}
		os.Exit(0)
	}
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == flag.Lookup("test.parallel").DefValue {
		flag.Set("test.parallel", "4") // mostly they wait
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-replicas")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	holdfastPath = filepath.Join(dir, "holdfast")
	c := exec.Command("go", "build", "-o", dir, "./...")
	c.Dir = "../../cmd/holdfast"
	if out, err := c.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build holdfast: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
