package command

import (
	"context"
	"crypto/tls"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/cassandra"
)

var cassandraKind = kind{
	example:  "cassandra://app@db1.example,db2.example/shop",
	server:   true,
	settings: []string{"allow", "prefix"},
	open: func(ctx context.Context, t target) (handle, error) {
		var s *cassandra.Store
		session, err := t.withCassandra(ctx, func(ctx context.Context, session *gocql.Session, opts *cassandra.Options) (err error) {
			s, err = cassandra.New(ctx, session, opts)
			return err
		})
		if err != nil {
			return handle{}, err
		}
		return handle{s, leaveCassandra(session)}, nil
	},
	schemaText: func(t target) (string, error) { return cassandra.Schema(t.cassandraOptions()) },
	migrate: func(ctx context.Context, t target) error {
		return t.onCassandra(ctx, cassandra.Migrate)
	},
	verify: func(ctx context.Context, t target) error {
		return t.onCassandra(ctx, cassandra.Verify)
	},
}

func (t target) cassandraOptions() *cassandra.Options {
	keyspace, _ := url.PathUnescape(strings.Trim(t.address.path, "/"))
	settings, _ := url.ParseQuery(t.address.query)
	return &cassandra.Options{Keyspace: keyspace, Prefix: t.prefix, LocalDC: settings.Get("dc"), Allow: t.allow}
}

// cassandraConfig is the URL in the driver's words, which knows no URLs.
func (t target) cassandraConfig() (*gocql.ClusterConfig, error) {
	a := t.address
	hosts, err := t.hosts("9042")
	if err != nil {
		return nil, err
	}
	if strings.Trim(a.path, "/") == "" {
		return nil, usage("%s names no keyspace: write it as in %s", t, t.example)
	}
	settings, err := url.ParseQuery(a.query)
	if err != nil {
		return nil, usage("the settings of %s cannot be read", t)
	}
	for key := range settings {
		switch {
		case secretKey().MatchString(key):
			return nil, usage("cassandra: the password stands behind the user, or in CASSANDRA_PASSWORD, not in %s=", quote(key))
		case !slices.Contains([]string{"dc", "tls", "ca", "cert", "key"}, key):
			return nil, usage("cassandra: unknown setting %s in --store: there are dc, tls, ca, cert, key, prefix and allow", quote(key))
		}
	}
	c := gocql.NewCluster(hosts...)
	c.ConnectTimeout = patience / 2 // of each host; they are tried in turn
	c.Timeout = patience            // the store has its own, which are shorter
	c.NumConns = 1
	c.WriteCoalesceWaitTime = 0                    // few statements are under way at once
	c.ReconnectInterval = 5 * time.Second          // a command may run for long
	c.MaxWaitSchemaAgreement = 5 * time.Second     // on all keyspaces; Migrate waits for its table
	c.Metadata.CacheMode = gocql.Disabled          // of all tables there are, when it connects
	c.Logger = gocql.NewLogger(gocql.LogLevelNone) // what goes wrong is told by errors
	if c.SslOpts, err = t.cassandraTLS(settings); err != nil {
		return nil, err
	}
	user, password, err := t.login("CASSANDRA")
	if err != nil {
		return nil, err
	}
	if user != "" {
		c.Authenticator = gocql.PasswordAuthenticator{Username: user, Password: password}
	}
	return c, nil
}

// cassandraTLS is how to talk to the nodes; nil: in the clear.
func (t target) cassandraTLS(settings url.Values) (*gocql.SslOptions, error) {
	o := &gocql.SslOptions{CaPath: settings.Get("ca"), CertPath: settings.Get("cert"), KeyPath: settings.Get("key")}
	files := o.CaPath != "" || o.CertPath != "" || o.KeyPath != ""
	switch mode := settings.Get("tls"); {
	case mode == "" && !files:
		return nil, nil
	case mode == "verify", mode == "":
		o.EnableHostVerification = true
	case mode != "skip-verify":
		return nil, usage("cassandra: tls is verify or skip-verify; ca, cert and key name files")
	}
	for _, path := range []string{o.CaPath, o.CertPath, o.KeyPath} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return nil, usage("the settings of %s cannot be used: %s", t, t.redact(err.Error()))
		}
	}
	if o.CertPath != "" || o.KeyPath != "" {
		if _, err := tls.LoadX509KeyPair(o.CertPath, o.KeyPath); err != nil {
			return nil, usage("the settings of %s cannot be used: cert and key: %s", t, t.redact(err.Error()))
		}
	}
	return o, nil
}

// connectCassandra makes a session, in limited time, which the driver does not
// limit.
func (t target) connectCassandra(ctx context.Context) (*gocql.Session, error) {
	config, err := t.cassandraConfig()
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
			return nil, whyNot(ctx, config.Hosts, r.err)
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

// withCassandra makes a session for do, and closes it if do fails.
func (t target) withCassandra(ctx context.Context, do func(context.Context, *gocql.Session, *cassandra.Options) error) (session *gocql.Session, err error) {
	err = inTime(ctx, 3*patience, func(ctx context.Context) error {
		session, err = t.connectCassandra(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err = do(ctx, session, t.cassandraOptions()); err != nil {
		leaveCassandra(session)()
		return nil, err
	}
	return session, nil
}

func (t target) onCassandra(ctx context.Context, do func(context.Context, *gocql.Session, *cassandra.Options) error) error {
	session, err := t.withCassandra(ctx, do)
	if err == nil {
		err = leaveCassandra(session)()
	}
	return err
}

func leaveCassandra(session *gocql.Session) func() error {
	return parting(func() error { session.Close(); return nil })
}
