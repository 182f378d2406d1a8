package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
)

// A dialect is a sqlstore.Dialect over a source of connections.
type dialect struct {
	sqlstore.Reads[conn]
	*settings
}

// settings are what all statements of a store share.
type settings struct {
	sql     map[string]string // see statements.sql
	channel channel
	mode    pgx.QueryExecMode
	async   bool // never wait for the disk
	rows    *sqlstore.RowsSeen
}

func newDialect(s *settings, lend source) *dialect {
	use := func(ctx context.Context, f func(conn) error) error {
		return lend(ctx, func(c *pgx.Conn) error { return f(conn{c, s}) })
	}
	return &dialect{sqlstore.Reads[conn]{Use: use, Walk: use, List: func(ids [][]byte) any { return ids }, Codes: codes, Follows: errStandby}, s}
}

// A conn is a connection with the statements of a store.
type conn struct {
	*pgx.Conn
	*settings
}

// Query implements sqlstore.Conn.
func (c conn) Query(ctx context.Context, name string, row func(sqlstore.Scan) error, args ...any) error {
	mode := c.mode
	if mode == pgx.QueryExecModeExec && name == "load range" {
		mode = pgx.QueryExecModeCacheDescribe // a round trip more, and half as much to read
	}
	rows, err := c.Conn.Query(ctx, c.sql[name], append([]any{mode}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	scan := func(columns ...any) error {
		for i, c := range columns {
			if b, ok := c.(*[]byte); ok {
				columns[i] = (*bytea)(b)
			}
		}
		return rows.Scan(columns...)
	}
	for rows.Next() {
		if err := row(scan); err != nil {
			return err
		}
	}
	rows.Close()
	return rows.Err()
}

func (d *dialect) query(ctx context.Context, name string, row func(sqlstore.Scan) error, args ...any) error {
	return d.Use(ctx, func(c conn) error { return c.Query(ctx, name, row, args...) })
}

//go:embed statements.sql
var statements string

var texts = sync.OnceValue(func() map[string]string {
	texts := sqlstore.Texts(statements)
	for _, name := range []string{"insert", "swaps"} {
		texts[name+" above"] = strings.ReplaceAll(texts[name], "{{version}}", texts["above the floor"])
		texts[name] = strings.ReplaceAll(texts[name], "{{version}}", texts["clock"])
	}
	toNobody := strings.NewReplacer(texts["notify"], "null", texts["notify each"], "null")
	for _, name := range []string{"insert", "insert above", "take", "update", "swap", "swaps", "swaps above"} {
		texts[name+quietly] = toNobody.Replace(texts[name])
	}
	return texts
})

// quietly ends the name of a statement whose writes send no notification.
const quietly = ", quietly"

func newStatements(t sqlstore.Tables) map[string]string {
	sql := make(map[string]string)
	for name, text := range texts() {
		sql[name] = full(t, text)
	}
	return sql
}

var operators = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{([-+*<=>|~]+)\}`) })

// full is the text of a statement with the full names of tables, and of operators:
// {=} is PostgreSQL's own.
func full(t sqlstore.Tables, text string) string {
	return t.Expand(operators().ReplaceAllString(text, `operator(pg_catalog.$1)`), `"`)
}

var errStandby = errors.New("the server is a standby, and what it shows may be old: connect to the primary (target_session_attrs=read-write)")

func (d *dialect) Swap(ctx context.Context, w sqlstore.Write) (version int64, lost *sqlstore.Row, err error) {
	patience := "1000"
	if w.Hurry {
		patience = "1"
	}
	args, how := []any{w.ID, w.Value, w.Lazy || d.async, patience, w.Old}, quietly
	if w.Notify != "" {
		args, how = append(args, payload(w), d.channels(w.Notify)), ""
	}
	got := func(scan sqlstore.Scan) error { return scan(&version, nil) }
	switch {
	case w.Old == driver.IfEmpty:
		write := func(name string) (int64, error) {
			version = 0
			err := d.query(ctx, name+how, got, args...)
			return version, err
		}
		return d.rows.Take(ctx, d, w, func() (int64, error) { return write("take") }, func() (int64, error) {
			version, err := write("insert")
			for try := 0; try < 3 && swept(err); try++ {
				version, err = write("insert above")
			}
			return version, err
		})
	case len(w.Value) == 0 && w.Notify == "":
		err = d.query(ctx, "update"+how, got, args...)
	default:
		lost = &sqlstore.Row{ID: w.ID}
		err = d.query(ctx, "swap"+how, func(scan sqlstore.Scan) error {
			return scan(&version, &lost.Version, &lost.Value, &lost.Clock)
		}, args...)
		// It may have lost to a write that the statement did not see.
		if version != 0 || lost.Version == w.Old {
			lost = nil
		}
	}
	if err != nil {
		return 0, nil, err
	}
	return version, lost, nil
}

func (d *dialect) Swaps(ctx context.Context, ws []sqlstore.Write) (versions []int64, err error) {
	ids, values, olds := make([][]byte, len(ws)), make([][]byte, len(ws)), make([]int64, len(ws))
	var woken [][]byte
	var payloads, channels []string
	lazy := true
	for i, w := range ws {
		ids[i], values[i], olds[i] = w.ID, w.Value, w.Old
		lazy = lazy && w.Lazy
		if w.Notify != "" {
			woken, payloads, channels = append(woken, w.ID), append(payloads, payload(w)), append(channels, d.channel.of(w.Notify))
		}
	}
	args, how := []any{ids, values, lazy || d.async, olds}, quietly
	if len(woken) > 0 {
		args, how = append(args, woken, payloads, d.channel.all(), channels), ""
	}
	name := "swaps"
	for range 4 {
		var row func(sqlstore.Scan) error
		versions, row = sqlstore.Winners(ws, nil)
		err = d.query(ctx, name+how, row, args...)
		if !swept(err) {
			break
		}
		name = "swaps above"
	}
	if err != nil {
		return nil, err
	}
	return versions, nil
}

func (d *dialect) Remove(ctx context.Context, rows []sqlstore.Row) (removed int, err error) {
	ids, floor := make([][]byte, len(rows)), int64(0)
	for i, r := range rows {
		ids[i], floor = r.ID, max(floor, r.Version)
	}
	err = d.Use(ctx, func(c conn) error {
		tag, err := c.Exec(ctx, d.sql["remove"], d.mode, ids, floor)
		removed = int(tag.RowsAffected())
		return err
	})
	return removed, err
}

// codes are SQLSTATEs. Those of the form HF… come from schema.sql. A statement that was ended
// by a timeout of the role has changed nothing.
var codes = &sqlstore.Codes{Of: state, Means: map[string]sqlstore.Meaning{
	"40001": sqlstore.Again, "40P01": sqlstore.Again, "HF001": sqlstore.Again, // failure to serialize, deadlock, swept in between
	"55P03": sqlstore.Locked, "57014": sqlstore.Locked, "25P04": sqlstore.Locked, // lock_timeout, statement_timeout, transaction_timeout
	"42501": sqlstore.Denied,
	"42P01": sqlstore.Missing, "3F000": sqlstore.Missing, // no such table, no such schema
	"HF002": sqlstore.Lost, "HF003": sqlstore.NoLock, "42883": sqlstore.NoLock, // no such function
}}

func swept(err error) bool { return err != nil && state(err) == "HF001" }

// state is the SQLSTATE of an error of any driver, or "".
func state(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// A channel is what the names of the channels for a schema's notifications begin
// with. There is one for all notifications, one for those that are meant for
// everyone, and one for each session: a notification wakes every backend that
// listens, but only those programs that listen to its channel.
type channel string

func channelOf(schema, prefix string) channel {
	name := fmt.Sprintf("%s.%s", schema, prefix)
	if len(name) > 30 {
		name = name[:14] + fmt.Sprintf("%016x", sum(name))
	}
	return channel(name)
}

func (c channel) all() string { return string(c) }

// of is the channel of notifications for a session, or for everyone: at most 63 bytes.
func (c channel) of(wake string) string {
	if len(wake) > 32 || strings.ContainsFunc(wake, func(r rune) bool { return r <= ' ' || r > '~' }) {
		wake = fmt.Sprintf("%016x", sum(wake))
	}
	return string(c) + ":" + wake
}

// channels are those on which a write notifies.
func (s *settings) channels(wake string) []string {
	return []string{s.channel.all(), s.channel.of(wake)}
}
