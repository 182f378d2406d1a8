package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
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
	hosts, err := t.cassandraHosts()
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
	user, password, err := t.cassandraUser()
	if err != nil {
		return nil, err
	}
	if user != "" {
		c.Authenticator = gocql.PasswordAuthenticator{Username: user, Password: password}
	}
	return c, nil
}

// cassandraHosts are the hosts of the URL, each with its port or that of the last.
func (t target) cassandraHosts() (hosts []string, err error) {
	last := "9042"
	for i, host := range slices.Backward(strings.Split(t.address.host, ",")) {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.Trim(host, "[]"), last
		} else if i == strings.Count(t.address.host, ",") {
			last = port
		}
		if name == "" {
			return nil, usage("%s names no host: write it as in %s", t, t.example)
		}
		hosts = append(hosts, net.JoinHostPort(name, port))
	}
	slices.Reverse(hosts)
	return hosts, nil
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

// cassandraUser is who we are: by the URL, or by the environment.
func (t target) cassandraUser() (user, password string, err error) {
	a := t.address
	user, _ = url.PathUnescape(a.user)
	user = cmp.Or(user, os.Getenv("CASSANDRA_USER"))
	if a.secret {
		password, _ = url.PathUnescape(a.password)
		return user, password, nil
	}
	if password = os.Getenv("CASSANDRA_PASSWORD"); password != "" {
		return user, password, nil
	}
	if path := os.Getenv("CASSANDRA_PASSWORD_FILE"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", "", usage("CASSANDRA_PASSWORD_FILE: %v", err)
		}
		password = strings.TrimRight(string(text), "\r\n")
	}
	return user, password, nil
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

// A denial is an error of the driver where a server was reached.
type denial struct{ err error }

func (d *denial) Error() string { return strings.TrimPrefix(d.err.Error(), "gocql: ") }
func (d *denial) Unwrap() error { return d.err }

// whyNot finds out whether it is the way to the servers that is at fault: the
// driver tells only in words.
func whyNot(ctx context.Context, hosts []string, err error) error {
	var way error
	for _, host := range hosts {
		dialer := net.Dialer{Timeout: time.Second}
		conn, dialErr := dialer.DialContext(ctx, "tcp", host)
		if dialErr == nil {
			conn.Close()
			return &denial{err}
		}
		way = dialErr
	}
	return way
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
