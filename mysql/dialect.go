package mysql

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// A dialect is a sqlstore.Dialect over some lanes.
type dialect struct {
	sqlstore.Reads[*lane]
	returning bool // the server has INSERT … RETURNING
	rows      *sqlstore.RowsSeen
}

func newDialect(use func(context.Context, func(*lane) error) error, returning bool, rows *sqlstore.RowsSeen) *dialect {
	return &dialect{sqlstore.Reads[*lane]{Use: use, Walk: use, List: func(ids [][]byte) any { return list(ids) }, Codes: codes, Follows: errReplica}, returning, rows}
}

//go:embed statements.sql
var statements string

var texts = sync.OnceValue(func() map[string]string {
	texts := sqlstore.Texts(statements)
	swaps := texts["swaps"]
	texts["swaps"] = strings.ReplaceAll(swaps, "{{type}}", "varchar(700)")
	texts["swaps of long values"] = strings.ReplaceAll(swaps, "{{type}}", "longtext")
	for _, name := range []string{"swaps", "swaps of long values"} {
		texts[name+", returning"] = texts[name] + " " + texts["returning"]
	}
	texts["remove"] = strings.ReplaceAll(texts["remove"], "{{ids}}", "?"+strings.Repeat(", ?", sqlstore.SweepBatch-1))
	return texts
})

func newStatements(t sqlstore.Tables) map[string]string {
	sql := make(map[string]string)
	for name, text := range texts() {
		sql[name] = t.Expand(text, "`")
	}
	return sql
}

// rights are statements that together need all rights of a store; the first needs all but
// those to sweep.
var rights = []string{"insert", "raise", "remove"}

var errReplica = errors.New("the server is read-only, and what it shows may be old: connect to the primary")

// list is a JSON array, in which bytes are in base64.
func list(items any) string {
	b, _ := json.Marshal(items) // bytes and numbers
	return string(b)
}

func (d *dialect) Swap(ctx context.Context, w sqlstore.Write) (version int64, lost *sqlstore.Row, err error) {
	if w.Hurry { // the server waits for a second at least, if at all
		err := d.Use(ctx, func(l *lane) error {
			return l.Query(ctx, "locked", func(sqlstore.Scan) error { return nil }, w.ID)
		})
		if err != nil {
			return 0, nil, err
		}
	}
	if w.Old != driver.IfEmpty {
		version, err = d.write(ctx, "update", w.Value, w.ID, w.Old)
		return version, nil, err
	}
	return d.rows.Take(ctx, d, w,
		func() (int64, error) { return d.write(ctx, "take", w.Value, w.ID) },
		func() (int64, error) { return d.write(ctx, "insert", w.ID, w.Value) })
}

var errTrigger = errors.New("a trigger on our table of records hides what a write has done: drop it")

// write runs one statement. The new version, which it sets as the last inserted id,
// tells whether it won: the number of rows depends on clientFoundRows.
func (d *dialect) write(ctx context.Context, name string, args ...any) (version int64, err error) {
	err = d.Use(ctx, func(l *lane) error {
		s, err := l.prepare(ctx, name)
		if err != nil {
			return err
		}
		r, err := s.ExecContext(ctx, args...)
		if err != nil {
			return err
		}
		if version, err = r.LastInsertId(); err != nil || version != 0 {
			return err
		}
		// A row that has changed has a version, unless a later statement, which
		// can only be a trigger's, has made the server forget it. With
		// clientFoundRows, one row is reported for an insert that lost.
		if n, err := r.RowsAffected(); err != nil || n > 1 || n == 1 && name != "insert" {
			return errors.Join(err, errTrigger)
		}
		return nil
	})
	return version, err
}

const (
	// shortValue is the length up to which the server handles the values of a batch
	// in memory, even if it has no room for temporary files.
	shortValue = 512
	// batchBytes is how long the values of a batch may be together.
	batchBytes = 2 << 20
)

var errLarge = errors.New("the batch is too large for one statement")

func (d *dialect) Swaps(ctx context.Context, ws []sqlstore.Write) (versions []int64, err error) {
	name, size, triples := "swaps", 0, make([][3]any, len(ws))
	for i, w := range ws {
		triples[i] = [3]any{w.ID, w.Old, w.Value}
		if size += len(w.Value); len(w.Value) > shortValue {
			name = "swaps of long values"
		}
	}
	if size > batchBytes {
		return nil, errLarge
	}
	attempt := rand.Text()[:16]
	writes := list(triples)
	args := []any{attempt, writes, attempt, attempt, attempt}
	versions, row := sqlstore.Winners(ws)
	err = d.Use(ctx, func(l *lane) error {
		if d.returning {
			return l.Query(ctx, name+", returning", row, append(args, attempt)...)
		}
		// Until the commit nobody else can follow what has won.
		swaps, err := l.prepare(ctx, name)
		if err != nil {
			return err
		}
		won, err := l.prepare(ctx, "won")
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

// Remove raises the floor first, and deletes when that is committed. An insert
// holds a shared lock on the floor until its row is there, so a row that is not
// there when the floor has risen will start above it. Two statements that commit
// by themselves leave nothing locked if this process freezes between them.
func (d *dialect) Remove(ctx context.Context, rows []sqlstore.Row) (removed int, err error) {
	var floor int64
	for _, r := range rows {
		floor = max(floor, r.Version)
	}
	args := make([]any, 0, sqlstore.SweepBatch+1)
	for i := range sqlstore.SweepBatch {
		args = append(args, rows[min(i, len(rows)-1)].ID)
	}
	err = d.Use(ctx, func(l *lane) error {
		if _, err := l.conn.ExecContext(ctx, l.texts["raise"], floor); err != nil {
			return err
		}
		r, err := l.conn.ExecContext(ctx, l.texts["remove"], append(args, floor)...)
		if err != nil {
			return err
		}
		n, err := r.RowsAffected()
		removed = int(n)
		return err
	})
	return removed, err
}

// codes are the numbers of errors, and what the fence signals. Again and Locked mean that
// all was rolled back: the statement commits by itself, or is in a transaction that we end
// after any error.
var codes = &sqlstore.Codes{Of: code, Means: map[string]sqlstore.Meaning{
	"1213": sqlstore.Again, "1020": sqlstore.Again, "1615": sqlstore.Again, "1243": sqlstore.Again, // deadlock, changed, prepare anew
	"1205": sqlstore.Locked, "3572": sqlstore.Locked, // MySQL's for nowait
	"1044": sqlstore.Denied, "1142": sqlstore.Denied, "1143": sqlstore.Denied, "1227": sqlstore.Denied, "1370": sqlstore.Denied,
	"1146": sqlstore.Missing, "1305": sqlstore.NoLock, // no such table, no such procedure
	"HF002": sqlstore.Lost, "HF003": sqlstore.NoLock, "HF004": sqlstore.NoTransaction,
	"large": sqlstore.Locked, // each is written alone
}}

func code(err error) string {
	var e *mysql.MySQLError
	switch {
	case err == errLarge:
		return "large"
	case !errors.As(err, &e):
		return ""
	case e.SQLState[0] == 'H' && e.SQLState[1] == 'F':
		return string(e.SQLState[:])
	}
	return strconv.Itoa(int(e.Number))
}

// denied tells whether the user lacks a right.
func denied(err error) bool { return codes.Meaning(err) == sqlstore.Denied }
