// Package directory is a store in a plain directory, which several hosts may share: over
// NFS, a cluster's file system, or on one disk. It needs no server and no locks of the
// file system, and a person can read its files with cat.
//
// There is no fence: nothing that is done in a directory is a transaction. Pass the token
// along, and make the target of your writes refuse an older one (holdfast.TokenGate).
//
// # What can be relied on
//
// A file server decides one rename or create at a time, and a process that opens a file
// gets its present content. Nothing else is relied on: listings and attributes may be stale
// (on NFS by a minute), an operation that failed may have been done, or be done later, since
// only its answer was lost, and what can be seen may not be on disk.
//
//	names/<sha-256 of the name>/version-1795226403001234-<nonce>   the marker: an empty file
//	names/record-<nonce>                                           a line of JSON with the name, then the value
//
// # To follow a version is to rename its marker
//
// A key has exactly one marker in its whole life, made with the key's directory. Each
// write renames it, to a larger version and a nonce of the writer. No name is ever used
// again, so of all renames of one name one wins, for ever, however late others come, and
// nothing has to be kept to make the late ones fail. (The marker is renamed even before
// its directory is in place, since a server whose first answer was lost may carry out a
// create twice.) The exception is a server that carries out again, late and in order, the
// making of the marker and every rename since: then a second marker trails behind the
// first, and readers go by the newest.
//
//  1. Read: list the key's directory, open the record that the marker names. If it is
//     gone, the listing was stale: start again.
//  2. Write the new record, under its nonce, and sync it to disk.
//  3. Rename the marker from the version that was read.
//  4. Sync the key's directory to disk.
//  5. Remove the previous record.
//  6. Report.
//
// A reader may trust a stale listing because the old record goes (5) before anybody learns of the
// new one (6): a reader that can still open the record of N knows that N+1 had not been reported to
// anyone. (Where other hosts have the files the record is emptied first: an NFS client that has a
// file open renames it instead of removing it, and others go on finding it.)
//
// A reader may see a version whose writer died between 3 and 5. Before it reports that
// version it does 4 and 5 itself. So what was reported is never undone by a crash of the
// server, and no later reader sees something older.
//
// A writer finds out by reading what became of a rename that failed. If its marker is there,
// or that of a follower, it won. If its record is there and the marker has another name, it
// lost, for ever. Otherwise the write is ambiguous.
//
// # New and swept keys
//
// A key's first write makes its directory in tmp, with version 0 in it, and renames that
// into place, which fails where there is one. A sweep raises a floor (a key like others),
// renames the marker to swept-, and removes the record, the marker and the directory; a
// process that meets it halfway finishes it. A new directory of the same name has version
// 0, and the writer of its first real version reads the floor after seeing that. A late
// write of a former life would rename a marker that is gone.
//
// # Time, disks, notifications
//
//   - A record's age is the time of a file that was touched just now, less that of the
//     record: both by the clock of whoever serves the files. A file's time is never
//     compared with this host's clock. Only local disks and NFS are known to have one such
//     clock; elsewhere records have no age.
//   - On a disk of this host listings are fresh and names get to disk in the order in
//     which they were made. A few waits for the disk are not needed there, and waiters are
//     notified by inotify. Elsewhere they poll, and where something is not found the
//     directory is changed and looked at again, which makes an NFS client ask its server.
//   - A server may forget what it has answered only if the client notices (its handles
//     are stale), or what fsync has not confirmed before it was seen. An NFS server that
//     exports async forgets renames that it has answered.
//   - A call that hangs, on a mount whose server is gone, is left alone when its context
//     ends. The number that may hang is limited, and heartbeats have places of their own.
//
// Rejected: versions as files made by link(2), where EEXIST means lost. The removal of an
// old file lets a late link of that name succeed, and no check that comes after it is both
// cheap and safe. Rejected: one file per key, replaced by rename; a late rename brings an
// old version back. Rejected: a lock file, or the locks of NFS, which are a lease without a
// fence underneath ours.
package directory
