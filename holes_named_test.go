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
	for name, holes := range cases {
		for hole := range strings.FieldsSeq(holes) {
			if !strings.Contains(rows[hole], "`"+name+"`") {
				t.Errorf("%s does not name the case %q", hole, name)
			}
		}
	}
	known := make(map[string]bool)
	for test := range tests {
		known[test[strings.LastIndex(test, ".")+1:]] = true
	}
	for _, test := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(text, -1) {
		if !known[test] && isDir("sqlite") { // else the other modules are not here
			t.Errorf("there is no %s", test)
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
					if _, ok := cases[m[1]]; !ok {
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

// inTheTree are all tests by directory and name, and the cases of drivertest and clienttest with
// the holes that they say they are of.
func inTheTree(t *testing.T) (tests map[string]bool, cases map[string]string) {
	t.Helper()
	tests, cases = make(map[string]bool), make(map[string]string)
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
				if lit, ok := n.(*ast.CompositeLit); ok {
					if name := textOf(lit, "name"); name != "" {
						cases[dir+": "+name] = textOf(lit, "holes")
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

// textOf is a field of a literal, if that is a literal text.
func textOf(lit *ast.CompositeLit, field string) string {
	for _, elt := range lit.Elts {
		if kv, ok := elt.(*ast.KeyValueExpr); ok {
			key, _ := kv.Key.(*ast.Ident)
			value, _ := kv.Value.(*ast.BasicLit)
			if key != nil && key.Name == field && value != nil {
				text, _ := strconv.Unquote(value.Value)
				return text
			}
		}
	}
	return ""
}
