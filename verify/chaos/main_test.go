//go:build linux

package chaos

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-lock/holdfast/verify/story"
)

var (
	full = flag.Bool("full", false, "the full number of episodes")
	keep = flag.Bool("keep", false, "keep a log of every episode, also of those without a fault found")
	seed = flag.Uint64("seed", 1, "of the plans of all episodes")
)

// TestMain is also the worker: this program, started again with a role.
func TestMain(m *testing.M) {
	if os.Getenv("CHAOS_ROLE") != "" {
		if err := story.Work(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(70)
		}
		os.Exit(0)
	}
	flag.Parse()
	parallel := true
	flag.Visit(func(f *flag.Flag) { parallel = parallel && f.Name != "test.parallel" })
	if parallel {
		flag.Set("test.parallel", "4") // mostly they wait
	}
	code := m.Run()
	removeEarlierWorkers()
	os.Exit(code)
}
