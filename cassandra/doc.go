// Package cassandra keeps locks in an Apache Cassandra cluster, by lightweight
// transactions: the compare-and-swap of one row. Each name, session, setting and audit is
// a row that only they change; nothing is owned by the grace of a TTL.
// docs/stores/cassandra.md says how to prepare a keyspace and what it costs.
//
// # Rows
//
// A row has version, value, attempt (16 random bytes of the write that made it so) and
// follows (the version that this write followed). The condition of a write names the
// version that it follows, so a write is harmless to send again and done at most once. A
// timeout of type CAS, an unknown outcome and a lost connection are all ambiguous. The
// statement is sent again. A loser learns from attempt that it was its own earlier try
// that won, and from follows that somebody else followed the same version. Only if
// somebody has followed its own write since is the outcome unknown, and reported so. The
// conditions beyond the first never fail when the first holds: Cassandra shows a loser
// just the columns that conditions name, which spares a second read.
//
// Taking a free name that was used before is one transaction, whatever its version, and
// releasing it is another. A store never reads first: a SERIAL read is a round of
// consensus too, and made taking 1.3 to 1.9 times as slow.
//
// Taking a name without a row is two transactions and a read if the store expects that there
// is no row, else three. It remembers names that have one, as far as it has room. For any
// other name it expects the same as for the last such name: a program either makes up new
// names, or comes back to old ones. A row that is there after all costs one more transaction.
//
// # The floor
//
// An emptied key keeps its row: a delete would leave a tombstone on a hot name and forget
// its version. Only a sweep deletes, and it first raises the floor, a row of its own, to
// the highest version that it deletes. A key without a row is written in three steps: insert a
// placeholder (a negative version that no other has), read the floor, fill the placeholder
// above both. Whichever row a sweep removed, the floor that is read after a placeholder was
// inserted in its stead is above it. A fill that comes late finds another placeholder, or
// none. If the floor is gone (the table was truncated, or restored without it) no store
// opens, and no key gets a new row.
//
// # One coordinator for each row
//
// Writes of one row by several coordinators interrupt each other's ballots: naive loops
// gave 18 wins a second with 2 clients and 8 with 32, with unknown outcomes. So a Store
// asks, for a row, the node that rendezvous hashing of the row and the node's id puts
// first, which is the same in all processes as long as it is up; there its statements
// queue. If that node does not answer, the next one is asked, and the first is left alone
// for a few seconds. The driver's own retries, speculation, consistency and choice of
// host are not used. The number of statements under way at once is limited; heartbeats
// have a lane of their own.
//
// # Stale reads
//
// A stale read is at QUORUM. It shows every write whose outcome was reported to a client. It
// may miss a write whose coordinator failed before it could report the outcome. Waiters poll
// with it and believe a grant that it shows: that was decided, and it can be taken back only
// through the holder's session, whose window has to be open at that moment as ever. So from a
// release to the next holder there is one transaction. That a wanted claim is no longer there,
// and everything about sessions, is concluded only from a fresh Load, which reads at SERIAL.
//
// A writer whose record is some milliseconds old, and which has waited or lost before, does a
// stale read first: it costs a fifth of a transaction that loses. So does a client that has no
// session yet: a blind write on a crowded name loses and interrupts the rounds of others.
// (Before it did, 50 processes, half of which came anew for each hold, starved each other for
// good.) Contention for a row does not count as silence: a waiter goes on waiting; a request
// that does not want to wait gives up after 5 s.
//
// # Time, data centres, the schema
//
// Age is unknown, since no two nodes share a clock. Sweeping goes by the time at which a
// coordinator wrote, which only decides when something that holds nothing is removed.
//
// LOCAL_SERIAL agrees within one data centre. Cassandra does not notice a second data
// centre that does the same, nor clients that agree at SERIAL. So it has to be asked for
// by name, with the data centre, and the doctor warns each time. Rejected: to choose it
// unasked where there is one data centre, for a second may be added while programs run.
//
// The schema is created at one node. Two nodes that create a table at the same time make
// two, with different ids, and which of them survives may change at a restart. So the
// statement goes once, without a retry, to the node that hashing puts first for the
// table's name; then Migrate waits until all nodes that are up know one id. What the
// driver waits for, agreement on the schemas of all keyspaces, was seen never to come.
// Rejected: an id of our own in the statement (WITH id), with which a table that is
// dropped and made again has the id of the old one, so that the commit log or a snapshot
// could bring back its rows.
//
// # The fence
//
// Fence takes a whole statement and appends nothing. It refuses one that does not begin by
// setting the fence and end with the condition, and puts the token in both places. So
// nobody can forget either, and what is read in the program is what runs. Rejected: to
// build the statement from table, columns and values (a second language); to look only at
// [applied] (an update without a condition has been done by then). Shared locks are
// refused: the token of one of several holders is not above those of the others, and two
// numbers in a row would be a second convention for a rare case.
//
// # Rejected: a Store on claims
//
// One could lock "follow version N" by claims (package claims), and let the holder of that
// lock write N+1. A lock ends, but a write under way does not: if it takes longer than the
// lock lasts, two writes have followed N and both won (TestLockIsNoCompareAndSwap).
// To close that, the write itself has to be refused when it comes late, which takes a
// compare-and-swap.
package cassandra
