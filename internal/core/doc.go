// Package core decides what a client does with a name, without I/O: who waits for it in this
// process, the next step in the store, and when it is polled. It has no clock, context, store,
// goroutine or mutex: time is an argument, consequences are results. The shape is that of etcd's
// raft library. Package record has what is stored, and package lease the sessions.
package core
