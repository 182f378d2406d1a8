package holdfast_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/holdfast-lock/holdfast"

// notStores are directories of this repository that may import any package of
// it: tools, tests and what is built on locks.
var notStores = []string{"bench", "clienttest", "cmd", "drivertest", "faultstore", "otel", "prometheus", "serve", "state", "verify"}

// packages lists the directories of the library: the root and every store.
func packages(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{"."}
	for _, e := range entries {
		files, _ := filepath.Glob(filepath.Join(e.Name(), "*.go"))
		if e.IsDir() && len(files) > 0 && !slices.Contains(notStores, e.Name()) {
			dirs = append(dirs, e.Name())
		}
	}
	return dirs
}

// deps are the packages outside the standard library that a package and its
// dependencies import, itself left out.
func deps(t *testing.T, dir, goos string) (paths []string) {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command")
	}
	cmd := exec.Command(goTool, "list", "-deps", "-json=ImportPath,Standard,DepOnly", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(out); ; {
		var p struct {
			ImportPath        string
			Standard, DepOnly bool
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if !p.Standard && p.DepOnly {
			paths = append(paths, p.ImportPath)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return paths
}

// importsOf lists what each file of a package imports, its tests left out.
func importsOf(t *testing.T, dir string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}
	imports := make(map[string][]string)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			imports[name] = append(imports[name], strings.Trim(spec.Path.Value, `"`))
		}
	}
	return imports
}

// The core does no I/O: time is an argument, and nothing in it waits.
func TestCoreImports(t *testing.T) {
	for _, dir := range []string{"internal/core", "internal/core/lease", "internal/core/record"} {
		for name, paths := range importsOf(t, dir) {
			for _, path := range paths {
				if strings.Contains(path, ".") && !strings.HasPrefix(path, module+"/internal/core/") || slices.Contains([]string{"context", "sync", "sync/atomic", "os", "io", "log", "log/slog", "math/rand", "math/rand/v2", "net"}, path) {
					t.Errorf("%s imports %s", name, path)
				}
			}
		}
	}
}

// Each goroutine of a client is started by Spawn, so that Close waits for it.
func TestGoroutines(t *testing.T) {
	var files []string
	for _, dir := range []string{".", "internal/base", "internal/batch", "internal/engine", "internal/holds"} {
		some, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(some) == 0 {
			t.Fatal(dir, err)
		}
		files = append(files, some...)
	}
	spawns := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "clock_bent.go" { // that is the machine of tests
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a go statement", set.Position(n.Pos()))
				case *ast.SelectorExpr:
					if n.Sel.Name != "Go" {
						break
					}
					if spawns++; !ok || f.Name.Name != "Spawn" {
						t.Errorf("%s: a goroutine that Spawn did not start", set.Position(n.Pos()))
					}
				}
				return true
			})
		}
	}
	if spawns != 1 {
		t.Errorf("goroutines are started in %d places", spawns)
	}
}

// The root needs the standard library, x/sys, driver and internal packages, wherever it is built.
func TestRootImports(t *testing.T) {
	for _, goos := range []string{"linux", "darwin", "windows"} {
		for _, path := range deps(t, ".", goos) {
			if !strings.HasPrefix(path, "golang.org/x/sys/") && !strings.HasPrefix(path, module+"/internal/") && path != module+"/driver" {
				t.Errorf("on %s the root imports %s", goos, path)
			}
		}
	}
}

// A store imports the root, driver and what is internal to all, and no other store; the
// one in Cassandra also has the table that claims are made in.
func TestStoreImports(t *testing.T) {
	for _, dir := range packages(t)[1:] {
		for _, path := range deps(t, dir, "linux") {
			own := module + "/" + dir + "/"
			if dir == "cassandra" && path == module+"/claims" || path == module+"/driver" {
				continue
			}
			if dir == "driver" && !slices.Contains([]string{"core/record", "printable", "reach"}, strings.TrimPrefix(path, module+"/internal/")) {
				t.Errorf("driver imports %s", path)
			}
			if strings.HasPrefix(path, module+"/") && !strings.HasPrefix(path, own) && !strings.HasPrefix(path, module+"/internal/") {
				t.Errorf("%s imports %s", dir, path)
			}
		}
	}
}

