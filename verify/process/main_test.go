//go:build linux

package process

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/busy"
)

var (
	full = flag.Bool("full", false, "the full number of processes and rounds")

	// The programs under test, built once for each run of the tests.
	holdfastPath, actorPath string
)

// number is n in a normal run and more in a full one.
func number(n, more int) int {
	if *full {
		return more
	}
	return n
}

// The test binary, started again with a role, is a program that uses the library.
func TestMain(m *testing.M) {
	if role := os.Getenv("PROCESS_ROLE"); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(70)
		}
		os.Exit(0)
	}
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} { // nohup ignores, and what is started here shall not
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	flag.Parse()
	stretch = busy.Stretch()
	parallel := true
	flag.Visit(func(f *flag.Flag) { parallel = parallel && f.Name != "test.parallel" })
	if parallel {
		flag.Set("test.parallel", "8") // mostly they wait for a lease to run out
	}
	if *full {
		patience = 5 * time.Minute
	}
	patience *= time.Duration(stretch)
	os.Exit(run(m))
}

// stretch is by how much leases are longer than a machine of one's own would need.
var stretch = 1

func twoSeconds() string {
	_, text := lease(2 * time.Second)
	return text
}

// lease is a TTL that a holder keeps on this machine, as it is, and for a flag.
func lease(d time.Duration) (ttl time.Duration, text string) {
	d *= time.Duration(stretch)
	return d, d.String()
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "process")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755) // for tests as another user
	holdfastPath, actorPath = filepath.Join(dir, "holdfast"), filepath.Join(dir, "actor")
	for _, from := range []string{"../../cmd/holdfast", "actor"} {
		c := exec.Command("go", "build", "-o", dir, "./...")
		c.Dir = from
		if out, err := c.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", from, err, out)
			return 1
		}
	}
	return m.Run()
}
