package clients

import (
	"os"
	"os/exec"
	"path/filepath"
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

func TestTypeScript(t *testing.T) {
	t.Parallel()
	node, npm := tool(t, "node"), tool(t, "npm")
	b := newBadServer(t)
	dir := t.TempDir() // what is built is not left in the source
	if err := os.CopyFS(dir, os.DirFS(root+"/clients/typescript")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"ci", "--no-audit", "--no-fund"}, {"run", "build"}} {
		cmd := exec.CommandContext(t.Context(), npm, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("npm %v: %v\n%s", args, err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), node, root+"/clients/cases/run.mjs", filepath.Join(dir, "dist/holdfast.js"), root+"/clients/cases/cases.json", b.proxy.URL, b.control.URL)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	results(t, out, err)
}
