package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// Fence makes the commit of tx depend on the locks: it fails with ErrLost unless
// each is still held with its token, and from then on nobody can take them over
// before tx has ended. It must be the last statement before Commit; after an
// error roll back: the server does not enforce that.
//
// So a fence protects nothing if its error is caught and forgotten, by ROLLBACK TO a
// savepoint and going on, as nested transactions of frameworks do, or by a CONTINUE
// HANDLER; nor if a savepoint before it is rolled back to, which may unlock it. A
// statement that commits by itself, such as one that changes tables, ends the fence with
// the transaction. After such a statement, or where each commits by itself, there is
// nothing to fence, which is an error, though MySQL cannot tell. In an XA transaction
// that is prepared, a fence keeps its locks until somebody commits it or rolls it back.
//
// tx is a transaction in the database that holds the locks, of any isolation
// level. Where innodb_snapshot_isolation is on and tx is REPEATABLE READ, Fence
// fails with error 1020 if the lock's record has changed since tx began to read,
// even if only a waiter has come; then roll back and do it again.
//
// A process that freezes between Fence and Commit does not keep the lock from
// others for ever: on MariaDB the fence sets idle_transaction_timeout to the
// lock's TTL unless the session has a limit of its own. It stays set for the
// connection, and a later fence there with a shorter TTL lowers it: set it in the data
// source name if that is too short for other transactions. MySQL has no such setting;
// there a frozen transaction blocks until the connection breaks, or wait_timeout is over.
//
// Programs in any language do the same with
//
//	call holdfast_fence('orders/42', 1795226403001234)
//
// which fails, with SQLSTATE HF002, unless the token holds the lock. A trigger can
// make sure that nobody writes without it, except a user who may make temporary tables in
// the database and puts one in place of ours. With this one, only the holder of the lock on
// an account can write, after "set @lock_token = 1795226403001234".
//
//	create trigger accounts_fenced before update on accounts for each row
//	  call holdfast_fence(concat('accounts/', new.id), coalesce(@lock_token, 0))
func Fence(ctx context.Context, tx *sql.Tx, locks ...*holdfast.Lock) error {
	return sqlstore.Fence(ctx, locks, "one of MySQL or MariaDB", func(s *Store, name string, token int64) error { return fence(ctx, tx, s.Tables, name, token) })
}

func fence(ctx context.Context, tx *sql.Tx, t sqlstore.Tables, name string, token int64) error {
	// This sends the bytes of the name, whatever character sets the connection has: in
	// some of them the digits of a hexadecimal number have several bytes.
	_, err := tx.ExecContext(ctx, t.Expand("call {fence}(convert(unhex(convert(? using latin1)) using utf8mb4), ?)", "`"), fmt.Sprintf("%x", name), token)
	return codes.Fenced(name, token, err)
}
