// Package core is the protocol without I/O: records, the rules by which a lock is
// granted, when a session trusts itself and when others declare it dead. It has no clock,
// context, store, goroutine or mutex: time is an argument, consequences are results. The
// shape is that of etcd's raft library.
package core
