// Package etcd keeps locks in an etcd cluster. Each record is one key, changed only by a
// transaction that compares its revision. docs/stores/etcd.md says how to set it up.
//
// # Records
//
// etcd has one revision for all keys, which every transaction raises. So a record's
// version follows from its ModRevision, and a write is a transaction
// If ModRevision = N Then Put Else Get. Up to a hundred of these, and a mebibyte, are
// nested in one. Whether a key holds nothing is asked as Value > "", with the branches
// exchanged, since no comparison of values holds for a key that is not there.
//
// An emptied key stays as a key with an empty value. A sweep deletes it. No floor is
// needed: whatever is written there again has a later revision. So the key of a session,
// whose id is used once, goes as soon as its record is emptied; a tombstone waits for a
// sweep.
//
// # The epoch
//
// Revisions begin at 1 again in a cluster that is made anew. So a version is the revision
// plus a base, the time in microseconds when the prefix was first used. The key epoch
// has it, and every transaction compares that key. In a new epoch a write that was to
// follow a version of the old one loses, and clients go on above. A cluster that was
// restored from a backup goes back and keeps its epoch: clients that have seen later
// revisions no longer trust it; others cannot know.
//
// # Prefixes that nest
//
// Where a/ has its names, a/n/ would have everything. A store that opens a prefix looks,
// once its own epoch is there, for that of a shorter prefix, and the first to use a prefix
// also for one among its keys. Rejected: keys in which no prefix can be among another's;
// all clusters would have to be emptied for it.
//
// # Notifications
//
// A write that wakes somebody also puts a key, w/WHO/n/NAME, in the same transaction. A waiter
// watches w/ with its own WHO, so a hundred clients do not hear of each other's locks. The key
// holds the new record of the name, so a client that is granted a lock need not read it: an event
// of a watch is as true as what a read shows. It is not believed if it is of another epoch, or
// older than what was seen: the cluster may have gone back. When a session ends by a write of its
// own, the keys that woke it go in the same transaction; a sweep removes the rest. A watch that was
// cut goes on where it was. If those revisions were compacted, it ends, and the next one begins
// with a notification that anything may have changed.
//
// # Members that do not answer
//
// A client asks its members one after the other. Each request says that the member has
// to know of a leader: a member that does not refuses at once, and another is asked. One
// member gets half of the time at most. A read is sent again. A write is ambiguous and
// left to the client, whose next look settles it.
//
// # Time
//
// Age is unknown: no clock is shared, and etcd does not say when a key was written. Stores
// note which revision was reached when, in memory and, when they sweep, in the key swept:
// what has not changed since a revision that is old enough is old enough to be swept.
//
// Rejected: etcd's leases as sessions. A lease begins anew with each leader of the
// cluster, so nobody but the server knows when it ends. Its holder could only get messages, and
// messages are late. With leases and sessions, two truths would have to agree.
//
// # The fence
//
// The fence is a comparison with the revision of the lock's record, made while the lock is
// held: nobody is granted the lock without changing it. It also changes when somebody
// comes to wait; then the fence is tried again. Where a lock is handed over in memory the
// record stays the same, so each holder that fences puts its token into a key of its own,
// f/NAME, in the same transaction.
package etcd
