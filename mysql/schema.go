package mysql

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

//go:embed schema.sql
var schema string

const schemaVersion = 1

// Schema returns the statements that create what Holdfast needs, for those who
// run them with the client mariadb or mysql. They may be repeated.
func Schema(opts *Options) (string, error) { return server.Schema(opts.tables) }

// script is the schema with the names of its tables filled in and its macros expanded.
func script(t sqlstore.Tables) string {
	return t.Expand(macros().ReplaceAllStringFunc(schema, func(s string) string {
		name, expr, _ := strings.Cut(s[1:len(s)-1], " ")
		if name == "shown" {
			expr = "\n    " + strings.ReplaceAll(texts()["shown"], "{{text}}", expr)
		}
		return "convert(" + expr + " using utf8mb4) collate utf8mb4_bin"
	}), "`")
}

// escapeMark is in a view wherever it escapes a text.
const escapeMark = "'0000005C00000075'"

// macros are {text EXPRESSION}, which has a collation of its own, so that no two
// differ, and {shown EXPRESSION}, which is also escaped.
var macros = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)\{(?:text|shown) [^{}]*\}`) })

// Migrate creates the schema as far as it is missing. It may be repeated, even by
// several at once. Where all is there it changes nothing.
//
// It needs a user with these rights on the database (and alter, for tables of an older
// version), who must not be dropped, since the views and the procedure run with these
// rights:
//
//	grant create, drop, create view, create routine, alter routine,
//	      select, insert, update, delete, execute on shop.* to migrator;
//
// A user who takes locks, fences and sweeps needs only the rights of Kind.Grants, and so does
// one who only reads, with Options.ReadOnly. A user who fences but takes no locks, and one who
// only looks at the view, need:
//
//	grant execute on procedure shop.holdfast_fence to app;
//	grant select on shop.holdfast_locks to dba;
func Migrate(ctx context.Context, db *sql.DB, opts *Options) error {
	return server.Migrate(ctx, db, opts.tables)
}

// alone calls f with a lane that is closed when f returns.
func alone(ctx context.Context, db *sql.DB, t sqlstore.Tables, f func(*lane) error) error {
	lanes := sqlstore.NewPool(conns{db, newStatements(t)}, 1, 1)
	defer lanes.Close()
	return lanes.Use(ctx, f)
}

// lock makes concurrent migrations run one after the other: while the procedure is made anew it
// is missing. A migration that does not get the lock goes on all the same.
func lock(ctx context.Context, l *lane, t sqlstore.Tables) error {
	_, err := l.conn.ExecContext(ctx, `do get_lock(?, 30)`, "holdfast schema "+t.Prefix)
	return err
}

func run(ctx context.Context, l *lane, script string) error {
	for _, q := range sqlstore.Statements(script) {
		if _, err := l.conn.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// roleOf is the database that a role gets rights in, and the role as it is quoted. It can be a
// user, such as app@10.0.0.%; without a host it is a role of that name, or else the user at any
// host.
func roleOf(at *driver.Location, role string) (database, quoted string) {
	database, _ = url.PathUnescape(strings.Trim(at.Database, "/"))
	quoted = sqlstore.Quote(role, "`")
	if i := strings.LastIndex(role, "@"); i > 0 {
		quoted = sqlstore.Quote(role[:i], "`") + "@" + sqlstore.Quote(role[i+1:], "`")
	}
	return strings.ReplaceAll(database, "`", "``"), quoted
}

// Verify compares the schema in the database with that of this program: tables
// and the view column by column, the procedure if the user may see it, and with whose
// rights both run.
func Verify(ctx context.Context, db *sql.DB, opts *Options) error {
	return server.Compare(ctx, db, opts.tables)
}

func checkVersion(t sqlstore.Tables, found sqlstore.Facts) error {
	return sqlstore.CheckSchema(t, found.Int("schema"), schemaVersion, "mysql.Migrate")
}

