// Package sqlstore is what the stores on SQL databases share: how keys become rows, what
// is done about losers, deadlocks and locked rows, how old a record is, the connections
// that a store has for itself, how a schema is made and compared with what is there, how a
// store is opened by its URL, and the fence's errors. What a database does in its own words
// is data: statements by name, Codes, Dangers, the schema; and a Dialect.
//
// # What is left in a database's package
//
//   - MySQL: the lanes, connections that are set up anew and never go back to the caller's pool; the
//     batch that tells winners by a mark in the row, since there is no RETURNING on MySQL; what
//     ids have rows, so that a take of a known name is an update; whose rights procedure and views run
//     with, which the server does not compare.
//   - PostgreSQL: LISTEN, with a proof that notifications arrive; bytes in any form that a role has
//     the server send, unless a statement is described first, which is a round trip more; connections
//     like those of the caller's pool beside it; where the tables are if no schema is named; what a
//     stranger may have put in the way.
//   - SQLite: SQLite's own connection, without database/sql, which saves a fifth of a short statement;
//     waiting for the file, which SQLite does badly; the files, which must not be replaced under a
//     store; a store that only looks; transactions by hand.
//
// # Rows
//
// There is one table of records: id (a byte for the space, then the name; binary),
// version, value, and a number for the fence. A row stays when its lock is free. A write
// is one statement in a transaction of its own; several writes are one multi-row
// statement in the order of ids. The version is max(old + 1, the server's clock),
// computed under the row lock. No statement reads first and writes then, so the
// isolation level of the caller's connections does not matter.
//
// The statements of a database are in its statements.sql, whole and by name (see Texts).
// Those that read have the same arguments and columns everywhere, see Reads. A Dialect has
// three methods that write: arrays against lists of values and RETURNING against the last
// inserted id are not texts. SQLite has a column for the space, and a batch is a transaction
// of single statements there.
//
// # Taking a free name
//
// It is one statement, whether the name was seen before or not: an upsert that wins if
// the row holds nothing. On MySQL it is an update where this client remembers that there
// is a row, which is quicker there. A loser reads the record, or learns it from the same
// statement if it was to follow a version. Rejected: to read first. Rejected: rows that
// come and go, which on MariaDB are a deadlock for every other waiter.
//
// # Sweeping
//
// A floor in the meta table is raised to the versions of the rows that go. A statement
// may have taken its snapshot before the sweep and insert after it. On PostgreSQL a
// trigger, which runs only for rows that are really new, looks at the floor once the row
// is in, and the statement is tried again above it. On MySQL the insert holds a shared
// lock on the floor.
//
// # Rows that stay locked
//
// A row that somebody keeps locked, such as by a fenced transaction, is waited for a
// second in all, on PostgreSQL in a batch a quarter of one. Then the write has lost, so one
// name holds up neither the others nor the client. Deadlocks and failures to serialize are
// retried ten times at most.
//
// # Ages
//
// The age of a record is the server's clock less the version. Each client compares that
// clock with its own steady one: if the server's clock has stepped, what was written
// before has no age.
package sqlstore
