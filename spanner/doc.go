// Package spanner keeps locks in a Cloud Spanner database. Each record is one row,
// changed only by read-write transactions that look at its version, which is the commit
// timestamp. docs/stores/spanner.md says how to set it up, and what has never been run.
//
// # Records
//
// A transaction that reads a row to write it asks for its lock at once: of two that had
// only read it one would have to begin again. Up to 200 rows are written in one
// transaction, far below Spanner's limits, since each holds its rows until it ends;
// heartbeats have their own. Two transactions that write the same row have different
// commit timestamps, in the order of their commits, even if the row was deleted in
// between. So no floor is needed, and a sweep is one partitioned statement. Different
// rows may have equal versions, which nothing compares. Tokens are Holdfast's own
// numbers: at least the version, never below one that was given.
//
// # Ages
//
// An age is the timestamp of the strong read less the commit timestamp, both of TrueTime.
// The read's may be earlier than the present, never later than what it has seen, so no
// heartbeat seems older than it is.
//
// # Where rows are
//
// The key is (shard, space, name), with shard a hash of the rest modulo 16. So names that
// are made one after the other, and session ids, are spread over the table. A list reads
// the 16 ranges in order and merges. Rejected: the whole hash in front, which spreads no better
// and would make a list read everything; names first, which makes the end of the table hot.
//
// # The fence
//
// The fence reads the lock's row in the user's transaction, which keeps others from
// changing it until the commit. Where a lock is handed over in memory the row stays the
// same, so the column fenced has the highest token that passed.
//
// # Emulators
//
// An emulator runs one transaction at a time in each database. Where Spanner makes others
// wait or run again, an emulator answers that they are not found, or have failed. Only
// where SPANNER_EMULATOR_HOST is set does the store try again after such answers, and run
// its transactions one after the other. An emulator that was killed is empty; tokens go
// on growing, since they follow the clock.
//
// Rejected: change streams for notifications, which are read by queries that stay open,
// one for each of their partitions, and are meant for pipelines. Rejected: INSERT first
// and a read only if it fails; an emptied row stays behind, so most names have one.
package spanner
