package spanner

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"github.com/holdfast-lock/holdfast/driver"
)

//go:embed schema.sql
var schema string

func expand(text, table string) string { return strings.ReplaceAll(text, "{records}", "`"+table+"`") }

// Schema returns the statement that creates what Holdfast needs, for those who run it
// with gcloud or a tool of their own, in a database with the dialect GoogleSQL. It may
// be repeated.
func Schema(opts *Options) (string, error) {
	table, err := opts.table()
	if err != nil {
		return "", fmt.Errorf("spanner: %w", err)
	}
	return expand(schema, table), nil
}

// Migrate creates the table in the client's database as far as it is missing, and
// returns when it is there. It may be repeated, even by several at once.
func Migrate(ctx context.Context, admin *database.DatabaseAdminClient, client *spanner.Client, opts *Options) error {
	s, err := prepare(client, opts)
	if err == nil {
		err = s.migrate(ctx, admin)
	}
	if err != nil {
		return fmt.Errorf("spanner: create the schema: %w", err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context, admin *database.DatabaseAdminClient) error {
	statement := plain(expand(schema, s.table))
	if err := s.verify(ctx); err == nil {
		return nil
	} else if !errors.Is(err, errNoTable) {
		columns, _, facts := s.facts(ctx)
		if facts != nil || columns["name"] != strings.Replace(published["name"], "1024", "255", 1) {
			return err
		}
		statement = expand("alter table {records} alter column name bytes(1024) not null", s.table) // an older table is widened
	}
	err := s.again(ctx, func() error {
		op, err := admin.UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{
			Database:   s.client.DatabaseName(),
			Statements: []string{statement},
		})
		if err == nil {
			err = op.Wait(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.verify(ctx)
}

// Verify compares the table with that of this program, column by column.
func Verify(ctx context.Context, client *spanner.Client, opts *Options) error {
	_, err := New(ctx, client, opts)
	return err
}

// plain is a statement without comments and its semicolon, as the API takes it.
func plain(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "--")
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return strings.Trim(b.String(), ";\n")
}

// compareIt is the cure where the table differs from what is published.
const compareIt = "compare it with: holdfast schema print"

var errNoTable = errors.New("is missing")

// published are the columns as facts sees them.
var published = map[string]string{
	"shard":   "INT64 not null, 1 of the primary key",
	"space":   "INT64 not null, 2 of the primary key",
	"name":    "BYTES(1024) not null, 3 of the primary key",
	"value":   "BYTES(1048576) not null",
	"written": "TIMESTAMP not null with commit timestamps",
	"fenced":  "INT64",
}

func (s *Store) verify(ctx context.Context) error {
	columns, deletes, err := s.facts(ctx)
	if err != nil {
		return s.dialect(ctx, err)
	}
	if len(columns) == 0 {
		return driver.NewSchemaError("create it with spanner.Migrate or: holdfast schema apply", "the table %s %w", s.table, errNoTable)
	}
	for _, name := range slices.Sorted(maps.Keys(published)) {
		switch is, ok := columns[name]; {
		case !ok:
			return driver.NewSchemaError(compareIt, "the table %s has no column %s", s.table, name)
		case is != published[name]:
			return driver.NewSchemaError(compareIt, "the column %s of the table %s is not as published, but %s", name, s.table, is)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(columns)) {
		if _, ok := published[name]; !ok {
			return driver.NewSchemaError(compareIt, "the table %s has a column %s that is not published", s.table, name)
		}
	}
	if deletes != "" {
		return fmt.Errorf("the table %s deletes rows by itself (%s), so locks would vanish: alter table %s drop row deletion policy", s.table, deletes, s.table)
	}
	return nil
}

// facts are the columns of the table, and its row deletion policy.
func (s *Store) facts(ctx context.Context) (columns map[string]string, deletes string, err error) {
	columns = make(map[string]string)
	err = s.query(ctx, `select c.column_name, c.spanner_type, c.is_nullable = 'NO', ifnull(i.ordinal_position, 0), ifnull(o.option_value, '') = 'TRUE',
			ifnull(t.row_deletion_policy_expression, '')
		from information_schema.tables as t
		join information_schema.columns as c using (table_catalog, table_schema, table_name)
		left join information_schema.index_columns as i
			on i.table_schema = '' and i.table_name = @table and i.index_name = 'PRIMARY_KEY' and i.column_name = c.column_name
		left join information_schema.column_options as o
			on o.table_schema = '' and o.table_name = @table and o.option_name = 'allow_commit_timestamp' and o.column_name = c.column_name
		where t.table_schema = '' and t.table_name = @table`,
		map[string]any{"table": s.table}, func(r *spanner.Row) error {
			var name, is string
			var notNull, stamped bool
			var nth int64
			err := r.Columns(&name, &is, &notNull, &nth, &stamped, &deletes)
			if notNull {
				is += " not null"
			}
			if nth > 0 {
				is += fmt.Sprintf(", %d of the primary key", nth)
			}
			if stamped {
				is += " with commit timestamps"
			}
			columns[name] = is
			return err
		})
	return columns, deletes, err
}

// dialect finds out whether an error comes from the dialect of the database.
func (s *Store) dialect(ctx context.Context, err error) error {
	var dialect string
	if s.query(ctx, `select option_value from information_schema.database_options where option_name = 'database_dialect'`, nil,
		func(r *spanner.Row) error { return r.Columns(&dialect) }) == nil && dialect == databasepb.DatabaseDialect_POSTGRESQL.String() {
		return fmt.Errorf("the database has the dialect PostgreSQL: create one with GoogleSQL for locks")
	}
	return err
}
