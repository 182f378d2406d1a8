package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
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
	statements
	channel channel
	mode    pgx.QueryExecMode
	async   bool // never wait for the disk
}

// statements are the SQL of a store. In those that change a record the settings
// come first, evaluated before any row is locked: how long to wait for a locked
// row, and whether to wait for the disk. They hold for this transaction, which
// is the statement.
//
// They run on connections of the caller's, where others may have functions and
// operators of any name ahead of PostgreSQL's own: so they name all in full.
type statements struct {
	load, loadAll               string
	insert, insertAbove, update string
	swap                        string
	swaps, swapsAbove           string
	keys, idle, remove          string
}

const (
	clock = `(extract(epoch from pg_catalog.clock_timestamp())::numeric {*} 1000000::numeric)::bigint`

	// $3: it need not wait for the disk
	commit = `case when $3::boolean then pg_catalog.set_config('synchronous_commit', 'off', true)
		when pg_catalog.current_setting('synchronous_commit') {=} 'off' then pg_catalog.set_config('synchronous_commit', 'on', true)
		else '' end is not null`
	// $6: how long it waits, in milliseconds
	settingsOne = `pg_catalog.set_config('lock_timeout', $6::pg_catalog.text, true) is not null
	and ` + commit
	// For all rows at once.
	settingsAll = `(select pg_catalog.set_config('lock_timeout', '250', true)) is not null
	and (select ` + commit + `)`

	// $4: what watchers are told, or nothing; $5: on which channels
	told = `case when $4::pg_catalog.text {<>} '' then (
	select pg_catalog.count(pg_catalog.pg_notify(c, $4)) from pg_catalog.unnest($5::pg_catalog.text[]) c) end`
)

var operators = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{([-+*<=>|~]+)\}`) })

// full is the text of a statement with the full names of tables, and of operators:
// {=} is PostgreSQL's own.
func full(t sqlstore.Tables, text string) string {
	return t.Expand(operators().ReplaceAllString(text, `operator(pg_catalog.$1)`), `"`)
}

func newStatements(t sqlstore.Tables) statements {
	// In one statement a key whose rows are rare may be new, or not.
	insert := func(version string) string {
		return full(t, `
insert into {records} as r (id, version, prev, value)
select $1::pg_catalog.bytea, `+version+`, -1, $2::pg_catalog.bytea where `+settingsOne+`
on conflict (id) do update set version = greatest(r.version {+} 1, excluded.version), prev = -1, value = excluded.value
where pg_catalog.length(r.value) {=} 0
returning version, `+told)
	}
	above := func(version string) string {
		return `greatest(` + version + `, (select m.value {+} 1 from {meta} m where m.key {=} 'floor'))`
	}
	update := `
update {records} set version = greatest(version {+} 1, ` + clock + `), prev = version, value = $2::pg_catalog.bytea
where id {=} $1::pg_catalog.bytea and version {=} $7::bigint and ` + settingsOne + `
returning version, ` + told
	swaps := func(version string) string {
		return full(t, `
insert into {records} as r (id, version, prev, value)
select w.id, `+version+`, w.old, w.value
from rows from (pg_catalog.unnest($1::pg_catalog.bytea[]), pg_catalog.unnest($5::bigint[]), pg_catalog.unnest($2::pg_catalog.bytea[])) w (id, old, value)
where (w.old {=} -1 or (select c.version from {records} c where c.id {=} w.id) {=} w.old)
	and `+settingsAll+`
order by w.id
on conflict (id) do update set version = greatest(r.version {+} 1, excluded.version), prev = excluded.prev, value = excluded.value
where r.version {=} excluded.prev or (excluded.prev {=} -1 and pg_catalog.length(r.value) {=} 0)
returning id, version, case when id {=} any ($6::pg_catalog.bytea[]) then (
	select pg_catalog.count(pg_catalog.pg_notify(c, ($4::pg_catalog.text[])[pg_catalog.array_position($6, id)]))
	from pg_catalog.unnest(array[$7::pg_catalog.text, ($8::pg_catalog.text[])[pg_catalog.array_position($6, id)]]) c) end`)
	}
	// The clock comes as a row of its own, for there may be no other.
	load := func(which string) string {
		return full(t, `
select `+clock+`, pg_catalog.pg_is_in_recovery(), null::pg_catalog.bytea, null::bigint, null::pg_catalog.bytea
union all
select 0, false, r.id, r.version, r.value from {records} r where r.id {=} `+which)
	}
	// There are no joins: a role that is denied nested loops would have each statement
	// compiled for its cost (jit), which takes a hundred times as long as to run it.
	return statements{
		load:        load(`$1`),
		loadAll:     load(`any ($1::pg_catalog.bytea[])`),
		insert:      insert(clock),
		insertAbove: insert(above(clock)),
		update:      full(t, update),
		// Who loses is told what the statement has seen.
		swap: full(t, `
with won as (`+update+`)
select coalesce((select w.version from won w), 0), r.version, case when (select w.version from won w) is null then r.value end, `+clock+`
from {records} r where r.id {=} $1`),
		swaps:      swaps(`(select ` + clock + `)`),
		swapsAbove: swaps(`(select ` + above(clock) + `)`),
		keys:       full(t, `select k from {keys}($1::pg_catalog.bytea, $2::pg_catalog.bytea, $3::int) k`),
		idle:       full(t, `select k.id, k.version from {idle}($1::pg_catalog.bytea, `+clock+` {-} $2::bigint, $3::int) k`),
		// Rows that others have locked are left to the next sweep.
		remove: full(t, `
with raised as (
	update {meta} set value = greatest(value, $2) where key {=} 'floor' and pg_catalog.set_config('synchronous_commit', 'off', true) is not null
)
delete from {records} where ctid {=} any (array(
	select r.ctid from {records} r
	where r.id {=} any ($1::pg_catalog.bytea[]) and pg_catalog.length(r.value) {=} 0 and r.version {<=} $2::bigint
	for update skip locked))`),
	}
}

