package cassandra

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"sync"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

//go:embed schema.cql
var schema string

// tables are the names of what belongs to one Options.
type tables struct{ keyspace, prefix string }

const defaultPrefix = "holdfast_"

func (o *Options) tables() tables {
	t := tables{o.Keyspace, o.Prefix}
	if t.prefix == "" {
		t.prefix = defaultPrefix
	}
	return t
}

// expand puts quoted names for {records}.
func (t tables) expand(text string) string {
	return strings.ReplaceAll(text, "{records}", quote(t.keyspace)+"."+quote(t.prefix+"records"))
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// nameForm is what Cassandra takes for a name.
var nameForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_]{0,40}$`) })

func (o *Options) check() error {
	for _, n := range []struct{ what, name string }{{"keyspace", o.Keyspace}, {"prefix", o.Prefix}} {
		if !nameForm().MatchString(n.name) {
			return fmt.Errorf("%s %q: at most 40 letters, digits and underscores", n.what, n.name)
		}
	}
	return nil
}

// Migrate creates the table in a keyspace that exists, as far as it is missing.
func Migrate(ctx context.Context, session *gocql.Session, opts *Options) error {
	s, err := prepare(ctx, session, opts)
	if err != nil {
		return fmt.Errorf("cassandra: %w", err)
	}
	for _, text := range statementsOf(s.tables.expand(schema)) {
		if err := session.Query(text).WithContext(ctx).Consistency(gocql.Quorum).SerialConsistency(gocql.Serial).Exec(); err != nil {
			return fmt.Errorf("cassandra: create the schema: %w", err)
		}
	}
	return session.AwaitSchemaAgreement(ctx)
}

// statementsOf takes a script apart.
func statementsOf(script string) (texts []string) {
	var b strings.Builder
	for line := range strings.Lines(script) {
		line, _, _ = strings.Cut(line, "--")
		b.WriteString(strings.TrimRight(line, "\n") + "\n")
	}
	for text := range strings.SplitSeq(b.String(), ";") {
		if text = strings.TrimSpace(text); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

func (s *Store) check(ctx context.Context) error { return nil }
