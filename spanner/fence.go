package spanner

import (
	"context"
	"fmt"

	"cloud.google.com/go/spanner"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// Fence makes the commit of txn depend on the locks: it fails with ErrLost unless each
// is still held with its token, and from then on nobody can take them over before txn
// has ended. Call it in the function that client.ReadWriteTransaction runs, on the
// database that holds the locks, and return its error; whenever Spanner runs that
// function again, the locks are checked again.
//
//	_, err := client.ReadWriteTransaction(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
//		if err := hfspanner.Fence(ctx, txn, lock); err != nil {
//			return err
//		}
//		return txn.BufferWrite(mine)
//	})
//
// txn has to have serializable isolation and pessimistic locks, which is Spanner's
// default. Spanner may abort it when it is idle for ten seconds and others wait for it, so
// a process that freezes in it does not keep a lock from them for ever.
func Fence(ctx context.Context, txn *spanner.ReadWriteTransaction, locks ...*holdfast.Lock) error {
	if len(locks) == 0 {
		return driver.ErrNothingFenced
	}
	for _, l := range locks {
		s, err := driver.StoreOf[*Store](l, "one of Spanner")
		if err != nil {
			return err
		}
		if err := l.Err(); err != nil {
			return l.FenceFailed(ctx, fmt.Errorf("fence %q: %w", l.Name(), err))
		}
		if err := s.fence(ctx, txn, l.Name(), l.Token()); err != nil {
			return l.FenceFailed(ctx, err)
		}
	}
	return nil
}

func (s *Store) fence(ctx context.Context, txn *spanner.ReadWriteTransaction, name string, token int64) error {
	k := driver.Key{Space: driver.Names, Name: name}
	var rec driver.Record
	var last spanner.NullInt64
	err := txn.Read(ctx, s.table, rowKey(k), []string{"value", "written", "fenced"}).Do(func(r *spanner.Row) error {
		var written spanner.NullTime
		err := r.Columns(&rec.Value, &written, &last)
		rec.Version = written.Time.UnixMicro()
		return err
	})
	if err != nil {
		return err // unchanged: it may tell the client to begin again
	}
	next, err := rec.Fence(name, token, last.Int64)
	if err != nil || next == last.Int64 {
		return err
	}
	return txn.BufferWrite([]*spanner.Mutation{spanner.Update(s.table, []string{"shard", "space", "name", "fenced"},
		[]any{shard(k), int64(k.Space), []byte(name), next})})
}