// bytesOf is never null.
func bytesOf(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}

func (d *dialect) query(ctx context.Context, row func(pgx.Rows) error, sql string, args ...any) error {
	return d.conns.use(ctx, func(c *pgx.Conn) error {
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
	sql, arg := d.loadAll, any(ids)
	if len(ids) == 1 {
		sql, arg = d.load, ids[0]
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
	args := []any{w.ID, bytesOf(w.Value), w.Lazy || d.async, payload(w), d.channels(w.Wake), patience}
	got := func(rows pgx.Rows) error { return rows.Scan(&version, nil) }
	switch {
	case w.Old == holdfast.IfEmpty:
		err = d.query(ctx, got, d.insert, args...)
		for range 3 {
			if !swept(err) {
				break
			}
			version = 0
			err = d.query(ctx, got, d.insertAbove, args...)
		}
	case len(w.Value) == 0 && w.Wake == "":
		err = d.query(ctx, got, d.update, append(args, w.Old)...)
	default:
		lost = &sqlstore.Row{ID: w.ID}
		err = d.query(ctx, func(rows pgx.Rows) error {
			return rows.Scan(&version, &lost.Version, (*bytea)(&lost.Value), &lost.Clock)
		},
			d.swap, append(args, w.Old)...)
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
		ids[i], values[i], olds[i] = w.ID, bytesOf(w.Value), w.Old
		where[string(w.ID)] = i
		lazy = lazy && w.Lazy
		if w.Wake != "" {
			woken, payloads, channels = append(woken, w.ID), append(payloads, payload(w)), append(channels, d.channel.of(w.Wake))
		}
	}
	sql := d.swaps
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
		sql = d.swapsAbove
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
	}, d.keys, from, to, int32(min(n, 1<<30)))
	return ids, err
}

func (d *dialect) Idle(ctx context.Context, after []byte, idle time.Duration, n int) (found []sqlstore.Row, err error) {
	err = d.query(ctx, func(rows pgx.Rows) error {
		var r sqlstore.Row
		err := rows.Scan((*bytea)(&r.ID), &r.Version)
		found = append(found, r)
		return err
	}, d.idle, bytesOf(after), idle.Microseconds(), int32(min(n, 1<<30)))
	return found, err
}

func (d *dialect) Remove(ctx context.Context, rows []sqlstore.Row) (removed int, err error) {
	ids, floor := make([][]byte, len(rows)), int64(0)
	for i, r := range rows {
		ids[i], floor = r.ID, max(floor, r.Version)
	}
	err = d.conns.use(ctx, func(c *pgx.Conn) error {
		tag, err := c.Exec(ctx, d.remove, d.mode, ids, floor)
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
// hints are sent. There is one for all hints, one for those that are meant for
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

// of is the channel of hints for someone: at most 63 bytes.
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
