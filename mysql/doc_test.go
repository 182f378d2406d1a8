package mysql

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// comment is the doc comment of Migrate, whose grants are tested.
func comment(t *testing.T) string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "schema.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "Migrate" {
			return f.Doc.Text()
		}
	}
	t.Fatal("there is no Migrate")
	return ""
}
