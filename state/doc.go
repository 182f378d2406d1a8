// Package state keeps a key for something that changes, such as a repository: readers
// look a cached answer up by the key, and whoever changes the thing changes the key. The
// key is random, or a version, so the cache can be a dumb store of immutable blobs.
//
// There are two kinds with one type: a name in any store of Holdfast (On), and plain files
// that any program can follow (Dir). The protocol is that of the lease-based repository
// state of Gitaly, with leases that are short and renewed and readers that know of
// writers. docs/state.md shows both, docs/git.md a worked example.
//
// A writer whose lease was lost learns it before readers take it for dead, and changes the
// key once more at its end. If it goes on to write nevertheless, and is killed before its
// end, no key can tell that: pass the context of the write on to all that it does.
//
// # On files
//
// A writer makes state/pending/<random>. At its end it first gives state/key a new random
// value and then removes its file. A reader lists pending, removes what is too old after
// giving key a new value, and reads key. What the original leaves open is closed as
// follows; each has a test of that name here, and a mutant that it finds.
//
//	K1   a writer outlives its lease, readers cache half of its work, and it dies:
//	     its lease is short and renewed; its context ends before readers may take it
//	     for dead; its End changes the key once more
//	K2   a fresh key beside data of a minute ago (NFS): a fill is kept only if the key
//	     after it is the same as before, and nobody wrote in either
//	K3   an empty or torn key: written aside, to disk, renamed; what does not look like
//	     a key is none, and is replaced
//	K4   answers cached while someone writes: while a file is pending nothing is taken
//	     from a cache or kept in it
//	K5   a reader's clock that is an hour ahead: age by the file server's clock, or by
//	     standing still on one's own
//	K6   the key cannot be written at the end, or the file at the beginning: the pending
//	     file stays and End fails; the write is refused
//	K7   data on disk, its key not: End returns when the new key is on disk
//	K8   cleaning up removes the living: clear changes the key, and removes the dead only
//	K9   a backup brings an old key back: the key's inode and time of change belong to it
//	K10  two readers make the first key: by link, so that one wins, and both read it
//	K11  a pipe, a link, ten thousand files: regular files only, opened without following
//	     or waiting; so many
//
// The name of a pending file of this package tells its lease (30 s, renewed each third). On a local
// disk the file holds a kernel lock, so that a death on the same host is known at once. One with
// another name, of a script, has an hour.
//
// # On a store
//
// The key is the version of the name's lock record, and a writer is a shared holder of
// that lock. Begin and End both write the record, so both change the key. Dead writers are
// found as dead holders are. A record that was swept has no key: the next reader makes one.
//
// # The cache
//
// The cache reads the key after a request began, and takes a blob of that key only. It
// keeps a fill only if the key after it is still the one before. A process that waits for
// another's fill reads the key itself first, so it never gets an answer that is older than
// its question. One process fills, the others wait for a kernel lock, which its death
// frees. A blob is a file with a header that tells its size and sum, written aside and
// renamed; a torn one is a miss.
package state
