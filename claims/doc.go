// Package claims takes locks in wide-column stores that cannot compare and swap
// (HBase, Bigtable, Cassandra without lightweight transactions), as Titan and
// JanusGraph do, in the same rows, byte by byte: a [Locker] and JanusGraph's
// ConsistentKeyLocker keep each other out.
//
//	locker, err := claims.New(columns, nil)
//	…
//	defer locker.Close(ctx)
//	lock, err := locker.Acquire(ctx, []byte("nightly"), nil)
//	…
//	defer lock.Release(ctx)
//	return backup(lock.Context()) // ends when the lock is lost
//
// Where the store can compare and swap, use a store of package holdfast: that
// rests on no clock of another host, is quicker, and has tokens.
//
// # How it works
//
// Who wants a lock writes a claim, a column whose name begins with the time,
// waits until every claim that sorts before it must be there, and reads the row. If
// its claim comes first it holds the lock; else it waits for those before it. A claim that is
// older than [Options].Expire does not count. A holder writes another claim long before
// that, and puts one in front of each claim that has come in between, so it
// stays first as long as it lives. It believes in its lock until the
// first of the others could think that its claims have expired; then the lock's context ends,
// with no I/O in the way.
//
// [Locker.Begin] is the interface of the original: a [Tx] claims several locks
// (Write), checks them together and compares the values that it expects with what
// is there (Check), and gives them back (Delete).
//
// # What it rests on
//
//   - Clocks of all hosts, JanusGraph's included, differ by no more than
//     [Options].Skew at any time. That is the one assumption that this package
//     cannot check in full: it refuses to lock when it meets a claim from the
//     future ([SkewError]), and that is not all that can go wrong.
//   - Reads show all writes that were confirmed: see [Columns]. Where a quorum of
//     nodes loses confirmed writes, as Cassandra does when they all lose power with
//     commitlog_sync: periodic, locks are lost with them.
//   - All who lock in a table have the same Unit, Wait and Expire. Lockers find
//     out; JanusGraph does not publish its settings, and nobody can check them.
//
// # What no client can close
//
//   - Two holders, if clocks differ by more than Skew: whose clock is behind sorts
//     before a holder that has already read, and whose clock is ahead finds claims expired
//     that are believed.
//   - JanusGraph does not renew. A transaction of it that lasts longer than Expire
//     has lost its locks to the next one, and finds out only if it had not
//     checked them yet.
//   - JanusGraph takes all claims with its own rid for its own. Two instances with
//     one unique-instance-id hold the same lock.
//   - A holder that was frozen may finish a write that it had begun when its
//     claim had expired. [Lock.Err] or [Lock.Verify] in front of an act narrows that. There is no
//     token and no fence here: the store has nothing to compare it with.
//   - JanusGraph does not wait in line. It gets its turn when it meets the row
//     without claims, as it does when there are only claims of its own kind.
//
// # Errors
//
// holdfast.ErrHeld, ErrLost, ErrReleased and ErrClosed mean what they mean there.
// [SlowError], [SkewError], [SettingsError] and [MismatchError] say what they
// have found. Any other error of the store means perhaps: the claim may stand,
// and is removed behind the caller's back until [Locker.Close]. Whoever ends
// without it, or is killed, leaves claims that are in the way of others until they expire.
package claims
