// Package holdfast keeps locks, leases and leader elections in a database that
// is there anyway: no server of its own. It is one protocol above a [driver.Store] of
// three methods; packages sqlite, postgres, mysql, cassandra, etcd, spanner,
// directory and memory beside this one are such stores.
//
//	client, err := holdfast.New(store, nil)
//	…
//	defer client.Close()
//	err = client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
//		return backup(ctx) // ctx ends when the lock is lost
//	})
//
// One [Client] per process is enough, and best.
//
// # What is promised
//
// A lock is trusted until the moment before its last successful heartbeat was sent,
// plus TTL, less a margin. Then its context ends, with no I/O in the way, and nobody else
// is granted the lock earlier. Every grant has a larger token than every earlier one of
// its name. Waiters are served first come, first served, across processes.
// docs/guarantees.md has all promises, P1 to P9, and what they rest on.
//
// # What is not
//
// A holder that was frozen can wake up after its lease has gone to another and
// finish a write it had begun. [Lock.Err] in front of an act narrows that, and
// only a fence closes it: Fence of the package of the store in the transaction that writes, or
// [Fence] kept by a resource without transactions, or [Lock.Token] handed to
// whatever compares it.
//
// # What an error means
//
// [ErrHeld] is no: others hold the lock or wait before us, and a [HeldError]
// names them. [ErrLost] is over: stop. [ErrReleased] and [ErrClosed] say that it
// was given back, or the client closed. Any other error of a store is ambiguous: the
// client finds out what became of the call, or makes good for it until its session
// ends, and never reports it as won or lost.
//
// # Units
//
// Go knows time.Duration and time.Time; records have milliseconds for spans
// (ttl, grace) and microseconds since 1970 for moments. Tokens and versions are
// positive int64. A name is 1 to 1,024 bytes of UTF-8 without control characters.
//
// docs/go.md shows the parts of this package together. DESIGN.md tells the protocol:
// records, steps, races and what closes them.
package holdfast
