// Package spanner opens stores in a Spanner database for the command.
package spanner

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/driver"
	hfspanner "github.com/holdfast-lock/holdfast/spanner"
)

// Engine is that of Spanner.
var Engine = engine.Engine{
	Open: open,
	Schema: func(at engine.Place) (string, error) {
		return hfspanner.Schema(options(at))
	},
	Migrate: func(ctx context.Context, at engine.Place) error {
		c, err := connect(ctx, at)
		if err != nil {
			return err
		}
		defer c.Close()
		admin, err := database.NewDatabaseAdminClient(ctx)
		if err != nil {
			return fault(err)
		}
		defer admin.Close()
		return fault(hfspanner.Migrate(ctx, admin, c, options(at)))
	},
	Verify: func(ctx context.Context, at engine.Place) error {
		_, close, err := open(ctx, at)
		if err == nil {
			err = close()
		}
		return err
	},
}

func options(at engine.Place) *hfspanner.Options { return &hfspanner.Options{Prefix: at.Prefix} }

func open(ctx context.Context, at engine.Place) (driver.Store, func() error, error) {
	c, err := connect(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := hfspanner.New(ctx, c, options(at))
	if err != nil {
		c.Close()
		return nil, nil, fault(err)
	}
	return s, func() error { c.Close(); return nil }, nil
}

// patience is how long a server may take to let us in.
const patience = 10 * time.Second

func connect(ctx context.Context, at engine.Place) (*spanner.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if host := os.Getenv("SPANNER_EMULATOR_HOST"); host != "" { // the client would try for long
		conn, err := (&net.Dialer{Timeout: patience / 2}).DialContext(ctx, "tcp", host)
		if err != nil {
			return nil, &engine.Error{Err: err}
		}
		conn.Close()
	}
	c, err := spanner.NewClientWithConfig(ctx, at.Database, spanner.ClientConfig{
		DisableNativeMetrics: true,                       // a command is over before they are sent
		Logger:               log.New(io.Discard, "", 0), // what goes wrong is told by errors
	}, option.WithGRPCConnectionPool(1)) // few calls are under way at once
	return c, fault(err)
}

// fault tells an error of the way to the server from one of the server, and leaves out
// what only Google can read.
func fault(err error) error {
	switch spanner.ErrCode(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return &engine.Error{Err: errors.New(spanner.ErrDesc(err))}
	case codes.NotFound, codes.PermissionDenied, codes.Unauthenticated:
		return &engine.Error{Err: errors.New(spanner.ErrDesc(err)), Reached: true}
	}
	return err
}
