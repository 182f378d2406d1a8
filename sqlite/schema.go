package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	_ "embed"

	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

//go:embed schema.sql
var schema string

const schemaVersion = 1

// Schema returns the statements that create what Holdfast needs, for those who
// run them with a tool of their own. They may be repeated.
func Schema() string { return schema }

// Migrate creates the file, with mode 0600, and the schema in it, as far as
// they are missing, and turns on write-ahead logging. It may be repeated, even
// while others use the file. Whatever else is in the file is left alone.
func Migrate(ctx context.Context, path string) error {
	s, err := Open(ctx, path, &Options{Create: true})
	if err != nil {
		return err
	}
	defer s.Close()
	err = s.names.Use(ctx, func(c *conn) error {
		return c.transaction(ctx, true, func() error { return c.script(schema) })
	})
	if err != nil {
		return s.explain(err)
	}
	return nil
}

// Verify compares the schema in the file with that of this program, object by
// object.
func Verify(ctx context.Context, path string) error {
	s, err := Open(ctx, path, &Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer s.Close()
	want, err := publishedObjects()
	if err != nil {
		return err
	}
	var got map[string]string
	err = s.ask(ctx, s.names.Use, func(c *conn) (err error) {
		got, err = c.objects()
		return err
	})
	if err != nil {
		return err
	}
	return sqlstore.Compare("in "+s.path, "", "sqlite.Migrate", want, got)
}

// publishedObjects are the objects of the schema as SQLite keeps them.
func publishedObjects() (map[string]string, error) {
	c, err := connect("file::memory:")
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.script(schema); err != nil {
		return nil, err
	}
	return c.objects()
}

// objects are Holdfast's tables, views and triggers with their SQL.
func (c *conn) objects() (map[string]string, error) {
	found := make(map[string]string)
	err := c.query(`select name, sql from sqlite_master where name glob 'holdfast_*' and sql is not null`, func(row []sqldriver.Value) {
		found[text(row[0])] = text(row[1])
	})
	return found, err
}

// migrate creates the schema if there is none.
func (c *conn) migrate(ctx context.Context) error {
	version, err := c.version(ctx)
	if err != nil || version != 0 {
		return err
	}
	return c.transaction(ctx, true, func() error { return c.script(schema) })
}

// empty tells whether the file has nothing in it, and so belongs to nobody.
func (c *conn) empty(ctx context.Context) (empty bool, err error) {
	err = retry(ctx, func() error {
		some, err := c.one(`select 1 from sqlite_master limit 1`)
		empty = some == nil
		return err
	})
	return empty, err
}

// verify checks that the schema is there and has our version.
func (c *conn) verify(ctx context.Context) error {
	version, err := c.version(ctx)
	if err != nil {
		return err
	}
	return sqlstore.CheckSchema(sqlstore.Tables{Prefix: sqlstore.DefaultPrefix}, version, schemaVersion, "sqlite.Migrate")
}

// version is the version of the schema, 0 if there is none.
func (c *conn) version(ctx context.Context) (version int64, err error) {
	ask := func() error {
		v, err := c.one(`select value from holdfast_meta where key = 'version'`)
		version, _ = v.(int64)
		return err
	}
	err = retry(ctx, func() error {
		err := ask()
		if err == nil {
			return nil
		}
		// A missing table has no error code of its own.
		table, again := c.one(`select 1 from sqlite_master where type = 'table' and name = 'holdfast_meta'`)
		if again == nil && table == nil {
			return nil
		}
		return ask() // another process may just have made it
	})
	return version, err
}