func verify(ctx context.Context, l *lane, t sqlstore.Tables, found sqlstore.Facts) error {
	if err := checkVersion(t, found); err != nil {
		return err
	}
	got := make(map[string]string)
	err := l.Query(ctx, "columns", func(scan sqlstore.Scan) error {
		var table, column, position, kind, engine string
		if err := scan(&table, &column, &position, &kind, &engine); err != nil {
			return err
		}
		table = strings.TrimPrefix(strings.ToLower(table), strings.ToLower(t.Prefix)) // lower_case_table_names
		got[table] = engine
		if engine == "VIEW" {
			kind = "column"
		}
		got[table+"."+column] = kind
		return nil
	}, t.Prefix+"meta", t.Prefix+"records", t.Prefix+"locks", t.Prefix+"history")
	if err != nil {
		return err
	}
	want := sqlstore.Objects(texts()["published"])
	for _, view := range views {
		if got[view] == "" { // not every user may see it
			maps.DeleteFunc(want, func(name, _ string) bool { return name == view || strings.HasPrefix(name, view+".") })
		}
	}
	if err := sqlstore.Compare(fmt.Sprintf("of %q", t), t.Prefix, "mysql.Migrate", want, got); err != nil {
		return err
	}
	var trigger string
	err = l.Query(ctx, "trigger", func(scan sqlstore.Scan) error { return scan(&trigger) }, t.Prefix+"records")
	if err == nil && trigger != "" {
		err = fmt.Errorf("schema of %q: %s has a trigger, %s: %w", t, t.Prefix+"records", trigger, errTrigger)
	}
	if err != nil {
		return err
	}
	return verifyDefiners(ctx, l, t)
}

// verifyDefiners compares what runs with the rights of the user who made it: the procedure,
// and the views as far as the server keeps them as they were written.
func verifyDefiners(ctx context.Context, l *lane, t sqlstore.Tables) error {
	differs := func(name, how string) error {
		return driver.NewSchemaError(sqlstore.Print, "schema of %q: %s %s", t, t.Prefix+name, how)
	}
	var security, mode string
	var text sql.NullString // null or empty: this user may not see it
	err := l.Query(ctx, "procedure", func(scan sqlstore.Scan) error { return scan(&security, &mode, &text) }, t.Prefix+"fence")
	switch published := procedure().FindString(script(t)); {
	case err != nil:
		return err
	case security == "": // this user may see none of it
	case text.Valid && plain(text.String) != plain(published):
		return differs("fence", "is not as published")
	case security != "DEFINER":
		return differs("fence", "runs with the rights of its caller, and not of its owner")
	case mode != "":
		return differs("fence", fmt.Sprintf("was made with sql_mode %q, and not with none", mode))
	}
	// This calls the fence for a name that no lock has.
	if _, err := l.conn.ExecContext(ctx, t.Expand(`call {fence}('', 0)`, "`")); code(err) == "1449" { // no such definer
		return driver.NewSchemaError("make it anew: holdfast schema apply", "schema of %q: %s runs with the rights of a user who has gone (%w)", t, t.Prefix+"fence", err)
	}
	for _, view := range views {
		security = ""
		err = l.Query(ctx, "view", func(scan sqlstore.Scan) error { return scan(&security, &text) }, t.Prefix+view)
		switch {
		case err != nil:
			return err
		case security == "":
		case text.String != "" && strings.Count(text.String, escapeMark) != strings.Count(viewText(t, view), escapeMark):
			return differs(view, "is not as published")
		case security != "DEFINER":
			return differs(view, "runs with the rights of its reader, and not of its owner")
		}
	}
	return nil
}

var views = []string{"locks", "history"}

// viewText is the published statement that makes a view.
func viewText(t sqlstore.Tables, view string) string {
	begin := t.Expand("create or replace view {"+view+"} ", "`")
	for _, statement := range sqlstore.Statements(script(t)) {
		if strings.HasPrefix(statement, begin) {
			return statement
		}
	}
	return ""
}

var (
	procedure = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)\nbegin\n.*\nend`) })
	comments  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`--[^\n]*|/\*M!\d+|\*/|\s+`) })
)

// plain is the body of a procedure without comments, which clients drop.
func plain(body string) string {
	return strings.TrimSpace(comments().ReplaceAllString(comments().ReplaceAllString(body, " "), " "))
}
