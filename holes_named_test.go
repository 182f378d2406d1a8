package holdfast_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// docs/holes.md has a row for each hole, with a test that is in the tree.
func TestHolesAreNamed(t *testing.T) {
	text := strings.Join(trimmedLines(t, "docs/holes.md"), "\n")
	tests, cases := inTheTree(t)
	rows := make(map[string]string)
	for line := range strings.SplitSeq(text, "\n") {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			rows[strings.TrimSpace(cells[1])] = cells[3]
		}
	}
	named := regexp.MustCompile("`([^`]+)`")
	for letter, n := range map[string]int{"G": 14, "K": 11, "T": 14, "S": 14, "H": 17, "X": 22, "D": 20} {
		for i := 1; i <= n; i++ {
			hole := fmt.Sprint(letter, i)
			found := named.FindAllStringSubmatch(rows[hole], -1)
			if len(found) == 0 && !strings.Contains(rows[hole], "does not apply:") {
				t.Errorf("%s has no test", hole)
			}
			for _, m := range found {
				if strings.Contains(m[1], ": ") {
					if !cases[m[1]] {
						t.Errorf("%s: there is no case %q", hole, m[1])
					}
					continue
				}
				dir, test := ".", m[1]
				if i := strings.LastIndex(m[1], "."); i >= 0 {
					dir, test = m[1][:i], m[1][i+1:]
				}
				if !isDir(dir) {
					t.Logf("%s: there is no %s here: it is another module, and each is alone", hole, dir)
				} else if !tests[dir+"."+test] {
					t.Errorf("%s: there is no %s in %s", hole, test, dir)
				}
			}
		}
	}
}

func isDir(dir string) bool {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	return err == nil && len(names) > 0
}

// inTheTree are all tests by directory and name, and the cases of drivertest and clienttest.
func inTheTree(t *testing.T) (tests, cases map[string]bool) {
	t.Helper()
	tests, cases = make(map[string]bool), make(map[string]bool)
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		name = filepath.ToSlash(name)
		dir := path.Dir(name)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || len(entry.Name()) > 1 && entry.Name()[0] == '.'):
			return filepath.SkipDir
		case strings.HasSuffix(name, "_test.go"):
			f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					tests[dir+"."+fn.Name.Name] = true
				}
			}
		case (dir == "drivertest" || dir == "clienttest") && strings.HasSuffix(name, ".go"):
			f, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if kv, ok := n.(*ast.KeyValueExpr); ok {
					key, _ := kv.Key.(*ast.Ident)
					value, _ := kv.Value.(*ast.BasicLit)
					if key != nil && key.Name == "name" && value != nil {
						if s, err := strconv.Unquote(value.Value); err == nil {
							cases[dir+": "+s] = true
						}
					}
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests, cases
}
