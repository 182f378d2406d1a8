//go:build linux

package git

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	full = flag.Bool("full", false, "a minute, not ten seconds")

	holdfastPath string // the command under test, built once
)

// marker is in the environment of all that a soak starts.
const marker = "HOLDFAST_GIT_SOAK"

// The test binary, started again with a role, is a writer or a reader.
func TestMain(m *testing.M) {
	if role := os.Getenv("GIT_ROLE"); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-git")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	holdfastPath = filepath.Join(dir, "bin", "holdfast")
	c := exec.Command("go", "build", "-o", holdfastPath, ".")
	c.Dir = "../../cmd/holdfast"
	if out, err := c.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build holdfast: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// needGit skips a test aloud where there is no git, or not what the hook uses.
func needGit(t *testing.T) {
	t.Helper()
	for _, name := range []string{"git", "sh", "ps", "setsid"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("NOT TESTED, a cache of what git says: %v", err)
		}
	}
}

// now is the clock of all processes of this host.
func now() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}
