// Package lease is a client's session, without I/O: its heartbeats, the window in which it trusts
// itself, the failure detector that declares others dead, and the steps by which a lock is broken.
package lease