// layers are the packages that users and the command get, from the top: each imports only what is
// below it. Stores have a kind.go; one that is named itself is in its own layer. CONTRIBUTING.md
// shows them.
var layers = [][]string{
	{"cmd/holdfast", "cmd/holdfast/holdfast-*"},
	{"cmd/holdfast/internal/command"},
	{"cmd/holdfast/internal/hold", "cmd/holdfast/internal/inspect", "cmd/holdfast/internal/admin"},
	{"cmd/holdfast/internal/cli", "cmd/holdfast/internal/guard", "serve"},
	{"clienttest", "state", "serve/access", "serve/page", "prometheus", "otel"},
	{"*/kind.go", "drivertest", "claims/claimstest"},
	{"claims", "internal/asjson", "monitor"},
	{".", "open", "memory", "faultstore", "internal/sqlstore", "internal/notify", "internal/tlsurl", "internal/wire"},
	{"internal/holds"},
	{"internal/engine"},
	{"internal/base"},
	{"internal/batch"},
	{"driver"},
	{"internal/reach"},
	{"internal/core"},
	{"internal/core/lease", "internal/liveness", "internal/machine"},
	{"internal/core/record", "internal/clock", "internal/filesystem", "internal/printable", "internal/busy", "internal/seen"},
}

// Imports go down, and never up or across.
func TestLayers(t *testing.T) {
	depth := make(map[string]int)
	for i, layer := range layers {
		for _, pattern := range layer {
			found, err := filepath.Glob(pattern)
			if err != nil || len(found) == 0 {
				t.Fatal(pattern, err)
			}
			for _, name := range found {
				depth[strings.TrimSuffix(name, "/kind.go")] = i
			}
		}
	}
	for dir, at := range depth {
		for name, paths := range importsOf(t, dir) {
			for _, path := range paths {
				path, ours := strings.CutPrefix(path, module)
				if !ours {
					continue
				}
				to := filepath.Clean("." + path)
				if below, ok := depth[to]; !ok {
					t.Errorf("%s imports %s, which is in no layer", name, to)
				} else if below <= at {
					t.Errorf("%s imports %s, which is not below it", name, to)
				}
			}
		}
	}
}

// A package is small enough to be read as a whole. What tests consist of may be larger.
func TestPackageSizes(t *testing.T) {
	for _, layer := range layers {
		for _, pattern := range layer {
			dirs, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(pattern, err)
			}
			for _, dir := range dirs {
				lines := 0
				for name := range importsOf(t, strings.TrimSuffix(dir, "/kind.go")) {
					text, err := os.ReadFile(name)
					if err != nil {
						t.Fatal(err)
					}
					lines += bytes.Count(text, []byte("\n"))
				}
				if lines > 3000 && !strings.HasSuffix(dir, "test") {
					t.Errorf("%s has %d lines, more than 3,000", dir, lines)
				}
			}
		}
	}
}

// The library registers nothing when it is imported, and writes neither to
// standard output or error nor to the log of the process.
func TestSilence(t *testing.T) {
	forbidden := map[string][]string{
		"os":   {"Stdout", "Stderr", "Exit"},
		"fmt":  {"Print", "Printf", "Println"},
		"log":  {"Print", "Printf", "Println", "Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln", "Default", "SetOutput", "SetFlags", "SetPrefix", "Output", "Writer"},
		"slog": {"Default", "SetDefault", "Debug", "Info", "Warn", "Error", "Log"},
	}
	for _, dir := range packages(t) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					if n.Name.Name == "init" && n.Recv == nil {
						t.Errorf("%s: func init", set.Position(n.Pos()))
					}
				case *ast.SelectorExpr:
					of, ok := n.X.(*ast.Ident)
					if !ok || of.Obj != nil { // a variable
						break
					}
					if slices.Contains(forbidden[of.Name], n.Sel.Name) {
						t.Errorf("%s: %s.%s", set.Position(n.Pos()), of.Name, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}
