package spanner

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/reach"
)

// Kind is a Spanner store by its URL: spanner://projects/P/instances/I/databases/D?prefix=NAME.
// Credentials are found where all of Google's clients look: GOOGLE_APPLICATION_CREDENTIALS, or
// those of the machine or of gcloud.
var Kind = &driver.Kind{
	Name: "spanner", Schemes: []string{"spanner"}, Form: "spanner://…", Example: "spanner://projects/p/instances/i/databases/shop",
	Server: true, Settings: []string{"prefix"},
	Open: func(ctx context.Context, at *driver.Location) (driver.Store, func() error, error) {
		c, err := clientOf(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, reach.Patience)
		defer cancel()
		s, err := New(ctx, c, &Options{Prefix: at.Prefix})
		if err != nil {
			c.Close()
			return nil, nil, asFault(err)
		}
		return s, reach.Parting(func() error { c.Close(); return nil }), nil
	},
	Schema: func(at *driver.Location) (string, error) {
		if _, err := databaseOf(at); err != nil {
			return "", err
		}
		return Schema(&Options{Prefix: at.Prefix})
	},
	Migrate: func(ctx context.Context, at *driver.Location) error {
		c, err := clientOf(ctx, at)
		if err != nil {
			return err
		}
		defer c.Close()
		admin, err := database.NewDatabaseAdminClient(ctx)
		if err != nil {
			return asFault(err)
		}
		defer admin.Close()
		return asFault(Migrate(ctx, admin, c, &Options{Prefix: at.Prefix}))
	},
	Verify: func(ctx context.Context, at *driver.Location) error {
		c, err := clientOf(ctx, at)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(ctx, reach.Patience)
		defer cancel()
		return asFault(Verify(ctx, c, &Options{Prefix: at.Prefix}))
	},
	Reach: func(err error) driver.Reach {
		var f *fault
		switch {
		case !errors.As(err, &f):
			return driver.Unknown
		case f.reached:
			return driver.NotLetIn
		}
		return driver.Unreachable
	},
}

// databaseOf is the database of a URL.
func databaseOf(at *driver.Location) (string, error) {
	if at.HasUser {
		return "", driver.BadURL("spanner: the URL has no user: GOOGLE_APPLICATION_CREDENTIALS names a file, or: gcloud auth application-default login")
	}
	name, _ := url.PathUnescape(at.Host + strings.TrimSuffix(at.Database, "/"))
	p := strings.Split(name, "/")
	if len(p) != 6 || p[0] != "projects" || p[2] != "instances" || p[4] != "databases" || slices.Contains(p, "") {
		return "", driver.BadURL("spanner: a database is written as in %s", at.Kind.Example)
	}
	if at.Query != "" {
		key, _, _ := strings.Cut(at.Query, "=")
		return "", at.UnknownSetting(key, "prefix is the only one")
	}
	return name, nil
}

func clientOf(ctx context.Context, at *driver.Location) (*spanner.Client, error) {
	name, err := databaseOf(at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reach.Patience)
	defer cancel()
	if host := os.Getenv("SPANNER_EMULATOR_HOST"); host != "" { // the client would keep trying
		conn, err := (&net.Dialer{Timeout: reach.Patience / 2}).DialContext(ctx, "tcp", host)
		if err != nil {
			return nil, &fault{err: err}
		}
		conn.Close()
	}
	c, err := spanner.NewClientWithConfig(ctx, name, spanner.ClientConfig{
		DisableNativeMetrics: true,                       // a command is over before they are sent
		Logger:               log.New(io.Discard, "", 0), // errors report what goes wrong
	}, option.WithGRPCConnectionPool(1)) // few calls are under way at once
	return c, asFault(err)
}

// A fault is an error of reaching the server, or of access to it.
type fault struct {
	err     error
	reached bool
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// asFault wraps errors of the network and of access control as a fault, and drops the parts of
// their text that only Google can use.
func asFault(err error) error {
	switch spanner.ErrCode(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return &fault{err: errors.New(spanner.ErrDesc(err))}
	case codes.NotFound, codes.PermissionDenied, codes.Unauthenticated:
		return &fault{err: errors.New(spanner.ErrDesc(err)), reached: true}
	}
	return err
}
