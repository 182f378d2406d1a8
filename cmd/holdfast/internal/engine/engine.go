// Package engine is between the command and clients of databases that take more time
// and memory to start than all the rest of it. Each is linked into a program of its
// own, which holdfast becomes (exec, same arguments) as soon as it has read the URL. So
// users of other stores do not pay for it: the client for etcd adds 7 MB and about half
// again to what every start costs, that for Spanner more. That program's guard is holdfast
// again if it is beside it; the two say which version of their protocol they speak.
//
// Rejected: a process for the store beside the command: one more that can be stopped or
// killed alone.
package engine

import (
	"context"
	"crypto/tls"

	"github.com/holdfast-lock/holdfast/driver"
)

// An Engine is a kind of store.
type Engine struct {
	// Open opens a store.
	Open func(ctx context.Context, at Place) (s driver.Store, close func() error, err error)

	// Of a store that has tables: the statements that make them, and what makes them,
	// or compares them with what this program needs.
	Schema          func(at Place) (string, error)
	Migrate, Verify func(ctx context.Context, at Place) error
}

// A Place is where a store is, as far as its engine has such things.
type Place struct {
	Hosts          []string // each with its port
	User, Password string
	TLS            *tls.Config // nil: in the clear
	Database       string
	Prefix         string // of keys or tables; "": the default
}

// An Error of an engine tells whether a server was reached.
type Error struct {
	Err     error
	Reached bool
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }
