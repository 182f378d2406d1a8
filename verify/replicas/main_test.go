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
	full = flag.Bool("full", false, "five minutes instead of half a one")

	holdfastPath string // the command under test, built once
)

func TestMain(m *testing.M) {
	flag.Parse()
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
	c := exec.Command("go", "build", "-o", holdfastPath, ".")
	c.Dir = "../../cmd/holdfast"
	if out, err := c.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build holdfast: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
