package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// shown are the blocks of a language in a recipe.
func shown(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/recipes", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(m[1]))
	}
	if len(blocks) == 0 {
		t.Fatalf("%s shows no %s", page, language)
	}
	return blocks
}

// recipe runs a program of a recipe, first while the lock is free and then while others hold it.
func recipe(t *testing.T, url string, b *badServer, env []string, program ...string) {
	t.Helper()
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), program[0], program[1:]...)
		cmd.Env = append(os.Environ(), append(env, "HOLDFAST_URL="+url, "HOLDFAST_SECRET=secret")...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(); err != nil || !regexp.MustCompile(`^dump with token \d+\ncopy with token \d+\n$`).MatchString(out) {
		t.Errorf("%v: %s", err, out)
	}
	lock, err := b.client.Acquire(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release(t.Context())
	if out, err := run(); err == nil || !strings.HasPrefix(out, "not now: ") {
		t.Errorf("of a lock that others hold: %v: %s", err, out)
	}
}

func TestPythonRecipe(t *testing.T) {
	t.Parallel()
	python := tool(t, "python3")
	dir := t.TempDir()
	for i, text := range shown(t, "python.md", "python") {
		path := filepath.Join(dir, "nightly.py")
		if i > 0 {
			path = filepath.Join(dir, "fenced.py")
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(python, "-m", "py_compile", path).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	b := newBadServer(t)
	recipe(t, b.proxy.URL, b, []string{"PYTHONPATH=" + root + "/clients/python/src", "PYTHONDONTWRITEBYTECODE=1"}, python, filepath.Join(dir, "nightly.py"))
}

func TestTypeScriptRecipe(t *testing.T) {
	t.Parallel()
	node := nodeOf20(t)
	dir, err := os.MkdirTemp(typescript(t), "recipe") // in the package, which its program imports by name
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "nightly.ts")
	if err := os.WriteFile(path, []byte("declare const process: any;\n"+shown(t, "typescript.md", "ts")[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	tsc := exec.Command(filepath.Join(dir, "../node_modules/.bin/tsc"), "--ignoreConfig", "--strict", "--target", "ES2022", "--module", "NodeNext",
		"--moduleResolution", "NodeNext", "--lib", "ES2023,ESNext.Disposable,DOM,DOM.AsyncIterable", "--skipLibCheck", "--types", "", "nightly.ts")
	tsc.Dir = dir
	if out, err := tsc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b := newBadServer(t)
	recipe(t, b.proxy.URL, b, nil, node, filepath.Join(dir, "nightly.js"))
}
