package mysql

import (
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed"
	"encoding/base64"
	"errors"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// A dialect is a sqlstore.Dialect over some lanes.
type dialect struct {
	sql       map[string]string // see statements.sql
	returning bool              // the server has INSERT … RETURNING
	lanes     func(context.Context, func(*lane) error) error
	rows      *rowsSeen
}

//go:embed statements.sql
var statements string

var texts = sync.OnceValue(func() map[string]string {
	texts := sqlstore.Texts(statements)
	texts["swaps of long values"] = strings.ReplaceAll(texts["swaps"], "{{type}}", "longtext")
	texts["swaps"] = strings.ReplaceAll(texts["swaps"], "{{type}}", "varchar(700)")
	texts["remove"] = strings.ReplaceAll(texts["remove"], "{{ids}}", "?"+strings.Repeat(", ?", sweepBatch-1))
	return texts
})

const sweepBatch = 500 // ids in one statement of remove

func newStatements(t sqlstore.Tables, returning bool) map[string]string {
	sql := make(map[string]string)
	for name, text := range texts() {
		if returning && strings.HasPrefix(name, "swaps") {
			text += " " + texts()["returning"]
		}
		sql[name] = t.Expand(text, "`")
	}
	return sql
}

// rights are statements that together need all the rights there are, and the first all
// but those to sweep.
var rights = []string{"insert", "raise", "remove"}

var errReplica = errors.New("the server is read-only, and what it shows may be old: connect to the primary")

func (d *dialect) Load(ctx context.Context, ids [][]byte, each func(sqlstore.Row)) (clock int64, err error) {
	var readOnly string
	var version sql.NullInt64
	var value []byte
	nr := 1
	query, arg, columns := d.sql["load"], any(ids[0]), []any{&clock, &readOnly, &version, &value}
	if len(ids) > 1 {
		query, arg = d.sql["load all"], list(len(ids), func(b []byte, i int) []byte { return quoted(b, ids[i]) })
		columns = []any{&clock, &readOnly, &nr, &version, &value}
	}
	err = d.lanes(ctx, func(l *lane) error {
		return l.query(ctx, query, func(rows *sql.Rows) error {
			value = nil
			if err := rows.Scan(columns...); err != nil {
				return err
			}
			if readOnly != "0" && readOnly != "OFF" {
				return errReplica
			}
			if version.Int64 > 0 {
				each(sqlstore.Row{ID: ids[nr-1], Version: version.Int64, Value: value})
			}
			return nil
		}, arg)
	})
	return clock, err
}

// list is a JSON array of n items.
func list(n int, item func(b []byte, i int) []byte) string {
	b := []byte{'['}
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b, i)
	}
	return string(append(b, ']'))
}

// quoted appends bytes as a JSON string, in base64.
func quoted(b, data []byte) []byte {
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, data)
	return append(b, '"')
}

func (d *dialect) Swap(ctx context.Context, w sqlstore.Write) (version int64, lost *sqlstore.Row, err error) {
	if w.Hurry { // the server waits for a second at least, if at all
		err := d.lanes(ctx, func(l *lane) error {
			return l.query(ctx, d.sql["locked"], func(*sql.Rows) error { return nil }, w.ID)
		})
		if err != nil {
			return 0, nil, err
		}
	}
	if w.Old != driver.IfEmpty {
		version, err = d.write(ctx, d.sql["update"], w.Value, w.ID, w.Old)
		return version, nil, err
	}
	if d.rows.seen(w.ID) {
		if version, err = d.write(ctx, d.sql["take"], w.Value, w.ID); err != nil || version != 0 {
			return version, nil, err
		}
		clock, err := d.Load(ctx, [][]byte{w.ID}, func(r sqlstore.Row) { lost = &r })
		if err != nil {
			return 0, nil, err
		}
		if lost != nil && len(lost.Value) > 0 {
			lost.Clock = clock
			return 0, lost, nil
		}
		// It was freed just now, or swept.
	}
	if version, err = d.write(ctx, d.sql["insert"], w.ID, w.Value); err == nil {
		d.rows.see(w.ID)
	}
	return version, nil, err
}

var errTrigger = errors.New("a trigger on our table of records hides what a write has done: drop it")

// write is one statement. The new version, which is the id that it has set, tells
// who won: the number of rows depends on clientFoundRows.
func (d *dialect) write(ctx context.Context, query string, args ...any) (version int64, err error) {
	err = d.lanes(ctx, func(l *lane) error {
		r, err := l.exec(ctx, query, args...)
		if err != nil {
			return err
		}
		if version, err = r.LastInsertId(); err != nil || version != 0 {
			return err
		}
		// A row that has changed has a version, unless a statement after it, which
		// can only be that of a trigger, has made the server forget it. Of an
		// insert that lost, one row is told with clientFoundRows.
		if n, err := r.RowsAffected(); err != nil || n > 1 || n == 1 && query != d.sql["insert"] {
			return errors.Join(err, errTrigger)
		}
		return nil
	})
	return version, err
}

// rowsSeen remembers what ids have rows, as far as it has room. It may be
// wrong, which costs a round trip: an update is a tenth faster than an insert
// that finds a row, and useless where there is none.
type rowsSeen struct {
	seed  maphash.Seed
	marks [4096]atomic.Uint64
}

func (r *rowsSeen) mark(id []byte) (at *atomic.Uint64, mark uint64) {
	h := maphash.Bytes(r.seed, id)
	return &r.marks[h%uint64(len(r.marks))], h
}

