// Package claims takes locks in wide-column stores with reads and writes alone, as
// Titan and JanusGraph do, in the same rows, byte for byte: a [Locker] and
// JanusGraph's ConsistentKeyLocker keep each other out. A store implements [Columns];
// package claimstest tests its contract.
//
//	locker, err := claims.New(columns, nil)
//	…
//	defer locker.Close(ctx)
//	lock, err := locker.Acquire(ctx, []byte("nightly"), nil)
//	…
//	defer lock.Release(ctx)
//	return backup(lock.Context()) // ends when the lock is lost
//
// Use it to share locks with JanusGraph, or where nothing but reads and writes is
// allowed. Cassandra can compare and swap (lightweight transactions), and so can
// HBase (checkAndMutate) and Bigtable (CheckAndMutateRow). A store of package
// holdfast uses that: it does not depend on the clocks of other hosts, is quicker, and
// has tokens. Package cassandra is one; for HBase and Bigtable there is none yet.
//
// [List] and [Remove] show and remove the claims of a table, as does the command
// holdfast claims.
//
// # How it works
//
// A process that wants a lock writes a claim, a column whose name begins with the
// time, waits until every claim that sorts before it must be visible, and reads the
// row. The first claim holds the lock; the others wait. A claim that is older than
// [Options].Expire does not count. Long before that the holder renews: it writes
// another claim, and puts one in front of each claim that has come in between, so it
// stays first as long as it lives. Its trust window ends at the earliest time at which
// another process could find its claims expired; then the lock's context ends, without
// waiting for any I/O.
//
// [Locker.Begin] is the interface of the original: a [Tx] claims several locks
// (Write), checks them together and compares the values that it expects with what
// is there (Check), and gives them back (Delete).
//
// # The rules
//
//	row     int32 length of key | key | column      the lock
//	column  int64 timestamp | rid                   a claim, in order of time; value 00000000
//	rid     name ~ 32 random hex digits             new for every column, so that no two claims are confused
//	row     ffffffff "holdfast"                     the settings of all Lockers; no key has that length
//
// The first claim holds. Let A's claim sort before B's. A's clock is behind B's by at most
// Skew, so A began at most Skew later; its write was visible within Wait, or did not count.
// B reads after Wait + Skew + one tick and sees it. All waits and trust windows use a clock
// that does not step; the wall clock serves only for what is written and compared.
//
//   - Expiry. Originals discard a claim at Expire by their clocks, Lockers at Expire + Skew.
//     The holder stops at Expire - Skew - 5 %, counted from before it read the clock for
//     its claim, without waiting for any I/O.
//   - Renewal is a second claim, written after a third of that time. If others have claimed in
//     between, one of them would be first when the holder's first claim expires. So after
//     another wait the holder puts a guard in front of each of their claims: a claim with the
//     same timestamp, whose rid sorts earlier, and which expires together with theirs. So the
//     first unexpired claim is always the holder's, for originals too, which know nothing of
//     renewals. Only a holder may write a claim with a timestamp in the past, since no other
//     process has to see it in time. Rejected: deleting the claims of others; a late deletion
//     removes a claim that holds by then. Rejected: a renewal without guards; a waiter that dies,
//     or an original that checks late, ends the lock of a healthy holder, or shares it.
//   - Waiting. A Locker's claim stays where it is: claims sort by time, so they are the queue,
//     and the claim that comes to the front holds at once. That costs one read per poll and one
//     write per half of Expire. A waiter that is killed is in the way until its claim expires.
//     Originals do not queue: they lose whenever there is an older claim. So among them a
//     Locker withdraws after each look, as they do, and lets them go first for a moment.
//     Goroutines of one process queue in memory; that local lock has no time-out of its own,
//     and a cycle of waiters is reported.
//   - Originals do not wait for Skew. So a claim of theirs that sorts behind ours by no more
//     than Skew may be that of a holder that read before ours was visible: a Locker waits for it.
//   - Ghosts. A failed write may still take effect later. Every column that was ever tried
//     belongs to the attempt until a deletion with a later timestamp is confirmed. On every way
//     out all of them are deleted in one mutation, again until it works or they have expired. Only
//     what was confirmed in time counts. Write timestamps never go back, whatever the clock does.
//   - Tombstones. A lock leaves one or two for gc_grace_seconds, and a read that meets too
//     many fails. Reads begin at the first timestamp that can still count. The cleaner, which
//     reads the whole row, is off by default. It removes claims older than Expire plus twice
//     Skew, and then leaves the row alone for 30 s.
//   - Settings. Each Locker writes its own, with the time until which they count, then reads
//     those of the others: of two Lockers that differ, the later one notices, and refuses to
//     lock. Settings are written again while anything is locked, and removed by Close.
//   - Visible skew. A claim from the future proves that two clocks are further apart than
//     Skew: nothing is locked there, and a holder stops. That catches gross errors, not all:
//     the simulation with clocks off by six times Skew finds two holders.
//
// # What it rests on
//
//   - Clocks of all hosts, JanusGraph's included, differ by no more than
//     [Options].Skew at any time. That is the one assumption that this package
//     cannot check in full: it refuses to lock when it meets a claim from the
//     future ([SkewError]), but does not notice every wrong clock.
//   - Reads show all writes that were confirmed: see [Columns]. Where a quorum of
//     nodes loses confirmed writes, as Cassandra does when they all lose power with
//     commitlog_sync: periodic, locks are lost with them.
//   - All processes that lock in a table have the same Unit, Wait and Expire. Lockers
//     compare theirs; JanusGraph does not publish its settings, so nothing can check them.
//
// # What no client can close
//
//   - Two holders, if clocks differ by more than Skew: the claim of a host whose clock is
//     behind sorts before that of a holder that has already read, and a host whose clock is
//     ahead finds claims expired that are still trusted.
//   - JanusGraph does not renew. A transaction of it that lasts longer than Expire
//     has lost its locks to the next one, and finds out only if it had not
//     checked them yet.
//   - JanusGraph takes all claims with its own rid for its own. Two instances with
//     one unique-instance-id hold the same lock.
//   - A holder that was frozen may, after its claim has expired, finish a write that it
//     had begun. [Lock.Err] or [Lock.Verify] right before an act makes that less likely.
//     There is no token and no fence here: the store has nothing to compare it with.
//   - JanusGraph does not wait in line. It gets its turn when it meets the row
//     without claims, as it does when there are only claims of its own kind.
//
// # Errors
//
// holdfast.ErrHeld, ErrLost, ErrReleased and ErrClosed mean the same as in that package.
// [SlowError], [SkewError], [SettingsError] and [MismatchError] say what was
// found. Any other error of the store is ambiguous: the claim may stand, and the
// Locker keeps trying to remove it until [Locker.Close]. A process that ends without Close,
// or is killed, leaves claims that are in the way of others until they expire.
package claims
