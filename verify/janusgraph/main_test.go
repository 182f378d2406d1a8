//go:build linux

package janusgraph

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

var full = flag.Bool("full", false, "ten minutes instead of twenty seconds")

// TestMain is also the worker: this program, started again with a role.
func TestMain(m *testing.M) {
	if os.Getenv("JANUSGRAPH_ROLE") != "" {
		if err := work(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(70)
		}
		os.Exit(0)
	}
	flag.Parse()
	var err error
	if buildDir, err = os.MkdirTemp("", "holdfast-janusgraph-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(code)
}
