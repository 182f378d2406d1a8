// Package engine is between the command and clients of databases that take more time
// and memory to start than all the rest of it. Each is linked into a program of its
// own, which holdfast becomes when a URL asks for it: whoever has other stores does not
// pay for it.
package engine

import (
	"context"
	"crypto/tls"

	"github.com/holdfast-lock/holdfast"
)

// Open opens a store.
type Open func(ctx context.Context, at Cluster) (s holdfast.Store, close func() error, err error)

// A Cluster is where.
type Cluster struct {
	Hosts          []string // each with its port
	User, Password string
	TLS            *tls.Config // nil: in the clear
	Prefix         string      // of the keys; "": the default
}
