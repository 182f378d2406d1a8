//go:build linux

package janusgraph

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

var full = flag.Bool("full", false, "ten minutes instead of twenty seconds")

func TestMain(m *testing.M) {
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