func (r *rowsSeen) see(id []byte) {
	at, mark := r.mark(id)
	at.Store(mark)
}

func (r *rowsSeen) seen(id []byte) bool {
	at, mark := r.mark(id)
	return at.Load() == mark
}

const (
	// shortValue is what a value may have so that the server handles a batch in
	// memory, also if it has no room for temporary files.
	shortValue = 512
	// batchBytes is what the values of a batch may have together.
	batchBytes = 2 << 20
)

var errLarge = errors.New("the batch is too large for one statement")

func (d *dialect) Swaps(ctx context.Context, ws []sqlstore.Write) (versions []int64, err error) {
	query, size := d.sql["swaps"], 0
	where := make(map[string]int, len(ws))
	for i, w := range ws {
		where[string(w.ID)] = i
		if size += len(w.Value); len(w.Value) > shortValue {
			query = d.sql["swaps of long values"]
		}
	}
	if size > batchBytes {
		return nil, errLarge
	}
	attempt := rand.Text()[:16]
	writes := list(len(ws), func(b []byte, i int) []byte {
		b = quoted(append(b, '['), ws[i].ID)
		b = strconv.AppendInt(append(b, ','), ws[i].Old, 10)
		return append(quoted(append(b, ','), ws[i].Value), ']')
	})
	args := []any{attempt, writes, attempt, attempt, attempt}
	row := func(rows *sql.Rows) error {
		var id []byte
		var version int64
		err := rows.Scan(&id, &version)
		versions[where[string(id)]] = version
		return err
	}
	err = d.lanes(ctx, func(l *lane) error {
		versions = make([]int64, len(ws))
		if d.returning {
			return l.query(ctx, query, row, append(args, attempt)...)
		}
		// Until the commit nobody else can follow what has won.
		swaps, err := l.prepare(ctx, query)
		if err != nil {
			return err
		}
		won, err := l.prepare(ctx, d.sql["won"])
		if err != nil {
			return err
		}
		tx, err := l.conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.StmtContext(ctx, swaps).ExecContext(ctx, args...); err != nil {
			return err
		}
		rows, err := tx.StmtContext(ctx, won).QueryContext(ctx, writes, attempt)
		if err := each(rows, err, row); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		return nil, err
	}
	return versions, nil
}

func (d *dialect) Keys(ctx context.Context, from, to []byte, n int) (ids [][]byte, err error) {
	err = d.lanes(ctx, func(l *lane) error {
		return l.once(ctx, d.sql["keys"], func(rows *sql.Rows) error {
			var id []byte
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		}, from, to, n)
	})
	return ids, err
}

func (d *dialect) Idle(ctx context.Context, after []byte, idle time.Duration, n int) (found []sqlstore.Row, err error) {
	err = d.lanes(ctx, func(l *lane) error {
		return l.once(ctx, d.sql["idle"], func(rows *sql.Rows) error {
			var r sqlstore.Row
			err := rows.Scan(&r.ID, &r.Version)
			found = append(found, r)
			return err
		}, after, idle.Microseconds(), n)
	})
	return found, err
}

// Remove raises the floor first, and deletes when that is committed. Whoever
// inserts has a shared lock on the floor until its row is there: so a row that
// is not there when the floor has risen will start above it. Two statements
// that commit by themselves leave nothing locked if this process freezes
// between them.
func (d *dialect) Remove(ctx context.Context, rows []sqlstore.Row) (removed int, err error) {
	var floor int64
	for _, r := range rows {
		floor = max(floor, r.Version)
	}
	err = d.lanes(ctx, func(l *lane) error {
		if _, err := l.conn.ExecContext(ctx, d.sql["raise"], floor); err != nil {
			return err
		}
		for len(rows) > 0 {
			args := make([]any, 0, sweepBatch+1)
			for i := range sweepBatch {
				args = append(args, rows[min(i, len(rows)-1)].ID)
			}
			r, err := l.conn.ExecContext(ctx, d.sql["remove"], append(args, floor)...)
			if err != nil {
				return err
			}
			n, err := r.RowsAffected()
			if err != nil {
				return err
			}
			removed += int(n)
			rows = rows[min(sweepBatch, len(rows)):]
		}
		return nil
	})
	return removed, err
}

// Errors of the server that are looked at.
const (
	errLockWait     = 1205
	errDeadlock     = 1213
	errRecordChange = 1020
	errNoTable      = 1146
	errNoWait       = 3572 // MySQL's for nowait
	errNoProcedure  = 1305
	errNoDefiner    = 1449
	errUnknownStmt  = 1243
	errReprepare    = 1615
	errOption       = 1290 // --read-only among others
	errReadOnlyMode = 1836
	errReadOnlyTx   = 1792
)

// Means implements sqlstore.Dialect. What these errors are of was rolled back: a
// statement that commits by itself, or a transaction that we end after any error.
func (d *dialect) Means(err error) sqlstore.Meaning {
	if err == errLarge {
		return sqlstore.Locked // each is written alone
	}
	switch number(err) {
	case errDeadlock, errRecordChange, errReprepare, errUnknownStmt:
		return sqlstore.Again
	case errLockWait, errNoWait:
		return sqlstore.Locked
	}
	return sqlstore.Perhaps
}

// number is that of an error of the server, or 0.
func number(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// denied tells whether the user lacks a right.
func denied(err error) bool {
	switch number(err) {
	case 1044, 1142, 1143, 1227, 1370:
		return true
	}
	return false
}
