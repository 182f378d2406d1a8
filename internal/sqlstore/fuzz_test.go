package sqlstore

import (
	"strings"
	"testing"
)

// Names of tables come from a configuration. What is taken has nothing in it that
// could end a quoted name or a string, and is expanded to what it says.
func FuzzTables(f *testing.F) {
	f.Add("locks", "hf_")
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		tables, err := NewTables(schema, prefix)
		if err != nil {
			if schema == "" && prefix == "" {
				t.Fatal(err)
			}
			return
		}
		for _, name := range []string{tables.Schema, tables.Prefix} {
			if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" || len(name) > 63 {
				t.Fatalf("%q is a name", name)
			}
		}
		if tables.Schema != schema || tables.Prefix != prefix && prefix != "" || tables.Prefix == "" {
			t.Fatalf("%q, %q are taken for %+v", schema, prefix, tables)
		}
		for _, quote := range []string{`"`, "`"} {
			want := quote + tables.Prefix + "records" + quote
			if schema != "" {
				want = quote + schema + quote + "." + want
			}
			if got := tables.Expand("select 1 from {records} where n = '{}'", quote); got != "select 1 from "+want+" where n = '{}'" {
				t.Fatalf("expanded to %s", got)
			}
		}
	})
}

// Scripts are taken apart without losing anything but comments between statements,
// blank lines and delimiters, and a statement is one whatever delimiter the script uses.
func FuzzStatements(f *testing.F) {
	f.Add("create table a (b int);\n\n-- c\ndrop table a;\n")
	f.Fuzz(func(t *testing.T, script string) {
		list := Statements(script)
		at := 0
		for _, s := range list {
			for line := range strings.Lines(s) {
				line = strings.TrimSpace(line)
				i := strings.Index(script[at:], line)
				if i < 0 {
					t.Fatalf("%q has no %q behind %q", script, line, script[:at])
				}
				at += i + len(line)
			}
		}
		if strings.Contains(strings.ToLower(script), "delimiter") || strings.ContainsAny(script, ";\r\x00") || strings.Contains(script, "--") {
			return
		}
		if strings.TrimSpace(script) != "" && (len(list) != 1 || strings.TrimSpace(list[0]) != strings.TrimSpace(script)) {
			t.Fatalf("%q is one statement, and not %q", script, list)
		}
	})
}
