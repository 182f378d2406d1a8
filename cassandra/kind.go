package cassandra

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/reach"
	"github.com/holdfast-lock/holdfast/internal/tlsurl"
)

// Kind is a Cassandra store by its URL:
// cassandra://app@db1.example,db2.example/shop?dc=NAME&prefix=NAME&tls=verify&ca=FILE&cert=FILE&key=FILE.
// User and password may be in CASSANDRA_USER, CASSANDRA_PASSWORD and CASSANDRA_PASSWORD_FILE.
var Kind = &driver.Kind{
	Name: "cassandra", Schemes: []string{"cassandra"}, Form: "cassandra://…", Example: "cassandra://app@db1.example,db2.example/shop",
	Server: true, Settings: []string{"allow", "prefix"}, Secrets: []string{"CASSANDRA_PASSWORD"}, SendsPassword: "CASSANDRA",
	Open: func(ctx context.Context, at *driver.Location) (driver.Store, func() error, error) {
		var s *Store
		session, err := withSession(ctx, at, func(ctx context.Context, session *gocql.Session, opts *Options) (err error) {
			s, err = New(ctx, session, opts)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		return s, leave(session), nil
	},
	Schema:  func(at *driver.Location) (string, error) { return Schema(optionsOf(at)) },
	Migrate: func(ctx context.Context, at *driver.Location) error { return onSession(ctx, at, Migrate) },
	Verify:  func(ctx context.Context, at *driver.Location) error { return onSession(ctx, at, Verify) },
	Reach: func(err error) driver.Reach {
		var server gocql.RequestError
		if errors.As(err, &server) {
			if server.Code() == gocql.ErrCodeUnauthorized {
				return driver.NotLetIn
			}
			return driver.Answered
		}
		for _, is := range []error{gocql.ErrNoConnections, gocql.ErrTimeoutNoResponse, gocql.ErrConnectionClosed} {
			if errors.Is(err, is) {
				return driver.Unreachable
			}
		}
		return driver.Unknown
	},
}

func optionsOf(at *driver.Location) *Options {
	keyspace, _ := url.PathUnescape(strings.Trim(at.Database, "/"))
	settings, _ := url.ParseQuery(at.Query)
	return &Options{Keyspace: keyspace, Prefix: at.Prefix, LocalDC: settings.Get("dc"), Allow: at.Allow}
}

// configOf translates the URL for the driver, which knows no URLs.
func configOf(at *driver.Location) (*gocql.ClusterConfig, error) {
	hosts, err := at.Hosts("9042")
	if err != nil {
		return nil, err
	}
	if strings.Trim(at.Database, "/") == "" {
		return nil, driver.BadURL("%s names no keyspace: write it as in %s", at, at.Kind.Example)
	}
	_, tls, err := tlsurl.Settings(at, []string{"dc"}, at.Kind.Settings)
	if err != nil {
		return nil, err
	}
	c := gocql.NewCluster(hosts...)
	c.ConnectTimeout = reach.Patience / 2 // of each host; they are tried in turn
	c.Timeout = reach.Patience            // the store has its own, which are shorter
	c.NumConns = 1
	c.WriteCoalesceWaitTime = 0                    // few statements are under way at once
	c.ReconnectInterval = 5 * time.Second          // a command may run for hours
	c.MaxWaitSchemaAgreement = 5 * time.Second     // on all keyspaces; Migrate waits for its table
	c.Metadata.CacheMode = gocql.Disabled          // it would read all tables when it connects
	c.Logger = gocql.NewLogger(gocql.LogLevelNone) // errors report what goes wrong
	if tls != nil {
		c.SslOpts = &gocql.SslOptions{Config: tls}
	}
	user, password, err := at.Login()
	if err != nil {
		return nil, err
	}
	if user != "" {
		c.Authenticator = gocql.PasswordAuthenticator{Username: user, Password: password}
	}
	return c, nil
}

// connectTo makes a session before ctx ends: the driver itself does not limit the time.
func connectTo(ctx context.Context, at *driver.Location) (*gocql.Session, error) {
	config, err := configOf(at)
	if err != nil {
		return nil, err
	}
	type result struct {
		session *gocql.Session
		err     error
	}
	made := make(chan result, 1)
	go func() {
		s, err := config.CreateSession()
		made <- result{s, err}
	}()
	select {
	case r := <-made:
		if r.err != nil {
			return nil, reach.WhyNot(ctx, config.Hosts, r.err)
		}
		return r.session, nil
	case <-ctx.Done():
		go func() {
			if r := <-made; r.err == nil {
				r.session.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// withSession makes a session for do, and closes it if do fails.
func withSession(ctx context.Context, at *driver.Location, do func(context.Context, *gocql.Session, *Options) error) (session *gocql.Session, err error) {
	err = reach.InTime(ctx, 3*reach.Patience, func(ctx context.Context) error {
		session, err = connectTo(ctx, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err = do(ctx, session, optionsOf(at)); err != nil {
		leave(session)()
		return nil, err
	}
	return session, nil
}

func onSession(ctx context.Context, at *driver.Location, do func(context.Context, *gocql.Session, *Options) error) error {
	session, err := withSession(ctx, at, do)
	if err == nil {
		err = leave(session)()
	}
	return err
}

func leave(session *gocql.Session) func() error {
	return reach.Parting(func() error { session.Close(); return nil })
}
