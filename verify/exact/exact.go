// Package exact builds tests in which all that happens in a testing/synctest
// bubble is decided by the bubble: a seed that is played again goes the same way,
// to the last bit. What Go's scheduler leaves to chance there (which of several
// ready cases a select takes, the order of a map, of timers that ring at the same
// instant, when a goroutine has had its time) is taken out of copies of some files of
// the runtime, which -overlay puts in place of the installed ones; nothing is
// written into Go's tree. The idea, to run the real program on a scheduler without
// chance, is FoundationDB's.
package exact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// env says that a process is one that was built so.
const env = "HOLDFAST_EXACT"

// Ours says whether this process is exact.
func Ours() bool { return os.Getenv(env) != "" }

// ErrRuntime is that of a Go whose runtime reads otherwise.
var ErrRuntime = errors.New("this version of Go cannot be made exact")

// edits are of files in $GOROOT/src/runtime. Each text is there once.
var edits = []struct{ file, old, new string }{
	{"synctest.go", "type synctestBubble struct {\n", `// next is a number that nothing outside of the bubble has a part in.
//
//go:nosplit
func (b *synctestBubble) next() uint64 {
	b.random += 0x9e3779b97f4a7c15
	x := b.random
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

type synctestBubble struct {
	random uint64
`},
	{"rand.go", "func maps_rand() uint64 {\n", "func maps_rand() uint64 {\n	if b := getg().bubble; b != nil {\n		return b.next()\n	}\n"},
	{"select.go", "		j := cheaprandn(uint32(norder + 1))\n",
		"		j := cheaprandn(uint32(norder + 1))\n		if b := getg().bubble; b != nil {\n			j = uint32(b.next() % uint64(norder+1))\n		}\n"},
	{"time.go", "			t.rand = cheaprand()\n", "			t.rand = 0\n"},
	// And one for speed: goroutines begin with stacks that need not be copied soon.
	{"stack.go", "	startingStackSize = uint32(round2(int32(avg)))\n", "	startingStackSize = max(8192, uint32(round2(int32(avg))))\n"},
	{"proc.go", "		} else if pd.schedwhen+forcePreemptNS <= now {\n			preemptone(pp)\n", "		} else if pd.schedwhen+forcePreemptNS <= now {\n"},
}

// Build builds the tests of a package, in dir, to be run by Command. more are
// files to put in place besides, as mutants are.
func Build(dir, pkg, to string, more map[string]string) error {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	tmp, err := os.MkdirTemp("", "exact")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	overlay := map[string]string{}
	for from, by := range more {
		overlay[from] = by
	}
	for _, e := range edits {
		path := filepath.Join(strings.TrimSpace(string(out)), "src", "runtime", e.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Count(text, []byte(e.old)) != 1 {
			return fmt.Errorf("%w: %s of %s has not the text that is to be replaced", ErrRuntime, path, runtime.Version())
		}
		overlay[path] = filepath.Join(tmp, e.file)
		if err := os.WriteFile(overlay[path], bytes.Replace(text, []byte(e.old), []byte(e.new), 1), 0o600); err != nil {
			return err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	file := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	cmd := exec.Command("go", "test", "-vet=off", "-c", "-overlay", file, "-o", to, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// Command runs what Build has built, on one processor.
func Command(bin string, args ...string) *exec.Cmd {
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), env+"=1", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	return cmd
}
