package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
)

// Fence makes the commit of tx depend on the locks: it fails with ErrLost unless
// each is still held with its token, and from then on nobody can take them over
// before tx has ended. It must be the last statement before Commit; after an
// error roll back.
//
// tx is a transaction in the database that holds the locks, of any isolation
// level: one that is stricter than READ COMMITTED fails with a serialization
// failure (SQLSTATE 40001) if the lock has changed hands, or somebody has come to
// wait for it, since it began.
//
// A nested transaction is a savepoint, and a program that rolls back to it and goes on
// has no fence: neither one that was called after the savepoint nor one that failed
// there. The same goes for a block of PL/pgSQL that catches an exception. What was
// written before is then committed, whoever holds the lock. Fence the outermost
// transaction, and let an error of Fence end it.
//
// A process that freezes between Fence and Commit does not keep the lock from
// others for ever: the server ends a transaction that is idle for longer than the
// lock's TTL (idle_in_transaction_session_timeout, for this transaction only). It
// does not end one that was prepared (PREPARE TRANSACTION): that keeps the lock until
// somebody commits it or rolls it back. Doctor names it.
//
// Programs in any language do the same with
//
//	select holdfast_fence('orders/42', 1795226403001234)
//
// which fails unless the token holds the lock. Outside a transaction it fences
// nothing. It then fails from psql and others that speak the simple protocol; with the
// extended protocol, which JDBC uses, it cannot tell.
func Fence(ctx context.Context, tx pgx.Tx, locks ...*holdfast.Lock) error {
	return fence(ctx, locks, func(query string, name []byte, token int64) error {
		if tx.Conn().PgConn().TxStatus() == 'I' {
			return errNoTx
		}
		_, err := tx.Exec(ctx, query, name, token)
		return err
	})
}

// FenceSQL is Fence for a transaction of database/sql, with any driver for
// PostgreSQL.
func FenceSQL(ctx context.Context, tx *sql.Tx, locks ...*holdfast.Lock) error {
	return fence(ctx, locks, func(query string, name []byte, token int64) error {
		_, err := tx.ExecContext(ctx, query, name, token)
		return err
	})
}

var errNoTx = errors.New("there is no transaction that could be fenced")

// fence calls the function, through exec, in the database that holds the locks.
func fence(ctx context.Context, locks []*holdfast.Lock, exec func(query string, name []byte, token int64) error) error {
	return sqlstore.Fence(ctx, locks, "one of PostgreSQL", func(s *Store, name string, token int64) error {
		return fenceName(s.Tables, name, token, exec)
	})
}

func fenceName(t sqlstore.Tables, name string, token int64, exec func(query string, name []byte, token int64) error) error {
	return codes.Fenced(name, token, exec(t.Expand(`select {fence}($1::pg_catalog.bytea, $2::bigint)`, `"`), []byte(name), token))
}
