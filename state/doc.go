// Package state keeps a key for something that changes, such as a repository: readers
// look a cached answer up by the key, and whoever changes the thing changes the key. The
// key is random, or a version, so the cache can be a dumb store of immutable blobs.
//
// There are two kinds with one type: a name in any store of Holdfast (On), and plain files
// that any program can follow (Dir). The protocol is that of the lease-based repository
// state of Gitaly, with short leases that are renewed, and readers that know of
// writers. docs/state.md shows both, docs/git.md a worked example.
//
// A writer that has lost its lease learns of it before readers take it for dead, and changes
// the key once more at its end. If it goes on writing all the same, and is killed before its
// end, no key can show that: pass the write's context on to everything that it does.
//
// # On files
//
// A writer makes state/pending/<random>. At its end it first gives state/key a new random
// value and then removes its file. A reader lists pending, removes what is too old after
// giving key a new value, and reads key. What the original leaves open is closed as
// follows; each has a test of that name here, and a mutant that the test finds.
//
//	K1   a writer outlives its lease, readers cache half of its work, and it dies:
//	     its lease is short and renewed; its context ends before readers may take it
//	     for dead; its End changes the key once more
//	K2   a fresh key beside data of a minute ago (NFS): a fill is kept only if the key
//	     after it is the same as before, and nobody was writing at either time
//	K3   an empty or torn key: written aside, to disk, renamed; what does not look like
//	     a key is no key, and is replaced
//	K4   answers cached while someone writes: while a file is pending nothing is taken
//	     from a cache or kept in it
//	K5   a reader's clock that is an hour ahead: age by the file server's clock, or by
//	     how long the reader itself has seen no change
//	K6   the key cannot be written at the end, or the file at the beginning: the pending
//	     file stays and End fails; the write is refused
//	K7   data on disk, its key not: End returns when the new key is on disk
//	K8   cleaning up removes the living: clear changes the key, and removes only the dead
//	K9   a backup brings an old key back: the key's inode and time of change belong to it
//	K10  two readers make the first key: by link, so that one wins, and both read it
//	K11  a pipe, a link, ten thousand files: regular files only, opened without following
//	     or waiting; at most 1024 at once
//
// The name of a pending file of this package gives its lease (30 s, renewed every third of
// that). On a local disk the file is locked in the kernel, so that a death on the same host is
// known at once. A file with another name, such as a script's, has an hour.
//
// # On a store
//
// The key is the version of the name's lock record, and a writer is a shared holder of
// that lock. Begin and End both write the record, so both change the key; of writers of one
// process that share a claim, the first Begin and the last End do. Dead writers are
// found as dead holders are. A record that was swept has no key: the next reader makes one.
//
// # The cache
//
// The cache reads the key after a request began, and takes a blob of that key only. It
// keeps a fill only if the key after the fill is the same as before. A process that waits for
// another's fill reads the key itself first, so it never gets an answer that is older than
// its question. One process fills, the others wait for a kernel lock, which its death
// frees. A blob is a file with a header that gives its size and checksum, written aside and
// renamed; a torn blob is a miss.
package state
