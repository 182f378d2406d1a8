package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Fence makes the commit of tx depend on the locks: it fails with ErrLost
// unless each is still held with its token, and from then on nobody can take
// them over before tx has ended. It must be the last statement before Commit;
// after an error roll back.
//
// tx is a transaction on the file that holds the locks. Begin it IMMEDIATE
// (_txlock=immediate): one that reads first and writes later fails if others
// have written in between. A transaction of any driver other than that of
// modernc.org/sqlite is refused, for the reason given in the package comment.
//
// Other programs, in any language, can do the same with
//
//	insert into holdfast_fence (name, token) values ('orders/42', 1795226403001234)
//
// which rolls the transaction back and fails unless the token holds the lock.
func Fence(ctx context.Context, tx *sql.Tx, locks ...*holdfast.Lock) error {
	same := sync.OnceValue(func() error { return sameCopy(ctx, tx) })
	return sqlstore.Fence(ctx, locks, "one of SQLite", func(s *Store, name string, token int64) error {
		if err := cmp.Or(same(), s.sameFile(ctx, tx, name)); err != nil {
			return err
		}
		return fence(ctx, tx, name, token)
	})
}

func fence(ctx context.Context, tx *sql.Tx, name string, token int64) error {
	failed := func(err error) error { return fmt.Errorf("fence %q: %w", name, err) }

	// The write lock comes first: a client that wants to take the lock over waits from now on.
	key := []byte(name)
	changed, err := tx.ExecContext(ctx, `update holdfast_records set fence = fence where space = 0 and name = ?`, key)
	if err != nil {
		var tables int
		again := tx.QueryRowContext(ctx, `select count(*) from sqlite_master where type = 'table' and name = 'holdfast_records'`).Scan(&tables)
		if again == nil && tables == 0 {
			return failed(errNoLock)
		}
		return failed(err)
	}
	if n, err := changed.RowsAffected(); err != nil {
		return failed(err)
	} else if n == 0 {
		return failed(errNoLock)
	}
	var r driver.Record
	var last int64
	err = tx.QueryRowContext(ctx, `select version, value, fence from holdfast_records where space = 0 and name = ?`, key).Scan(&r.Version, &r.Value, &last)
	if err != nil {
		return failed(err)
	}
	next, err := r.Fence(name, token, last)
	if err != nil || next == last {
		return err
	}
	if _, err := tx.ExecContext(ctx, `update holdfast_records set fence = ? where space = 0 and name = ?`, next, key); err != nil {
		return failed(err)
	}
	return nil
}

var errNoLock = errors.New("there is no such lock in the file of this transaction: the lock was taken in another one")

// sameFile refuses a transaction on a file other than the store's.
func (s *Store) sameFile(ctx context.Context, tx *sql.Tx, name string) error {
	var path string
	err := tx.QueryRowContext(ctx, `select file from pragma_database_list where name = 'main'`).Scan(&path)
	if err != nil {
		return fmt.Errorf("fence %q: %w", name, err)
	}
	its, err := os.Stat(path)
	ours, errOurs := os.Stat(s.path)
	if err == nil && errOurs == nil && !os.SameFile(its, ours) {
		return fmt.Errorf("fence %q: the lock was taken in %s, and this transaction is one of %s; fence it there", name, s.path, path)
	}
	return nil
}

// sameCopy refuses a transaction that runs on another copy of SQLite than our
// stores in this process, since two copies do not see each other's locks. It also
// refuses one that would see another table than theirs.
func sameCopy(ctx context.Context, tx *sql.Tx) error {
	ours, err := copyOfSQLite()
	if err != nil {
		return err
	}
	var its string
	var hidden int
	err = tx.QueryRowContext(ctx, `select (`+whichCopy+`), (select count(*) from sqlite_temp_master where lower(name) = 'holdfast_records')`).Scan(&its, &hidden)
	if err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	if hidden != 0 {
		return errors.New("fence: this connection has a temporary holdfast_records, which hides that of the file: drop it")
	}
	if its != ours {
		return errors.New("fence: the transaction is of another copy of SQLite than the store, and in one process they break each other's locks: open the file with the driver of modernc.org/sqlite")
	}
	return nil
}

// whichCopy tells copies of SQLite apart by their source and how they were
// compiled.
const whichCopy = `
	select sqlite_source_id() || ' ' || coalesce(sqlite_compileoption_get(0), '') || ' ' ||
	       coalesce(sqlite_compileoption_get(1), '') || ' ' || coalesce(sqlite_compileoption_get(2), '')`

var copyOfSQLite = sync.OnceValues(func() (string, error) {
	c, err := connect("file::memory:")
	if err != nil {
		return "", err
	}
	defer c.close()
	v, err := c.one(whichCopy)
	return text(v), err
})
