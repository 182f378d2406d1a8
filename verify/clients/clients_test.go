package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const root = "../.."

// tool finds a program; where there is none the test is skipped, aloud.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s here: the client for it is not run", name)
	}
	return path
}

// nodeOf20 finds Node 20 or newer, which has what the client uses.
func nodeOf20(t *testing.T) string {
	t.Helper()
	node := tool(t, "node")
	out, err := exec.Command(node, "--version").Output()
	var major int
	if _, scan := fmt.Sscanf(string(out), "v%d", &major); err != nil || scan != nil || major < 20 {
		t.Skipf("node is %q, %v: the client for it needs version 20", out, err)
	}
	return node
}

func TestPython(t *testing.T) {
	t.Parallel()
	python := tool(t, "python3")
	b := newBadServer(t)
	cmd := exec.CommandContext(t.Context(), python, root+"/clients/cases/run.py", root+"/clients/cases/cases.json", b.proxy.URL, b.control.URL)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+root+"/clients/python/src", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	results(t, out, err)
}

// A task that is cancelled while it waits leaves the line, and the lock goes with its block.
func TestPythonAsync(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), tool(t, "python3"), root+"/clients/cases/aio.py", newBadServer(t).proxy.URL)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+root+"/clients/python/src", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A block ends with Lost if its lock was lost, a process that is forked has locks of its own, and a
// lock whose time was over while the machine slept is lost when it wakes up.
func TestPythonBlocks(t *testing.T) {
	t.Parallel()
	b := newBadServer(t)
	cmd := exec.CommandContext(t.Context(), tool(t, "python3"), root+"/clients/cases/block.py", b.proxy.URL, b.control.URL)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+root+"/clients/python/src", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTypeScript(t *testing.T) {
	t.Parallel()
	node := nodeOf20(t)
	b := newBadServer(t)
	cmd := exec.CommandContext(t.Context(), node, root+"/clients/cases/run.mjs", filepath.Join(typescript(t), "dist/holdfast.js"), root+"/clients/cases/cases.json", b.proxy.URL, b.control.URL)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	results(t, out, err)
}

// A fetch that never settles is given up, and Node does not end meanwhile, as it does when nothing
// is left that can wake it.
func TestTypeScriptFetchHangs(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), nodeOf20(t), root+"/clients/cases/hang.mjs", filepath.Join(typescript(t), "dist/holdfast.js"), newBadServer(t).proxy.URL)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A block ends with Lost if its lock was lost, in order if that was released in it; and a lock whose
// time was over while the machine slept is lost when it wakes up.
func TestTypeScriptBlocks(t *testing.T) {
	t.Parallel()
	b := newBadServer(t)
	cmd := exec.CommandContext(t.Context(), nodeOf20(t), root+"/clients/cases/block.mjs", filepath.Join(typescript(t), "dist/holdfast.js"), b.proxy.URL, b.control.URL)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// typescript is a directory in which the client was built, once for all tests; nothing is built
// in the source.
func typescript(t *testing.T) string {
	t.Helper()
	npm := tool(t, "npm")
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "hf"); built.err != nil {
			return
		}
		if built.err = os.CopyFS(built.dir, os.DirFS(root+"/clients/typescript")); built.err != nil {
			return
		}
		for _, args := range [][]string{{"ci", "--no-audit", "--no-fund"}, {"run", "build"}} {
			cmd := exec.Command(npm, args...)
			cmd.Dir = built.dir
			if out, err := cmd.CombinedOutput(); err != nil {
				built.err = fmt.Errorf("npm %v: %w\n%s", args, err, out)
				return
			}
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

var built struct {
	sync.Once
	dir string
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(built.dir)
	os.Exit(code)
}
