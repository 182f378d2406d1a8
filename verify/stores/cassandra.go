package stores

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/cassandra"
)

// Session connects to cassandra://HOST,HOST,HOST:PORT/KEYSPACE. With ?via=ADDR,ADDR,ADDR
// each of the hosts is reached at another address, that of a proxy; then frames
// are those of version 4 of the protocol, which a proxy can read.
func Session(target string) (*gocql.Session, error) {
	c, err := config(target)
	if err != nil {
		return nil, err
	}
	return c.CreateSession()
}

func config(target string) (*gocql.ClusterConfig, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	list, port, ok := strings.Cut(u.Host, ":")
	if !ok {
		return nil, fmt.Errorf("no port in %s", target)
	}
	hosts := strings.Split(list, ",")
	c := gocql.NewCluster(hosts...)
	if c.Port, err = strconv.Atoi(port); err != nil {
		return nil, err
	}
	c.Keyspace = strings.TrimPrefix(u.Path, "/")
	c.Timeout, c.ConnectTimeout, c.WriteTimeout = 10*time.Second, 5*time.Second, 5*time.Second
	c.Metadata.CacheMode = gocql.Disabled // or each table that a test makes is read by all
	c.ReconnectInterval = time.Second
	c.ReconnectionPolicy = &gocql.ConstantReconnectionPolicy{MaxRetries: 3, Interval: 200 * time.Millisecond}
	if via := u.Query().Get("via"); via != "" {
		addrs := strings.Split(via, ",")
		if len(addrs) != len(hosts) {
			return nil, errors.New("via needs an address for each host")
		}
		to := make(detour)
		for i, h := range hosts {
			to[net.JoinHostPort(h, port)] = addrs[i]
		}
		c.Dialer, c.ProtoVersion = to, 4
	}
	return c, nil
}

// A detour dials some addresses in the place of others.
type detour map[string]string

func (d detour) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if to, ok := d[addr]; ok {
		addr = to
	}
	dialer := net.Dialer{Timeout: 2 * time.Second}
	return dialer.DialContext(ctx, network, addr)
}

func migrateCassandra(ctx context.Context, target string) error {
	s, err := Session(target)
	if err != nil {
		return err
	}
	defer s.Close()
	return cassandra.Migrate(ctx, s, nil)
}

func openCassandra(ctx context.Context, target string) (*Store, error) {
	session, err := Session(target)
	if err != nil {
		return nil, err
	}
	store, err := cassandra.New(ctx, session, nil)
	if err != nil {
		session.Close()
		return nil, err
	}
	return &Store{Store: store, close: func() error { session.Close(); return nil }}, nil
}

// Keyspace makes a keyspace with three replicas in the cluster at a URL, which is
// dropped when the test ends, and returns its URL.
func Keyspace(t testing.TB, cluster string) string {
	t.Helper()
	do := func(text string) error {
		s, err := Session(cluster)
		if err != nil {
			return err
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Query(text).WithContext(ctx).Exec(); err != nil {
			return err
		}
		return s.AwaitSchemaAgreement(ctx)
	}
	name := "hf_verify_" + strings.ToLower(rand.Text()[:12])
	if err := do("create keyspace " + name + " with replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := do("drop keyspace " + name); err != nil {
			t.Logf("%s is left behind: %v", name, err)
		}
	})
	return cluster + "/" + name
}
