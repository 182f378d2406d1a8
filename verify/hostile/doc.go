// Package hostile is a file server that lies, and hosts that mount it: what a
// store in files has to live with when several hosts share a directory. The
// server is in memory of the process that tests; each host is a mount (FUSE) with
// caches of its own. All that plain system calls can be told by an NFS client can
// happen here when a test asks for it:
//
//   - names, absent names, attributes and listings are old, each up to a time; a
//     host's own changes it sees at once, and open revalidates what is opened
//   - handles of files that another host has removed are stale (ESTALE), and files
//     removed while this host has them open leave .nfs… behind until they are closed
//   - replies are lost: what failed (EIO) has been done, is done seconds later, is
//     done twice, or is told as a retransmission is (ENOENT of a rename, EEXIST of a
//     link, create or mkdir, ENOENT of an unlink or rmdir)
//   - fsync fails, and what it was for is not durable though the next one succeeds
//   - the disk is full, operations are slow, a host is cut off (calls hang or fail)
//   - the server crashes and forgets what was not synced: data is gone, torn or
//     zeros; names are gone, in order or in any order, and then handles are stale,
//     or names outlive it and so do handles of directories
//   - the server's clock is not the hosts'
//
// FUSE is not NFS. The kernel's caches are FUSE's: they follow rules like those of
// NFS (close-to-open, timeouts of names and attributes) and not the same code; locks
// (flock, fcntl) are each mount's own; there is no delegation, no lease and no
// reclaim after a crash. A server that forgets names in a crash and lets hosts go on
// with their handles, as one that exports NFS "async" does, is beyond what a store
// in files can stand, and is not made here. That a program holds proves that it
// does not lean on what the list above takes away; it is no test of an NFS client
// or server.
package hostile
