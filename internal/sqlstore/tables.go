package sqlstore

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Tables says what Holdfast's tables, views and functions are called.
type Tables struct {
	Schema string // "": that of the connection
	Prefix string // of every name: "holdfast_" makes holdfast_records
}

// DefaultPrefix is what names begin with if nobody says otherwise.
const DefaultPrefix = "holdfast_"

// OrZero is what options points to, or else the zero value: all defaults.
func OrZero[T any](options *T) (o T) {
	if options != nil {
		o = *options
	}
	return o
}

var identifier = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// NewTables checks the names, which come from a configuration, before any
// statement contains them. An empty prefix is the default one.
func NewTables(schema, prefix string) (Tables, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if schema != "" && (!identifier().MatchString(schema) || len(schema) > 63) {
		return Tables{}, fmt.Errorf("schema %q is not a name: letters, digits and _, at most 63", schema)
	}
	if !identifier().MatchString(prefix) || len(prefix) > 40 {
		return Tables{}, fmt.Errorf("prefix %q is not valid: letters, digits and _, not a digit first, at most 40", prefix)
	}
	return Tables{schema, prefix}, nil
}

// String is how a person writes them.
func (t Tables) String() string {
	if t.Schema == "" {
		return t.Prefix
	}
	return t.Schema + "." + t.Prefix
}

var braces = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{([a-z_]+)\}`) })

// Expand puts the full, quoted name of a table in place of each {name}.
func (t Tables) Expand(text, quote string) string {
	return braces().ReplaceAllStringFunc(text, func(s string) string {
		name := quote + t.Prefix + s[1:len(s)-1] + quote
		if t.Schema != "" {
			name = quote + t.Schema + quote + "." + name
		}
		return name
	})
}

// Statements splits a script as the clients of MySQL do: at semicolons at the
// end of a line, or at the X that a line "delimiter X" sets.
func Statements(script string) (list []string) {
	delimiter := ";"
	var b strings.Builder
	for line := range strings.Lines(script) {
		trimmed := strings.TrimSpace(line)
		if d, ok := strings.CutPrefix(strings.ToLower(trimmed), "delimiter "); ok {
			delimiter = strings.TrimSpace(d)
			continue
		}
		if b.Len() == 0 && (trimmed == "" || strings.HasPrefix(trimmed, "--")) {
			continue
		}
		if body, ok := strings.CutSuffix(trimmed, delimiter); ok {
			b.WriteString(body)
			list = append(list, b.String())
			b.Reset()
			continue
		}
		b.WriteString(line)
	}
	if strings.TrimSpace(b.String()) != "" {
		list = append(list, b.String())
	}
	return list
}

var named = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{\{([^{}]+)\}\}`) })

// Texts reads a file of named texts. Each follows a line "--- name"; {{name}} in it is
// another text, from above. Lines of comment are left out.
func Texts(file string) map[string]string {
	lines := slices.DeleteFunc(strings.Split(file, "\n"), func(line string) bool { return strings.HasPrefix(line, "-- ") })
	texts := make(map[string]string)
	for _, part := range strings.Split(strings.Join(lines, "\n"), "--- ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		texts[name] = named().ReplaceAllStringFunc(strings.TrimSpace(text), func(s string) string {
			if other, ok := texts[s[2:len(s)-2]]; ok {
				return other
			}
			return s // the caller puts something in its place
		})
	}
	return texts
}
