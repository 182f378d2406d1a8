// Package sqlstore is what the stores on SQL databases share: how keys become rows, what
// is done about losers, deadlocks and locked rows, how old a record is, the connections
// that a store has for itself, how a schema is made and compared with what is there, how a
// store is opened by its URL, and the fence's errors. What differs between databases is data
// (statements by name, Codes, Dangers, the schema) and a Dialect.
//
// # What is left in a database's package
//
//   - MySQL: the lanes, connections that are set up anew and never go back to the caller's pool; the
//     batch that tells winners by a mark in the row, since there is no RETURNING on MySQL; which
//     ids have rows, so that a take of a known name is an update; whose rights procedure and views
//     run with, which the server does not compare.
//   - PostgreSQL: LISTEN, with a proof that notifications arrive; bytes in the form that a role's
//     settings give them, unless a statement is described first, which costs a round trip;
//     connections like those of the caller's pool beside it; where the tables are if no schema is
//     named; what a stranger may have put in the way.
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
// computed under the row lock. No statement reads first and writes later, so the
// isolation level of the caller's connections does not matter.
//
// The statements of a database are in its statements.sql, whole and by name (see Texts).
// Those that read have the same arguments and columns everywhere, see Reads. The three methods
// of a Dialect that write differ by more than their texts: arrays or lists of values, RETURNING or
// the last inserted id. SQLite has a column for the space, and a batch is a transaction of single
// statements there.
//
// # Taking a free name
//
// It is one statement, whether the name was seen before or not: an upsert that wins if
// the row holds nothing. On MySQL it is an update where this client remembers that there
// is a row, which is quicker there. A loser reads the record, or learns it from the same
// statement if its Old was a version. Rejected: to read first. Rejected: rows that
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
// A write waits a second in all for a row that something keeps locked, such as a fenced
// transaction; in a batch on PostgreSQL a quarter of that. Then the write has lost, so one
// name holds up neither the others nor the client. After deadlocks and failures to
// serialize, a statement is tried ten times at most.
//
// # Ages
//
// The age of a record is the server's clock less the version. Each client compares that
// clock with its own steady one: if the server's clock has stepped, what was written
// before has no age.
package sqlstore
