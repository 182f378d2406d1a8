package stores

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/cassandra"
)

// session connects to cassandra://HOST,HOST,HOST:PORT/KEYSPACE.
func session(target string) (*gocql.Session, error) {
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
	return c.CreateSession()
}

func openCassandra(ctx context.Context, target string) (*Store, error) {
	conn, err := session(target)
	if err != nil {
		return nil, err
	}
	store, err := cassandra.New(ctx, conn, nil)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Store{Store: store, Registers: inCassandra{conn}, close: func() error { conn.Close(); return nil }}, nil
}
