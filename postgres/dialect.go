package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
)

// A dialect is a sqlstore.Dialect over a source of connections.
type dialect struct {
	*settings
	conns source
}

// settings are what all statements of a store share.
type settings struct {
	sql     map[string]string // see statements.sql
	channel channel
	mode    pgx.QueryExecMode
	async   bool // never wait for the disk
}

//go:embed statements.sql
var statements string

var texts = sync.OnceValue(func() map[string]string {
	texts := sqlstore.Texts(statements)
	for _, name := range []string{"insert", "swaps"} {
		texts[name+" above"] = strings.ReplaceAll(texts[name], "{{version}}", texts["above the floor"])
		texts[name] = strings.ReplaceAll(texts[name], "{{version}}", texts["clock"])
	}
	return texts
})

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

func (d *dialect) query(ctx context.Context, row func(pgx.Rows) error, sql string, args ...any) error {
	return d.conns(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, sql, append([]any{d.mode}, args...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := row(rows); err != nil {
				return err
			}
		}
		rows.Close()
		return rows.Err()
	})
}

var errStandby = errors.New("the server is a standby, and what it shows may be old: connect to the primary (target_session_attrs=read-write)")

func (d *dialect) Load(ctx context.Context, ids [][]byte, each func(sqlstore.Row)) (clock int64, err error) {
	sql, arg := d.sql["load all"], any(ids)
	if len(ids) == 1 {
		sql, arg = d.sql["load"], ids[0]
	}
	err = d.query(ctx, func(rows pgx.Rows) error {
		var now int64
		var standby bool
		var r sqlstore.Row
		var version *int64
		if err := rows.Scan(&now, &standby, (*bytea)(&r.ID), &version, (*bytea)(&r.Value)); err != nil {
			return err
		}
		switch {
		case standby:
			return errStandby
		case version == nil:
			clock = now
		default:
			r.Version = *version
			each(r)
		}
		return nil
	}, sql, arg)
	return clock, err
}

func (d *dialect) Swap(ctx context.Context, w sqlstore.Write) (version int64, lost *sqlstore.Row, err error) {
	patience := "1000"
	if w.Hurry {
		patience = "1"
	}
	args := []any{w.ID, w.Value, w.Lazy || d.async, payload(w), d.channels(w.Notify), patience}
	got := func(rows pgx.Rows) error { return rows.Scan(&version, nil) }
	switch {
	case w.Old == driver.IfEmpty:
		err = d.query(ctx, got, d.sql["insert"], args...)
		for range 3 {
			if !swept(err) {
				break
			}
			version = 0
			err = d.query(ctx, got, d.sql["insert above"], args...)
		}
	case len(w.Value) == 0 && w.Notify == "":
		err = d.query(ctx, got, d.sql["update"], append(args, w.Old)...)
	default:
		lost = &sqlstore.Row{ID: w.ID}
		err = d.query(ctx, func(rows pgx.Rows) error {
			return rows.Scan(&version, &lost.Version, (*bytea)(&lost.Value), &lost.Clock)
		}, d.sql["swap"], append(args, w.Old)...)
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
	woken, payloads, channels := [][]byte{}, []string{}, []string{}
	lazy, where := true, make(map[string]int, len(ws))
	for i, w := range ws {
		ids[i], values[i], olds[i] = w.ID, w.Value, w.Old
		where[string(w.ID)] = i
		lazy = lazy && w.Lazy
		if w.Notify != "" {
			woken, payloads, channels = append(woken, w.ID), append(payloads, payload(w)), append(channels, d.channel.of(w.Notify))
		}
	}
	sql := d.sql["swaps"]
	for range 4 {
		versions = make([]int64, len(ws))
		err = d.query(ctx, func(rows pgx.Rows) error {
			var id bytea
			var version int64
			if err := rows.Scan(&id, &version, nil); err != nil {
				return err
			}
			versions[where[string(id)]] = version
			return nil
		}, sql, ids, values, lazy || d.async, payloads, olds, woken, d.channel.all(), channels)
		if !swept(err) {
			break
		}
		sql = d.sql["swaps above"]
	}
	if err != nil {
		return nil, err
	}
	return versions, nil
}

func (d *dialect) Keys(ctx context.Context, from, to []byte, n int) (ids [][]byte, err error) {
	err = d.query(ctx, func(rows pgx.Rows) error {
		var id bytea
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	}, d.sql["keys"], from, to, int32(min(n, 1<<30)))
	return ids, err
}

func (d *dialect) Idle(ctx context.Context, after []byte, idle time.Duration, n int) (found []sqlstore.Row, err error) {
	err = d.query(ctx, func(rows pgx.Rows) error {
		var r sqlstore.Row
		err := rows.Scan((*bytea)(&r.ID), &r.Version)
		found = append(found, r)
		return err
	}, d.sql["idle"], after, idle.Microseconds(), int32(min(n, 1<<30)))
	return found, err
}

func (d *dialect) Remove(ctx context.Context, rows []sqlstore.Row) (removed int, err error) {
	ids, floor := make([][]byte, len(rows)), int64(0)
	for i, r := range rows {
		ids[i], floor = r.ID, max(floor, r.Version)
	}
	err = d.conns(ctx, func(c *pgx.Conn) error {
		tag, err := c.Exec(ctx, d.sql["remove"], d.mode, ids, floor)
		removed = int(tag.RowsAffected())
		return err
	})
	return removed, err
}

// The SQLSTATEs of schema.sql.
const (
	stateSwept  = "HF001" // a row was swept while a statement came to insert it
	stateLost   = "HF002" // the token does not hold the lock
	stateNoLock = "HF003"
	stateNoTx   = "HF004"
)

func (d *dialect) Means(err error) sqlstore.Meaning {
	switch state(err) {
	case "40001", "40P01", stateSwept: // failure to serialize, deadlock
		return sqlstore.Again
	case "55P03", // lock_timeout
		"57014", "25P04": // statement_timeout and transaction_timeout of the role; a statement that was ended so has changed nothing
		return sqlstore.Locked
	}
	return sqlstore.Perhaps
}

func swept(err error) bool { return err != nil && state(err) == stateSwept }

// state is the SQLSTATE of an error of whatever driver, or "".
func state(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// A channel is what the names of the channels begin with on which a schema's
// notifications are sent. There is one for all notifications, one for those that are meant for
// everyone, and one for each session: a notification wakes every backend that
// listens, but the programs of those alone that listen to its channel.
type channel string

func channelOf(schema, prefix string) channel {
	name := fmt.Sprintf("%s.%s", schema, prefix)
	if len(name) > 30 {
		name = name[:14] + fmt.Sprintf("%016x", sum(name))
	}
	return channel(name)
}

func (c channel) all() string { return string(c) }

// of is the channel of notifications for someone: at most 63 bytes.
func (c channel) of(wake string) string {
	if len(wake) > 32 || strings.ContainsFunc(wake, func(r rune) bool { return r <= ' ' || r > '~' }) {
		wake = fmt.Sprintf("%016x", sum(wake))
	}
	return string(c) + ":" + wake
}

// channels are those that a write is told on.
func (s *settings) channels(wake string) []string {
	if wake == "" {
		return nil
	}
	return []string{s.channel.all(), s.channel.of(wake)}
}
