package cassandra

import (
	"regexp"
	"strings"
	"testing"
)

// An update that is fenced sets fence first, and is conditional on it at its end, as
// Cassandra reads it: not in a comment, not in a string.
func FuzzFenced(f *testing.F) {
	f.Add("update accounts set fence = ?, balance = ? where id = ? if fence <= ?")
	first := regexp.MustCompile(`(?is)^\s*update\s+\S+\s+set\s+fence\s*=\s*\?`)
	last := regexp.MustCompile(`(?is)\sif\s+(\S.*\sand\s+)?fence\s*<=\s*\?\s*;?\s*$`)
	f.Fuzz(func(t *testing.T, update string) {
		_, ok := fenced(update)
		if !ok {
			return
		}
		read := asRead(update)
		if !first.MatchString(read) || !last.MatchString(read) {
			t.Fatalf("%q is taken for fenced, and Cassandra reads\n%q", update, read)
		}
	})
}

// asRead is what a statement says without comments, and with nothing in its strings.
func asRead(text string) string {
	var b strings.Builder
	for text != "" {
		skip := func(n int, end string) (rest string) {
			if i := strings.Index(text[n:], end); i >= 0 {
				return text[n+i+len(end):]
			}
			return ""
		}
		switch {
		case strings.HasPrefix(text, "--"), strings.HasPrefix(text, "//"):
			text = skip(2, "\n")
			b.WriteByte('\n')
		case strings.HasPrefix(text, "/*"):
			text = skip(2, "*/")
			b.WriteByte(' ')
		case strings.HasPrefix(text, "$$"):
			text = skip(2, "$$")
			b.WriteString("''")
		case text[0] == '\'':
			text = skip(1, "'")
			b.WriteString("''")
		case text[0] == '"':
			text = skip(1, `"`)
			b.WriteString("(name)")
		default:
			b.WriteByte(text[0])
			text = text[1:]
		}
	}
	return b.String()
}

// Names of keyspaces and tables come from a configuration. What is taken is quoted in
// all statements, and has no quote in it.
func FuzzNames(f *testing.F) {
	f.Add("shop", "hf_")
	f.Fuzz(func(t *testing.T, keyspace, prefix string) {
		o := &Options{Keyspace: keyspace, Prefix: prefix}
		text, err := Schema(o)
		if err == nil {
			name := `"` + o.tables().prefix + `records"`
			if keyspace != "" {
				name = `"` + keyspace + `".` + name
			}
			if strings.Count(text, name) == 0 || strings.Count(text, `"`) != strings.Count(text, name)*strings.Count(name, `"`) || strings.Contains(text, "{records}") {
				t.Fatalf("(%q, %q) makes %s", keyspace, prefix, text)
			}
			for _, s := range statementsOf(text) {
				if strings.Contains(s, ";") {
					t.Fatalf("(%q, %q): two statements in one: %s", keyspace, prefix, s)
				}
			}
		}
		if full, err := columnsName(keyspace, prefix); err == nil && full != `"`+keyspace+`"."`+prefix+`"` {
			t.Fatalf("(%q, %q) is the table %s", keyspace, prefix, full)
		}
	})
}
