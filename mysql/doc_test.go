package mysql

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// comment is the doc comment of a function: what it tells to run is tested.
func comment(t *testing.T, file, function string) string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == function {
			return f.Doc.Text()
		}
	}
	t.Fatalf("there is no %s", function)
	return ""
}
