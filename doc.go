// Package holdfast keeps locks, leases and leader elections in a database that you
// already run, without a server of its own. It is one protocol above a small
// interface, [driver.Store]; packages sqlite, postgres, mysql, cassandra, etcd, spanner,
// directory and memory beside this one implement it.
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
// A lock is trusted for the TTL, less a margin, counted from the moment before its last successful
// heartbeat was sent. Then its context ends, with no I/O in the way, and nobody else is granted the
// lock before that. Every grant of a name has a larger token than every earlier one, except among
// shared holders. Waiters are served first come, first served, across processes. docs/guarantees.md
// has all promises, P1 to P9, and what they rest on.
//
// # What is not
//
// A holder that was frozen can wake up after its lease has gone to another and
// finish a write it had begun. A call of [Lock.Err] before each act narrows that gap. Only
// a fence closes it: the Fence function of the store's package, in the transaction that writes;
// a [TokenGate], kept by a resource without transactions; or [Lock.Token], sent to a resource
// that compares tokens itself.
//
// # What an error means
//
// [ErrHeld] means no: others hold the lock or wait before us, and a [HeldError]
// names them. [ErrLost] means that the lock is lost: stop. [ErrReleased] and [ErrClosed] say
// that the lock was given back or the client closed. Any other error of a store is
// ambiguous: the client finds out what became of the call, or makes good for it until
// its session ends, and never reports it as won or lost.
//
// # Units
//
// The Go API uses time.Duration and time.Time; records have milliseconds for spans
// (ttl, grace) and microseconds since 1970 for moments. Tokens and versions are
// positive int64. A name is 1 to 1,024 bytes of UTF-8 without control characters.
//
// docs/go.md shows the parts of this package together. DESIGN.md describes the protocol:
// records, steps, races and what closes them.
package holdfast
